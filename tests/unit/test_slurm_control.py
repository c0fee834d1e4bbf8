"""What Slurm's commands print, as captured from real ones, and what becomes of it when they fail."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ftslurm.slurm import facts as slurm_facts
from ftslurm.slurm import output as slurm_output
from ftslurm.slurm.commands import CommandSlurm
from ftslurm.slurm.complete import libraries, wait_status
from ftslurm.slurm.control import SlurmControl
from ftslurm.slurm.errors import (
    SlurmError,
    SlurmOutputError,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnknownJob,
    SlurmUnreachable,
)
from ftslurm.slurm.facts import JobFacts, check_job_id, select_job
from ftslurm.slurm.output import (
    SACCT_DELIMITER,
    parse_job_records,
    parse_kill_wait_s,
    parse_node_states,
    parse_sacct,
    parse_sacct_fields,
)
from ftslurm.slurm.run_command import Answer, failure
from tests.unit.fake_slurm import FakeSlurm

OUTPUTS = Path(__file__).parent / "slurm_outputs"
SEED = 20260103
S = 1_000_000_000
FIELDS = (
    "JobIDRaw", "JobID", "State", "ExitCode", "Submit", "Start", "End", "TimelimitRaw", "NodeList", "WorkDir", "Reason",
)  # fmt: skip
OLD_SACCT = " ".join(FIELDS)
UNKNOWN = Answer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
# sacct 22.05, delimiter changed to | here for legibility
REQUEUED = """\
9|9_7|REQUEUED|0:0|1795229395|1795229396|1795229396|60|c1|/home/ada/run|None
9|9_7|COMPLETED|0:0|1795229398|1795229399|1795229399|60|c1|/home/ada/run|BeginTime
"""
ARRAY = """\
14|13_1|RUNNING|0:0|1795229616|1795229616|Unknown|1440|c1|/home/ada/run|None
13|13_[2-3%1]|PENDING|0:0|1795229616|Unknown|Unknown|1440|None assigned|/home/ada/run|JobArrayTaskLimit
"""
VARIOUS = """\
7|7|COMPLETED|0:0|1795229366|1795229367|1795229367|60|c[1-2]|/home/ada/run|None
11|11|FAILED|9:0|1795229616|1795229616|1795229616|5|c[1-2]|/home/ada/run|None
12|12|RUNNING|0:0|1795229616|1795229616|Unknown|UNLIMITED|c1|/home/ada/run|None
19|19|CANCELLED by 0|0:0|1795230103|1795230103|1795230104||c1||None
"""


class Scripted:
    """Answers every command alike and remembers the last one."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.command: Sequence[str] = ()

    def __call__(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        self.command = command
        return self.answer


def test_a_job_is_completed_in_a_process_of_its_own_because_slurms_library_may_end_that() -> None:
    run = Scripted(Answer(0, "", ""))
    CommandSlurm({}, run=run).complete("7", 3)
    assert tuple(run.command[2:]) == ("ftslurm.slurm.complete", "7", "3")
    refused = Scripted(Answer(1, "", "Slurm's library cannot be used: no libslurm.so\n"))
    with pytest.raises(SlurmRefused, match="library cannot be used"):
        CommandSlurm({}, run=refused).complete("7", 0)
    with pytest.raises(ValueError, match="numeric job id"):
        CommandSlurm({}, run=refused).complete("7_1", 0)


def test_slurms_library_is_searched_where_scontrol_has_it_and_below_its_prefix(tmp_path: Path) -> None:
    for place in ("bin/scontrol", "lib64/slurm/libslurmfull.so", "lib/x86_64-linux-gnu/libslurm.so.38"):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    linked = "\tlibslurmfull.so => /opt/slurm/lib/slurm/libslurmfull.so (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"
    assert list(libraries(str(tmp_path / "bin/scontrol"), linked)) == [
        "/opt/slurm/lib/slurm/libslurmfull.so",
        str(tmp_path / "lib/x86_64-linux-gnu/libslurm.so.38"),
        str(tmp_path / "lib64/slurm/libslurmfull.so"),
    ]
    assert [wait_status(code) for code in (0, 1, 143)] == [0, 256, 143 << 8]


def captured(name: str) -> str:
    return (OUTPUTS / name).read_text()


def sacct(text: str) -> list[JobFacts]:
    return parse_sacct(text.replace("|", SACCT_DELIMITER), FIELDS)


@pytest.mark.parametrize(("version", "nodes"), [("22.05", ("c1", "c2")), ("24.11", ("d1", "d2"))])
def test_a_failed_job_is_read_although_its_name_path_and_comment_resemble_fields(
    version: str, nodes: tuple[str, ...]
) -> None:
    (job,) = parse_job_records(captured(f"job-failed-{version}.txt"))
    log = f"/home/ada/run/lr=0.1 Reason=x JobState=FAILED a|b-{job.job_id}.out"
    assert (job.state, job.reason, job.exit_code, job.ended) == ("FAILED", "NonZeroExitCode", (137, 0), True)
    assert (job.restarts, job.requeue, job.time_limit_s) == (0, True, 300)
    assert (job.node_list, job.work_dir, job.std_out, job.std_err) == (nodes, "/home/ada/run", log, log)
    assert (job.array_job_id, job.array_task_id, job.source) == (None, None, "scontrol")
    assert job.submit_ns is not None
    assert job.start_ns == job.end_ns == job.submit_ns + 1 * S


def test_an_array_is_a_record_for_what_waits_and_one_for_each_task_that_started() -> None:
    waiting, running = parse_job_records(captured("job-array-22.05.txt"))
    assert (waiting.job_id, waiting.array_job_id, waiting.array_task_id) == ("17", "17", "2-3%1")
    assert (waiting.state, waiting.node_list, waiting.start_ns, waiting.end_ns) == ("PENDING", (), None, None)
    assert (running.job_id, running.array_job_id, running.array_task_id) == ("18", "17", "1")
    assert running.end_ns == 1795233701 * S


def test_a_running_job_has_no_exit_code_although_slurm_prints_one() -> None:
    running = parse_job_records(captured("job-array-22.05.txt"))[1]
    assert (running.state, running.exit_code, running.ended) == ("RUNNING", None, False)


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [("1-02:03:04", 93784), ("00:05:00", 300), ("05:00", 300), ("UNLIMITED", None), ("Partition_Limit", None)],
)
def test_a_time_limit_is_seconds(printed: str, seconds: int | None) -> None:
    text = captured("job-failed-22.05.txt").replace("TimeLimit=00:05:00", f"TimeLimit={printed}")
    assert parse_job_records(text)[0].time_limit_s == seconds


def test_a_date_without_a_zone_is_no_time() -> None:
    text = captured("job-failed-22.05.txt").replace("StartTime=1795230100", "StartTime=2026-11-21T02:53:36")
    assert parse_job_records(text)[0].start_ns is None


def test_no_jobs_at_all_is_no_record() -> None:
    assert parse_job_records("No jobs in the system\n") == []


@pytest.mark.parametrize("text", ["", "hello", "<html>", "JobId= JobName=x\n", "JobId=1 JobName=x\n   UserId=a(1)\n"])
def test_what_is_no_job_record_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(SlurmOutputError, match="expected") as caught:
        parse_job_records(text)
    assert "\n" not in str(caught.value)


def test_sacct_has_a_record_for_each_start_of_a_requeued_job() -> None:
    first, second = sacct(REQUEUED)
    assert (first.job_id, first.array_job_id, first.array_task_id, first.state) == ("9", "9", "7", "REQUEUED")
    assert (second.state, second.exit_code, second.end_ns) == ("COMPLETED", (0, 0), 1795229399 * S)
    assert (second.time_limit_s, second.node_list, second.source) == (3600, ("c1",), "sacct")
    assert second.std_out is None


def test_sacct_has_several_spellings_of_an_absent_value() -> None:
    completed, failed, running, cancelled = sacct(VARIOUS)
    assert (completed.reason, completed.ended) == (None, True)
    assert failed.exit_code == (9, 0)
    assert (running.end_ns, running.time_limit_s, running.exit_code) == (None, None, None)
    assert (cancelled.state, cancelled.time_limit_s, cancelled.work_dir) == ("CANCELLED", None, None)
    assert sacct(ARRAY)[1].node_list == ()


@pytest.mark.parametrize(
    "row",
    [
        "7",
        VARIOUS.splitlines()[0] + "|more",
        "x|" * 10,
        "7|7|COMPLETED|none|1|1|1|1|c1|/|",
        "7|7|COMPLETED|0:0|1|1|1|1|c[|/|",
    ],
)
def test_a_row_that_sacct_would_not_write_is_an_error(row: str) -> None:
    with pytest.raises(SlurmOutputError, match="cannot read what"):
        sacct(row)


def test_only_fields_that_this_sacct_knows_are_asked_for() -> None:
    fields = parse_sacct_fields(captured("sacct-fields-22.05.txt"))
    assert fields == FIELDS
    newer = captured("sacct-fields-22.05.txt") + "Restarts FailedNode StdOut StdErr\n"
    assert set(parse_sacct_fields(newer)) - set(fields) == {"Restarts", "FailedNode", "StdOut", "StdErr"}
    with pytest.raises(SlurmOutputError):
        parse_sacct_fields("usage: sacct")


def test_a_job_or_task_is_picked_from_what_slurm_answers_for_its_array() -> None:
    records = sacct(ARRAY)
    assert [job.job_id for job in select_job(records, "14")] == ["14"]
    assert [job.job_id for job in select_job(records, "13")] == ["13"]
    assert [job.job_id for job in select_job(records, "13_1")] == ["14"]
    assert [job.job_id for job in select_job(records, "13_3")] == ["13"]
    assert select_job(records, "12") == select_job(records, "12_1") == []
    assert [job.state for job in select_job(reversed(sacct(REQUEUED)), "9_7")] == ["REQUEUED", "COMPLETED"]


def test_node_states_are_read_and_unknown_nodes_left_out() -> None:
    assert parse_node_states(captured("nodes-22.05.txt")) == {"c1": "IDLE", "c2": "DOWN+NOT_RESPONDING"}
    with pytest.raises(SlurmOutputError):
        parse_node_states("something else\n")


def test_kill_wait_is_read_from_the_configuration() -> None:
    config = captured("config-22.05.txt")
    assert parse_kill_wait_s(config) == 5
    assert parse_kill_wait_s(config.replace("KillWait", "Other")) is None
    for garbage in ("", "hello", config.replace("5 sec", "soon")):
        with pytest.raises(SlurmOutputError):
            parse_kill_wait_s(garbage)


def test_garbled_output_gives_facts_or_a_slurm_output_error_and_nothing_else() -> None:
    source = random.Random(SEED)
    names = ["job-failed-22.05.txt", "job-array-22.05.txt", "nodes-22.05.txt", "config-22.05.txt"]
    texts = [captured(name) for name in names] + [VARIOUS.replace("|", SACCT_DELIMITER)]
    splices = ["", "=", " ", "\n", "[", "9" * 5000, "\u0661", "\0"]
    for case in range(1500):
        text = list(source.choice(texts))
        for _ in range(source.randint(1, 30)):
            at = source.randrange(len(text) + 1)
            text[at : at + source.choice([0, 1, 40])] = source.choice(splices)
        for parse in (parse_job_records, parse_node_states, parse_kill_wait_s, lambda t: parse_sacct(t, FIELDS)):
            try:
                parse("".join(text))
            except SlurmOutputError as error:
                message = str(error)
            else:
                message = ""
            assert len(message) < 700, f"seed {SEED}, case {case}"


@pytest.mark.parametrize("job_id", ["123", "123_4", "0"])
def test_a_job_id_is_a_number_or_an_array_task(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize(
    "job_id", ["", "abc", "123_", "_4", "123.0", "123_[1-2]", "-1", "1,2", "1 2", "1\n", "\u0661", "9" * 11]
)
def test_anything_else_is_no_job_id_and_nothing_is_run(job_id: str) -> None:
    slurm, asked = scripted()
    for operation in (slurm.job, slurm.requeue, FakeSlurm().job, FakeSlurm().requeue):
        with pytest.raises(ValueError, match="expected a job id like 123"):
            operation(job_id)
    assert asked == []


def scripted(*answers: Answer | SlurmError) -> tuple[CommandSlurm, list[str]]:
    """Make a CommandSlurm whose commands answer in turn, and the list of what was run."""
    asked: list[str] = []
    waiting = list(answers)

    def run(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        asked.append(" ".join(command).replace(SACCT_DELIMITER, "|"))
        assert env["SLURM_TIME_FORMAT"] == "%s"
        assert timeout_s == 3
        answer = waiting.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    return CommandSlurm(env={}, timeout_s=3, run=run), asked


def test_a_job_that_slurmctld_knows_is_not_searched_in_the_accounting() -> None:
    slurm, asked = scripted(Answer(0, captured("job-array-22.05.txt"), ""))
    job = slurm.job("17_1")
    assert job is not None
    assert job.job_id == "18"
    assert asked == ["scontrol show job 17_1"]


@pytest.mark.parametrize("unknown", [UNKNOWN, Answer(1, "Job 9_7 not found\n", "")])
def test_a_job_that_slurmctld_forgot_comes_from_the_accounting_with_its_restarts_counted(unknown: Answer) -> None:
    rows = Answer(0, REQUEUED.replace("|", SACCT_DELIMITER), "")
    slurm, asked = scripted(unknown, Answer(0, OLD_SACCT, ""), rows, unknown, rows)
    job = slurm.job("9_7")
    assert job is not None
    assert (job.state, job.restarts, job.source) == ("COMPLETED", 1, "sacct")
    assert asked[2] == f"sacct -j 9_7 -D -X -P -n --delimiter=| -o {','.join(FIELDS)}"
    assert slurm.job("9_7") == job
    assert len(asked) == 5, "the fields are asked for once"


def test_a_newer_sacct_has_the_restarts_and_the_paths_itself() -> None:
    fields = (*FIELDS, "Restarts", "StdOut")
    row = REQUEUED.splitlines()[1].replace("|", SACCT_DELIMITER) + SACCT_DELIMITER.join(["", "4", "/x/9.out"])
    slurm, asked = scripted(UNKNOWN, Answer(0, " ".join(fields), ""), Answer(0, row, ""))
    job = slurm.job("9")
    assert job is not None
    assert (job.restarts, job.std_out) == (4, "/x/9.out")
    assert "--expand-patterns" in asked[2]


def test_a_job_that_neither_knows_is_none() -> None:
    slurm, _ = scripted(UNKNOWN, Answer(0, OLD_SACCT, ""), Answer(0, "", ""))
    assert slurm.job("99999") is None


def test_without_accounting_a_forgotten_job_is_none() -> None:
    slurm, _ = scripted(UNKNOWN, Answer(1, "", "Slurm accounting storage is disabled\n"))
    assert slurm.job("9") is None


def test_a_silent_slurmdbd_is_an_error_because_unknown_is_not_gone() -> None:
    slurm, _ = scripted(UNKNOWN, Answer(1, "", "sacct: error: Problem talking to the database: Connection refused"))
    with pytest.raises(SlurmUnreachable):
        slurm.job("9")


def test_a_silent_slurmctld_is_an_error_and_the_accounting_is_not_asked() -> None:
    down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    slurm, asked = scripted(Answer(1, "", down))
    with pytest.raises(SlurmUnreachable, match="connect failure"):
        slurm.job("9")
    assert len(asked) == 1


def test_requeue_names_the_array_task() -> None:
    slurm, asked = scripted(Answer(0, "", ""))
    slurm.requeue("9_7")
    assert asked == ["scontrol requeue 9_7"]


@pytest.mark.parametrize("status", [-15, 143])
def test_a_scontrol_that_its_own_requeue_terminated_has_succeeded(status: int) -> None:
    slurm, _ = scripted(Answer(status, "", ""))
    slurm.requeue("9")


@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        ("Invalid job id specified for job 99999", SlurmUnknownJob),
        ("12_1: Invalid job id specified", SlurmUnknownJob),
        ("Access/permission denied for job 12", SlurmRefused),
        ("Requested operation is presently disabled for job 12", SlurmRefused),
        ("Unexpected message received for job 12", SlurmUnreachable),
        ("scontrol: fatal: Could not establish a configuration source", SlurmUnreachable),
    ],
)
def test_a_requeue_that_slurm_denies_is_an_error_with_the_reason(printed: str, kind: type[SlurmError]) -> None:
    slurm, _ = scripted(Answer(1, "", printed + "\n"))
    with pytest.raises(SlurmError, match="scontrol requeue 12") as caught:
        slurm.requeue("12")
    assert type(caught.value) is kind
    assert printed in str(caught.value)


def test_node_states_are_asked_for_in_one_short_command() -> None:
    slurm, asked = scripted(Answer(1, captured("nodes-22.05.txt"), ""))
    assert slurm.node_states(["c1", "c2", "zz"]) == {"c1": "IDLE", "c2": "DOWN+NOT_RESPONDING"}
    assert asked == ["scontrol show node -o c[1-2],zz"]


def test_no_nodes_are_not_all_nodes() -> None:
    slurm, asked = scripted()
    assert slurm.node_states([]) == {}
    assert asked == []


def test_a_time_out_is_passed_on() -> None:
    slurm, _ = scripted(SlurmTimeout("late"))
    with pytest.raises(SlurmTimeout):
        slurm.kill_wait_s()


def test_a_failure_is_one_printable_line_whatever_was_printed() -> None:
    error = failure(("scontrol", "show", "job", "1"), Answer(2, "", "one\n\n two\x1b[31m\u00e9" + "x" * 5000))
    assert str(error).startswith("`scontrol show job 1` failed (exit 2): one / two\\x1b[31m\\xe9")
    assert len(str(error)) < 500
    assert "it printed nothing" in str(failure(("sacct",), Answer(1, "", "")))
    assert "killed by signal 9" in str(failure(("sacct",), Answer(-9, "", "")))


def test_the_fake_gives_its_prepared_answers_and_records_the_calls() -> None:
    fake = FakeSlurm(
        [JobFacts("18", "RUNNING", node_list=("c1",), array_job_id="17", array_task_id="1")], 30, {"c1": "IDLE"}
    )
    slurm: SlurmControl = fake
    slurm.requeue("17_1")
    job = slurm.job("18")
    assert job is not None
    assert (job.state, job.restarts, job.node_list) == ("PENDING", 1, ())
    assert slurm.job("17_2") is None
    assert slurm.kill_wait_s() == 30
    assert slurm.node_states(["c1", "c2"]) == {"c1": "IDLE"}
    with pytest.raises(SlurmUnknownJob):
        slurm.requeue("5")
    assert fake.calls == [
        ("requeue", "17_1"), ("job", "18"), ("job", "17_2"), ("kill_wait_s", ""), ("node_states", "c[1-2]"),
        ("requeue", "5"),
    ]  # fmt: skip


def test_the_fake_fails_as_often_as_it_was_set_to() -> None:
    fake = FakeSlurm()
    fake.fail("kill_wait_s", SlurmUnreachable("down"), times=2)
    for _ in range(2):
        with pytest.raises(SlurmUnreachable):
            fake.kill_wait_s()
    assert fake.kill_wait_s() == 30
    fake.fail("job", SlurmTimeout("late"), times=None)
    for _ in range(5):
        with pytest.raises(SlurmTimeout):
            fake.job("1")
    fake.heal()
    assert fake.job("1") is None
    with pytest.raises(ValueError, match="no operation"):
        fake.fail("reboot", SlurmTimeout("late"))


def test_every_public_name_of_the_facts_and_their_parsers_exists() -> None:
    assert all(hasattr(module, name) for module in (slurm_facts, slurm_output) for name in module.__all__)

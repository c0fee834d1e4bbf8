"""`ftslurm list`: the user's runs in a directory, damaged ones named, Slurm's queue added where it answers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.pipeline import make_report, save
from ftslurm.runs.list_command import main
from ftslurm.slurm.errors import SlurmOutputError, SlurmTimeout
from ftslurm.slurm.queue import QueuedJob, by_name, parse_queue, user_jobs
from ftslurm.slurm.run_command import Answer
from ftslurm.status.command import main as status


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of runs: one that succeeded after a failure, one that failed by a lost node, one that runs."""
    directory = tmp_path / "ftslurm-runs"
    directory.mkdir()
    story = RunBuilder(directory, run_id="job-1", job_id="1").round().steps(1, 90)
    story.fail(3, ValueError("boom\x1b[31m"), step=90).stop().round().succeed().close("succeeded", "all").write()
    RunBuilder(directory, run_id="job-2", job_id="2").round().lose("n2").close("failed", "too few nodes").write()
    RunBuilder(directory, run_id="job-3", job_id="3").round().steps(1, 90).write()
    for i in (1, 2, 3):
        os.utime(directory / f"job-{i}" / "state", ns=(i * 10**9, i * 10**9))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)
    return directory


def job(number: str, state: str, reason: str | None = None, left_s: int | None = None) -> QueuedJob:
    return QueuedJob(number, None, None, state, reason, left_s)


def listed(capsys: pytest.CaptureFixture[str], *arguments: str, queue: Mapping[str, QueuedJob] | None = None) -> Any:
    assert main([*arguments, "--json"], queue=lambda: queue or {}) == 0
    return {run["run"]: run for run in json.loads(capsys.readouterr().out)["runs"]}


def test_each_run_has_its_state_round_step_and_last_failure_and_the_last_changed_is_first(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = listed(capsys)
    assert [(name, run["state"]) for name, run in found.items()] == [
        ("job-3", "running"),
        ("job-2", "failed"),
        ("job-1", "succeeded"),
    ]
    assert found["job-1"]["round"] == 2
    assert found["job-1"]["step"] == 90
    assert found["job-1"]["failure_round"] == 1
    assert "rank 3 on n2 failed at step 90" in found["job-1"]["failure"]
    assert "n2 was lost" in found["job-2"]["failure"]
    assert found["job-3"]["failure"] is None


def test_the_last_step_of_a_run_that_has_ended_is_that_of_its_report(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = RunBuilder(runs, run_id="job-4", job_id="4").round().steps(1, 75).succeed().close("succeeded", "all")
    save(make_report(story.write()), runs / "job-4")
    assert listed(capsys)["job-4"]["step"] == 75


def test_the_table_is_safe_for_a_terminal(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], queue=dict) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == f"3 runs in {runs}"
    assert "\x1b" not in out
    assert "round 1: rank 3 on n2 failed at step 90: ValueError: boom" in out


def test_time_left_and_a_pending_job_come_from_slurms_queue(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = by_name([job("3", "RUNNING", None, 3600), job("2", "PENDING", "JobHeldUser")])
    found = listed(capsys, queue=queue)
    assert (found["job-3"]["state"], found["job-3"]["left_s"]) == ("running", 3600)
    assert (found["job-2"]["state"], found["job-2"]["why"]) == ("pending", "JobHeldUser")
    assert found["job-1"]["state"] == "succeeded"


def test_a_job_that_is_ending_has_no_time_left(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys, queue=by_name([job("3", "COMPLETING", None, 0)]))
    assert (found["job-3"]["state"], found["job-3"]["left_s"]) == ("running", None)


@pytest.mark.parametrize(
    ("reason", "result", "shown"),
    [
        (
            "interrupted: SIGTERM from outside; saved at step 120 (3.1 s of 30 s grace)",
            "saved at step 120 (3.1 s of 30 s grace)",
            ("interrupted", "saved at step 120"),
        ),
        (
            "interrupted: ftslurm stop by ann; all 4 ranks left at step 7 (1 s)",
            "all 4 ranks left at step 7 (1 s)",
            ("interrupted", "all 4 ranks left at step 7"),
        ),
        ("SIGTERM from outside", None, ("stopped", "no save recorded")),
        ("saved at step 9", None, ("stopped", "no save recorded")),  # a reason is the user's text
        (
            "SIGTERM from outside; rank 0 left at step 43, saved by rank 0",
            "rank 0 left at step 43, saved by rank 0",
            ("stopped", "rank 0 left at step 43, saved by rank 0"),
        ),
    ],
)
def test_a_run_that_saved_is_called_interrupted_and_one_that_was_ended_stopped(
    reason: str, result: str | None, shown: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = RunBuilder(tmp_path, run_id="job-4", job_id="4").round().stop(reason=reason, outcome="stopped")
    path = story.close("stopped", reason).write()
    (newest,) = path.glob("state/*.json")
    content = json.loads(newest.read_text())
    content["value"]["stop"] = {
        "cause": "signal", "reason": "SIGTERM from outside", "node": "n1", "requested_ns": 1, "round": 1,
        "signal": "SIGTERM", "grace_s": 30.0, "proposal": 1, "step": 43, "committed": True, "result": result,
        "orderly": reason.startswith("interrupted"),
    }  # fmt: skip
    newest.write_text(json.dumps(content))
    (run,) = listed(capsys, str(tmp_path)).values()
    assert (run["state"], run["why"]) == shown
    assert status([str(path), "--offline"]) == 0
    first = " ".join(capsys.readouterr().out.split("exit code")[0].split())
    assert f" was {shown[0]}: " in first and shown[1] in first


def test_a_slurm_without_an_answer_costs_only_what_it_would_add(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def hangs() -> Mapping[str, QueuedJob]:
        raise SlurmTimeout("`squeue` did not answer within 2 s; check it", "squeue: no answer within 2 s")

    assert main([], queue=hangs) == 0
    out = capsys.readouterr().out
    assert "job-3  running" in out
    assert "Slurm is not reachable (squeue: no answer within 2 s): time left and pending jobs are unknown" in out


def test_a_slurm_that_is_down_is_one_short_line(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(
        "#!/bin/sh\necho 'squeue: error: fetch_config: DNS SRV lookup failed' >&2\n"
        "printf 'squeue: fatal: Could not establish\\033[2J a configuration source\\n' >&2\nexit 1\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "job-3  running" in out
    (line,) = (line.strip() for line in out.splitlines() if "Slurm" in line)
    assert line.startswith("Slurm ") and "(squeue: Could not establish a configuration source)" in line
    assert len(line) < 120


def test_a_damaged_run_is_named_and_the_others_are_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "job-2" / "state" / "000000000007.json").write_bytes(b"{")
    found = listed(capsys)
    assert found["job-2"]["state"] == "unknown"
    assert "state/000000000007.json" in found["job-2"]["why"]
    assert found["job-1"]["state"] == "succeeded"


def test_links_are_not_followed_and_other_folders_are_no_runs(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "excluded-0").mkdir()
    (runs / "job-7").symlink_to(runs / "job-1")
    assert main([], queue=dict) == 0
    out = capsys.readouterr().out
    assert "job-7" not in out
    assert "excluded-0" not in out
    assert "1 more of other users, or links, are left out" in out


def test_only_the_newest_runs_are_read_and_those_whose_job_is_in_the_queue(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ftslurm.runs.list_command.SHOWN", 1)
    assert list(listed(capsys)) == ["job-3"]
    assert list(listed(capsys, queue=by_name([job("1", "PENDING")]))) == ["job-3", "job-1"]
    assert list(listed(capsys, "--all")) == ["job-3", "job-2", "job-1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "/nowhere is not there"),
        (["ftslurm-runs/job-1"], "is one run, expected the directory that holds runs"),
        (["--all", "x", "y"], "unexpected argument y"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    runs: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, queue=dict) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_an_empty_directory_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)], queue=dict) == 0
    assert capsys.readouterr().out == f"no run of yours in {tmp_path}\n"


SQUEUE = """\
41|41|N/A|RUNNING|1-02:03:04|None|(null)
42|42|N/A|PENDING|59:00|Priority|a | b
50|43|1|RUNNING|UNLIMITED|None|(null)
43|43|2|PENDING|10:00|Resources|(null)
43|43|3|PENDING|10:00|QOS|
"""


def test_squeues_output_is_parsed_and_tasks_of_an_array_have_two_names() -> None:
    jobs = parse_queue(SQUEUE)
    assert [each.left_s for each in jobs] == [93784, 3540, None, 600, 600]
    names = by_name(jobs)
    assert sorted(names) == ["41", "42", "43_1", "43_2", "43_3", "50"], "43 is the number of two tasks"
    assert names["50"] is names["43_1"]
    assert names["42"].reason == "Priority"
    assert (names["42"].comment, names["41"].comment, names["43_3"].comment) == ("a | b", None, None)
    with pytest.raises(SlurmOutputError):
        parse_queue("slurm_load_jobs: something else\n")


def test_squeue_is_called_once_for_the_user_and_with_a_time_limit() -> None:
    calls = []

    def run(command: Any, env: Mapping[str, str], timeout_s: float) -> Answer:
        calls.append((list(command), timeout_s))
        return Answer(0, SQUEUE, "")

    assert user_jobs(1000, {}, run)["41"].state == "RUNNING"
    (command, timeout_s), *more = calls
    assert command[:5] == ["squeue", "-h", "-r", "-u", "1000"]
    assert timeout_s <= 2
    assert not more

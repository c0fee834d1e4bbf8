"""The event log: what happened to a run, over its coordinators, once each; nothing but the log is lost with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fold_histories import Job
from sample_runs.builder import RunBuilder

from ftslurm.event_log import writer
from ftslurm.event_log.entries import LIST_LIMIT, events_of, identity, new_events
from ftslurm.event_log.reading import merged, parse_lines, read_events
from ftslurm.event_log.writer import EventLog
from ftslurm.records.codec import write_record
from ftslurm.records.event import LoggedEvent
from ftslurm.records.state import CLOSED, FAILED, RUNNING, SUCCEEDED, Closed, Hang, LostNode, RoundHistory, State
from ftslurm.records.stop import ANY_STEP, SIGNAL, Stop
from ftslurm.records.verdict import AttemptVerdict, Requeued
from ftslurm.rendezvous.fold import take_lease
from ftslurm.runs.history_command import main
from ftslurm.sharedfs.rundir import RunDirectory

NOW_NS = 7 * 10**18


def kinds(state: State) -> list[tuple[str, int | None]]:
    return [(event.event, event.round) for event in events_of(state)]


def failed_and_restarted() -> Job:
    job = Job(2).join().run()
    job.fail(1)
    job.coordinate()
    return job


# What a state proves


def test_a_failed_round_is_its_beginning_its_failure_its_end_and_the_decision_to_restart() -> None:
    job = failed_and_restarted()
    assert kinds(job.state) == [
        *(("attempt", None), ("coordinator", None)),
        *(("round", 1), ("failure", 1), ("round-ended", 1), ("restart", 1)),
    ]
    failure, ended, restart = events_of(job.state)[3:]
    assert (failure.node, failure.rank, failure.exit_code, failure.cause, failure.step) == ("n1", 0, 1, "exit", 40)
    assert failure.text == "rank 0 on n1 at step 40: exit code 1"
    assert (ended.outcome, restart.restarts_used, restart.max_restarts) == (FAILED, 1, 3)


def test_a_round_without_an_end_has_only_begun_and_has_its_nodes_as_a_list_of_slurms() -> None:
    begun = events_of(Job(3).join().run().state)[2]
    assert (begun.event, begun.nodes, begun.world_size, begun.joined, begun.left) == ("round", "n[1-3]", 6, None, None)
    assert begun.text == "6 ranks on 3 nodes"


def test_a_node_that_is_replaced_has_left_and_the_spare_has_joined() -> None:
    history = (
        RoundHistory(1, "12.0", ("n1", "n2"), 4, 10**9, 3 * 10**9, "node-lost", "n2 is lost", None),
        RoundHistory(2, "12.0", ("n1", "n3"), 4, 4 * 10**9, None, RUNNING, None, None),
    )
    lost = LostNode("n2", "i2", 1, 2 * 10**9, 8.0)
    state = replace(Job(3).state, phase=RUNNING, round=2, history=history, lost=(lost,))
    begun = next(event for event in events_of(state) if (event.event, event.round) == ("round", 2))
    assert (begun.joined, begun.left) == ("n3", "n2")
    assert begun.text == "4 ranks on 2 nodes; n3 joined; n2 left"
    gone = next(event for event in events_of(state) if event.event == "node-lost")
    assert (gone.node, gone.round, gone.time_ns, gone.text) == ("n2", 1, 2 * 10**9, "n2: silent for 8 s")


def test_a_hang_is_logged_when_it_is_known_and_not_again_when_its_round_has_ended() -> None:
    job = Job(2).join().run()
    hang = Hang(1, "n2", 3, 1, 99, "no heartbeat for 60 s", 7)
    before = events_of(replace(job.state, hang=hang))
    past = replace(job.state.history[-1], outcome=FAILED, ended_ns=100, reason="hung", failure=hang.failure())
    after = events_of(replace(job.state, history=(past,)))
    (first,) = [event for event in before if event.event == "hang"]
    (second,) = [event for event in after if event.event == "hang"]
    assert first == second
    assert (first.rank, first.step, first.time_ns) == (3, 7, 99)


@pytest.mark.parametrize(("step", "text"), [(40, "at step 40"), (ANY_STEP, "at their next step")])
def test_a_stop_is_its_request_and_the_step_at_which_all_ranks_leave(step: int, text: str) -> None:
    job = Job(2).join().run()
    stop = Stop(SIGNAL, "SIGTERM from outside", "n1", 50, 1, proposal=1, step=step)
    assert [event.event for event in events_of(replace(job.state, stop=stop))][3:] == ["stop"]
    asked, decided = events_of(replace(job.state, stop=replace(stop, committed=True)))[3:]
    assert (asked.event, asked.cause, asked.time_ns) == ("stop", SIGNAL, 50)
    assert (decided.event, decided.text) == ("stop-step", f"all ranks leave {text}")
    assert decided.step == (None if step == ANY_STEP else step)


def test_the_end_of_an_attempt_has_its_cause_and_exit_code() -> None:
    closed = Closed(SUCCEEDED, "all ranks succeeded", 0, 99, "succeeded")
    last = events_of(replace(Job(1).state, phase=CLOSED, closed=closed))[-1]
    assert (last.event, last.outcome, last.cause, last.exit_code, last.time_ns) == (
        "end",
        SUCCEEDED,
        "succeeded",
        0,
        99,
    )


def test_earlier_attempts_events_are_their_coordinators() -> None:
    job = failed_and_restarted()
    assert kinds(replace(job.state, attempt="12.1", attempts=("12.0", "12.1"))) == [
        *(("attempt", None), ("coordinator", None))
    ]


def test_a_line_is_short_however_long_a_message_or_the_list_of_nodes_is() -> None:
    nodes = tuple(f"node-{number * 7919 % 100_003}-rack" for number in range(3000))
    job = failed_and_restarted()
    failure = job.state.history[-1].failure
    assert failure is not None
    past = replace(job.state.history[-1], nodes=nodes, failure=replace(failure, message="x" * 10_000 + "\n\x1b[31m"))
    for event in events_of(replace(job.state, history=(past,), expected=nodes)):
        assert len(event.text) < 400
        assert event.text.isprintable()
        assert len(event.nodes or "") <= LIST_LIMIT


# What is written


class Agent:
    """The event log of an agent, on a directory that may be full, and a courier that runs tasks at once."""

    def __init__(self, run: RunDirectory, node: str = "n1") -> None:
        self.lines: list[str] = []
        self.shown: list[str] = []
        log = (self.lines.append, self.shown.append)
        facts = (node, f"i-{node}", "12.0")
        self.log = EventLog(self._send, run, *facts, lambda: NOW_NS, *log)

    def _send(self, task: Callable[[], object]) -> None:
        task()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run").mkdir(0o700)
    return RunDirectory(str(tmp_path / "run"))


def logged(run: RunDirectory) -> dict[str, list[str]]:
    found = {}
    for path in sorted(Path(run.events).iterdir()):
        found[path.name] = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    return found


def test_each_event_is_written_once_whatever_the_state_repeats(run: RunDirectory) -> None:
    agent, job = Agent(run), Job(2).join()
    agent.log.on_state(job.state)
    job.run()
    agent.log.on_state(job.state)
    agent.log.on_state(job.state)
    job.fail(1)
    agent.log.on_state(job.coordinate())
    expected = ["attempt", "coordinator", "round", "failure", "round-ended", "restart"]
    assert logged(run) == {"000001.jsonl": expected}
    assert [line.split(": ")[1].rpartition(", ")[2] for line in agent.shown] == expected
    assert agent.lines == []


def test_a_coordinator_that_takes_over_has_its_own_file_and_readers_see_each_event_once(run: RunDirectory) -> None:
    first, second, job = Agent(run), Agent(run, "n2"), Job(2).join().run()
    first.log.on_state(job.state)
    job.fail(1)
    # The first one has decided this, and was killed before it had written it.
    job.coordinate()
    job.state = take_lease(job.state, "n2", "i-n2")
    second.log.on_state(job.state)
    assert set(logged(run)) == {"000001.jsonl", "000002.jsonl"}
    found = read_events(Path(run.root)).events
    assert [event.event for event in found].count("coordinator") == 2
    assert sorted(event.event for event in found) == sorted(
        ["attempt", "coordinator", "coordinator", "round", "failure", "round-ended", "restart"]
    )
    assert {event.term for event in found if event.event == "round"} == {1}


def test_of_a_long_run_a_new_coordinator_writes_the_newest_rounds_alone(run: RunDirectory) -> None:
    old = RoundHistory(1, "12.0", ("n1",), 2, 1, 2, FAILED, "why", None)
    history = tuple(replace(old, round=number) for number in range(1, 101))
    state = replace(Job(1).state, round=100, history=history)
    assert {event.round for event in new_events(state, (), NOW_NS)} == {None, 98, 99, 100}


def test_an_exclusion_is_logged_by_the_node_that_makes_it_and_ends_as_another_event(run: RunDirectory) -> None:
    agent = Agent(run, "n3")
    agent.log.excluded("n3", "gpu-ecc: GPU 1 has errors", NOW_NS + 86_400 * 10**9)
    agent.log.excluded("n3", "gpu-ecc: GPU 1 has errors", None)
    (path,) = Path(run.events).iterdir()
    assert path.name == "n3.i-n3.jsonl"
    (begun, ended), bad = parse_lines(path.read_bytes())
    assert bad == 0
    assert (begun.event, begun.node, begun.until_ns) == ("excluded", "n3", NOW_NS + 86_400 * 10**9)
    assert begun.text == "n3 is excluded for 1 d: gpu-ecc: GPU 1 has errors"
    assert (ended.event, ended.until_ns) == ("no-longer-excluded", None)


def test_what_cannot_be_written_costs_one_line_and_is_written_when_that_works_again(run: RunDirectory) -> None:
    agent, job = Agent(run), Job(2).join()
    Path(run.events).write_text("in the way")
    agent.log.on_state(job.state)
    agent.log.on_state(job.run().state)
    (line,) = agent.lines
    assert line.startswith(f"events cannot be logged in {run.events}/000001.jsonl: ")
    assert line.endswith("; the run goes on")
    Path(run.events).unlink()
    job.fail(1)
    agent.log.on_state(job.coordinate())
    assert logged(run)["000001.jsonl"] == ["attempt", "coordinator", "round", "failure", "round-ended", "restart"]
    assert len(agent.lines) == 1


def test_a_run_directory_that_is_gone_is_not_made_again(run: RunDirectory) -> None:
    Path(run.root).rmdir()
    agent = Agent(run)
    agent.log.on_state(Job(2).join().state)
    assert not Path(run.root).exists()
    assert len(agent.lines) == 1


def test_a_line_that_was_cut_by_a_full_disk_is_written_again_and_the_rest_of_it_left_out(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, job, write = Agent(run), Job(2).join(), os.write

    def cut(fd: int, data: bytes) -> int:
        return write(fd, data[:30])

    monkeypatch.setattr(os, "write", cut)
    agent.log.on_state(job.state)
    monkeypatch.undo()
    agent.log.on_state(job.run().state)
    events, bad = parse_lines(Path(run.events, "000001.jsonl").read_bytes())
    assert [event.event for event in events] == ["attempt", "coordinator", "round"]
    assert bad == 1


def test_a_file_has_a_largest_size(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FILE_LIMIT", 2000)
    agent = Agent(run)
    for number in range(50):
        agent.log.excluded(f"n{number}", "why", NOW_NS)
    (path,) = Path(run.events).iterdir()
    assert 1500 < path.stat().st_size <= 2000
    (line,) = agent.lines
    assert "full size" in line


def test_lines_that_wait_are_bounded(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WAITING_LIMIT", 5)
    agent = Agent(run)

    Path(run.events).write_text("in the way")
    for number in range(50):
        agent.log.excluded(f"n{number}", "why", NOW_NS)
    Path(run.events).unlink()
    agent.log.excluded("last", "why", NOW_NS)
    assert len(logged(run)["n1.i-n1.jsonl"]) == 5


# What is read


def line(event: str, time_ns: int | None = 5, **more: object) -> bytes:
    fields = {"schema": "ftslurm/logged-event", "version": 1, "event": event, "attempt": "7.0", "text": "x"}
    return json.dumps({**fields, "time_ns": time_ns, **more}).encode() + b"\n"


@pytest.mark.parametrize(
    ("data", "events", "bad"),
    [
        (b"", 0, 0),
        (line("round", round=1) + line("end")[:-5], 1, 0),
        (line("round", round=1) + b"\n" + line("end"), 2, 0),
        (line("round", round=1) + b"\0\0\0\n" + line("end"), 2, 0),
        (line("round", round=1) + b'{"schema":"fts\n' + line("end"), 2, 1),
        (line("round", round=1) + b"[1]\n" + b"\xff\n" + line("end"), 2, 2),
        (line("round", round="one") + line("invented-later", colour="red"), 2, 0),
        (line("round").replace(b'"version": 1', b'"version": 9'), 0, 1),
        (b"[" * 100_000 + b"\n", 0, 1),
    ],
)
def test_what_is_torn_or_foreign_costs_only_its_line(data: bytes, events: int, bad: int) -> None:
    found, wrong = parse_lines(data)
    assert (len(found), wrong) == (events, bad)


def test_events_are_in_the_order_of_their_times_and_of_one_moment_in_that_of_cause_and_effect() -> None:
    event = LoggedEvent("round", "7.0", "x", 5, 1)
    events = [
        replace(event, event="restart", time_ns=9),
        replace(event, round=2, time_ns=12),
        replace(event, event="round-ended", time_ns=9),
        replace(event, event="failure", time_ns=8),
        event,
        replace(event, text="the same, of another coordinator"),
        replace(event, event="attempt", time_ns=None),
    ]
    assert [(one.event, one.round, one.text) for one in merged(events)] == [
        *(("round", 1, "x"), ("failure", 1, "x"), ("round-ended", 1, "x"), ("restart", 1, "x"), ("round", 2, "x"))
    ]
    assert len({identity(one) for one in events}) == 6


# `ftslurm history --events`


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that failed once and then ended, whose event log has a failure's line, an exclusion, and a torn one."""
    directory = tmp_path / "ftslurm-runs"
    directory.mkdir()
    builder = RunBuilder(directory, run_id="job-5", job_id="5").round().steps(1, 9)
    builder.fail(3, ValueError("boom"), step=9).stop().round().steps(10, 19).succeed()
    path = builder.close("succeeded", "all ranks succeeded").write()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)
    return path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["--events", *arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def events_in(found: dict[str, object]) -> list[str]:
    events = found["events"]
    assert isinstance(events, list)
    return [event["event"] for event in events]


def test_a_run_without_a_log_has_the_events_that_its_state_has(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys)
    assert (found["schema"], found["run"], found["problems"]) == ("ftslurm/event-history", "job-5", [])
    assert events_in(found) == ["round", "failure", "round-ended", "round", "round-ended", "end"]
    assert shown(capsys, "5") == shown(capsys, str(story)) == shown(capsys, "job-5") == found


def test_what_only_the_log_has_is_added_in_its_place(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (story / "events").mkdir(0o700)
    (story / "events/n1.i.jsonl").write_bytes(line("excluded", 1, node="n1") + b"{\n" + line("end")[:9])
    (story / "events/note.txt").write_text("not a part of it")
    found = shown(capsys)
    assert events_in(found)[0] == "excluded"
    assert found["problems"] == ["events/n1.i.jsonl: 1 line that cannot be read"]


def test_what_followed_from_an_attempts_end_is_read_from_its_verdict(
    story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (attempt,) = (story / "attempts").iterdir()
    name, end_ns = attempt.name, 2 * 10**18
    verdict = AttemptVerdict(name, end_ns, "n1", "requeue", "node", "requeued: node n2 was lost (1 of 3)", 1)
    (attempt / "verdict.json").write_bytes(write_record(verdict))
    done = Requeued(name, end_ns + 1, "failed", problem="Slurm is busy")
    (attempt / "requeue.json").write_bytes(write_record(done))
    found = shown(capsys)
    assert events_in(found)[-2:] == ["verdict", "requeue"]
    events = found["events"]
    assert isinstance(events, list)
    assert (events[-2]["text"], events[-2]["cause"]) == ("requeued: node n2 was lost (1 of 3)", "node")
    assert (events[-1]["text"], events[-1]["outcome"]) == ("failed: Slurm is busy", "failed")
    (attempt / "verdict.json").write_text("{")
    assert "verdict" not in events_in(shown(capsys))


def test_a_log_that_is_a_link_or_another_users_is_not_followed(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (story / "events").mkdir(0o700)
    (story / "target").write_bytes(line("excluded", 1))
    (story / "events/000001.jsonl").symlink_to(story / "target")
    assert "excluded" not in events_in(shown(capsys))


def test_as_text_each_event_is_a_line_and_nothing_in_it_acts_on_a_terminal(
    story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (story / "events").mkdir(0o700)
    hostile = line("excluded", 1).replace(b'"x"', b'"\\u001b]0;x\\u0007 n1 is excluded"')
    (story / "events/000001.jsonl").write_bytes(hostile + line("\x1b[31mred", 2))
    assert main(["--events"]) == 0
    out = capsys.readouterr().out
    assert out.isascii() and "\x1b" not in out
    first, *lines = out.splitlines()
    assert first == "8 events of job-5"
    assert lines[0].endswith("n1 is excluded")
    assert any("round 1" in text and "failure" in text and "ValueError: boom" in text for text in lines)


def test_the_run_may_be_named_before_the_option(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["job-5", "--events"], ["5", "--events"], [str(story.parent), "--events"], ["--events", "5"]):
        assert main(arguments) == 0, arguments
        assert capsys.readouterr().out.startswith("6 events of job-5")


def test_of_many_events_the_newest_are_shown_and_all_on_request(
    story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (story / "events").mkdir(0o700)
    many = b"".join(line("excluded", 1 + number, node=f"n{number}") for number in range(200))
    (story / "events/000001.jsonl").write_bytes(many)
    assert main(["--events"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 102
    assert main(["--events", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 207


def test_since_leaves_out_earlier_events(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (story / "events").mkdir(0o700)
    (story / "events/000001.jsonl").write_bytes(line("excluded", 1))
    assert "excluded" in events_in(shown(capsys))
    assert "excluded" not in events_in(shown(capsys, "--since", "3650d"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--events", "--failed"), "--events: expected no --failed with it"),
        (("--events", "-o", "x.html"), "--events: expected no page with it"),
        (("--events", "nowhere"), "nowhere"),
    ],
)
def test_wrong_usage_is_one_line(
    story: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert main(arguments) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert expected in error

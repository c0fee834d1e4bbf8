"""The end of a job: what is waited for, what ends it when the batch script died with its node, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftslurm.job_end.after_run import needs_scheduler_query, save_scheduler_record
from ftslurm.job_end.attempts import attempt_of_start, publish_end
from ftslurm.job_end.await_end import await_end
from ftslurm.job_end.batch_host import PATIENCE_S, Survivor, await_loss, end_job, is_lost
from ftslurm.job_end.departures import Departures
from ftslurm.job_end.outcome import outcome_of
from ftslurm.records.attempt import Attempt, StepEnd
from ftslurm.records.codec import write_record
from ftslurm.records.node import first_record
from ftslurm.records.state import LEFT, RUNNING, LostNode, State
from ftslurm.rendezvous.closing import close
from ftslurm.rendezvous.fold import begin
from ftslurm.rendezvous.observation import RunSpec
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.environment import SlurmJob, from_environ
from ftslurm.slurm.errors import SlurmRefused, SlurmUnreachable
from ftslurm.slurm.facts import JobFacts, NodeFacts
from ftslurm.testing.clock import VirtualClock
from tests.unit.fake_slurm import FakeSlurm

STATE = begin(None, RunSpec("r", "7.0", ("n1", "n2", "n3"), 1, 3, 3), "n2", "b", 0)
DONE = close(STATE, "succeeded", "", 0, 0)
JOB = JobFacts("7", "RUNNING", batch_host="n1", node_list=("n1", "n2", "n3"))
S = 1_000_000_000


def slurm_job() -> SlurmJob:
    found = from_environ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"})
    assert found is not None
    return found


class World:
    """A run directory in which n1 runs the batch script, a Slurm, and a clock; stories happen while the code sleeps."""

    def __init__(self, directory: Path) -> None:
        self.run = RunDirectory(str(directory))
        self.fs = PosixFileSystem()
        for name in ("nodes", "state", "attempts/7.0"):
            (directory / name).mkdir(parents=True)
        self.clock = VirtualClock()
        self.slurm = FakeSlurm([replace(JOB, std_out=str(directory / "slurm-7.out"))])
        self.slurm.nodes = dict.fromkeys(("n1", "n2", "n3"), "ALLOCATED")
        self.out = directory / "slurm-7.out"
        self.out.write_text("before\n")
        self.counter = 0
        self.stories: list[tuple[float, Callable[[], None]]] = []
        self.asked_at: list[float] = []
        self.node_timeout_s = 4.0

    def say(self, node: str = "n1", status: str = RUNNING, attempt: str = "7.0") -> None:
        """Let a node's agent publish its record."""
        self.counter += 1
        record = replace(first_record(node, "i", attempt, 0, 1), status=status, counter=self.counter)
        publish(self.fs, self.run.node_file(node), record.encode())

    def at(self, second: float, happens: Callable[[], None]) -> None:
        self.stories.append((second, happens))

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        due = [story for story in self.stories if story[0] <= self.clock.now()]
        self.stories = [story for story in self.stories if story not in due]
        for _, happens in due:
            happens()
        assert self.clock.now() < 3 * PATIENCE_S, "waits for ever"

    def connect(self) -> FakeSlurm:
        self.asked_at.append(self.clock.now())
        return self.slurm

    def departures(self) -> Departures:
        return Departures(self.fs, self.run, "7.0", self.node_timeout_s / 2, self.clock.now)

    def survivor(self, node: str = "n2", first: bool = True) -> Survivor:
        return Survivor(slurm_job(), node, "n1", 100 * S, first, self.node_timeout_s)

    def await_loss(self, node: str = "n2", first: bool = True) -> JobFacts | None:
        survivor = self.survivor(node, first)
        return await_loss(survivor, self.departures(), self.connect, self.clock.now, self.sleep)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# Is the batch host lost?


def test_an_agent_that_has_left_ends_the_wait_and_slurm_is_not_asked(world: World) -> None:
    world.say()
    world.at(30.0, lambda: world.say(status=LEFT))
    for second in range(1, 30):
        world.at(float(second), world.say)
    assert world.await_loss() is None
    assert world.asked_at == [], "its workers took half a minute to stop, and it published all the while"


def test_a_batch_host_that_is_silent_and_down_to_slurm_is_lost(world: World) -> None:
    world.say()
    world.slurm.nodes["n1"] = "DOWN+NOT_RESPONDING"
    found = world.await_loss()
    assert found is not None and found.job_id == "7"
    assert 4.0 <= world.asked_at[0] < 6.0


def test_it_is_lost_as_soon_where_nodes_are_soon_given_up(world: World) -> None:
    world.node_timeout_s = 0.5
    world.say()
    world.slurm.nodes["n1"] = "DOWN"
    assert world.await_loss() is not None
    assert world.asked_at[0] < 1.0


def test_one_that_never_published_in_this_attempt_is_lost_alike(world: World) -> None:
    world.say(status=LEFT, attempt="6.0")
    world.slurm.nodes["n1"] = "IDLE*"
    assert world.await_loss() is not None


def test_a_silent_agent_on_a_node_that_slurm_takes_for_healthy_is_left_to_ftsrun(world: World) -> None:
    world.say()
    assert world.await_loss() is None
    assert world.clock.now() >= PATIENCE_S


def test_slurm_may_take_its_time_to_notice(world: World) -> None:
    world.say()
    world.at(300.0, lambda: world.slurm.nodes.update(n1="DOWN"))
    assert world.await_loss() is not None
    assert world.clock.now() < 320.0


def test_an_agent_that_publishes_again_is_alive_whatever_slurm_shows(world: World) -> None:
    world.say()
    world.slurm.nodes["n1"] = "DOWN"
    for second in range(1, 60):
        world.at(float(second), world.say)
    world.at(60.0, lambda: world.say(status=LEFT))
    assert world.await_loss() is None


def test_those_further_back_in_line_ask_slurm_later(world: World) -> None:
    world.say()
    world.slurm.nodes["n1"] = "DOWN"
    world.await_loss("n3", first=False)
    assert world.asked_at[0] >= 4.0 + 10.0


def test_salloc_has_no_batch_script_whose_end_the_agents_could_take_over(world: World) -> None:
    world.say()
    world.slurm.nodes["n1"] = "DOWN"
    world.slurm.put(replace(JOB, batch_host=None))
    assert world.await_loss() is None


def test_a_controller_that_does_not_answer_is_asked_again(world: World) -> None:
    world.say()
    world.slurm.nodes["n1"] = "DOWN"
    world.slurm.fail("job", SlurmUnreachable("down"), times=3)
    assert world.await_loss() is not None
    assert len(world.asked_at) == 4


@pytest.mark.parametrize(
    ("job", "node", "lost"),
    [
        (JOB, NodeFacts("n1", "ALLOCATED", None, 50 * S), False),
        (JOB, NodeFacts("n1", "ALLOCATED", None, 101 * S), True),
        (JOB, NodeFacts("n1", "MIXED+DRAIN", None, None), False),
        (JOB, NodeFacts("n1", "ALLOCATED+NOT_RESPONDING", None, None), True),
        (JOB, None, True),
        (replace(JOB, node_list=("n2", "n3")), NodeFacts("n1", "IDLE", None, None), True),
        (replace(JOB, node_list=("n2",), state="COMPLETING"), NodeFacts("n1", "IDLE", None, None), False),
    ],
    ids=["healthy", "rebooted", "drained", "not responding", "unknown", "taken out of the job", "job is ending"],
)
def test_slurm_has_lost_the_batch_host_if(job: JobFacts, node: NodeFacts | None, lost: bool) -> None:
    assert is_lost(job, node, "n1", 100 * S) is lost


# The end of the job


def finish(world: World, state: State, claimed: bool = True, job: JobFacts | None = None) -> list[str]:
    facts = job or world.slurm.jobs["7"]
    return end_job(
        world.survivor(), state, facts, world.slurm, lambda: claimed, lambda: "the report\n", world.clock.advance
    )


def test_the_report_is_added_to_the_jobs_output_and_the_job_is_completed(world: World) -> None:
    assert finish(world, DONE) == []
    assert world.out.read_text() == "before\nthe report\n"
    assert world.slurm.jobs["7"].state == "COMPLETED"


def test_a_job_whose_run_failed_ends_with_its_exit_code(world: World) -> None:
    assert finish(world, close(STATE, "failed", "", 78, 0)) == []
    assert (world.slurm.jobs["7"].state, world.slurm.jobs["7"].exit_code) == ("FAILED", (78, 0))


def test_a_job_that_was_stopped_from_outside_is_cancelled(world: World) -> None:
    assert finish(world, close(STATE, "stopped", "", 143, 0)) == []
    assert world.slurm.jobs["7"].state == "CANCELLED"


def test_a_job_that_slurm_is_ending_already_gets_its_report_alone(world: World) -> None:
    ending = replace(world.slurm.jobs["7"], state="COMPLETING")
    assert finish(world, close(STATE, "stopped", "", 143, 0), job=ending) == []
    assert world.out.read_text() == "before\nthe report\n"
    assert world.slurm.calls == []


def test_an_agent_that_does_not_print_leaves_the_one_that_does_time_to_end_the_job(world: World) -> None:
    assert finish(world, DONE, claimed=False) == []
    assert world.out.read_text() == "before\n"
    assert world.clock.now() >= 30.0


def test_without_slurms_library_the_job_is_cancelled(world: World) -> None:
    world.slurm.fail("complete", SlurmRefused("no libslurm"))
    assert finish(world, DONE) == []
    assert world.slurm.jobs["7"].state == "CANCELLED"


def test_a_controller_that_is_down_is_waited_for(world: World) -> None:
    world.slurm.fail("complete", SlurmUnreachable("down"), times=5)
    assert finish(world, DONE) == []
    assert world.slurm.jobs["7"].state == "COMPLETED"


def test_one_that_stays_down_is_given_up_with_a_message(world: World) -> None:
    world.slurm.fail("complete", SlurmUnreachable("down"), times=None)
    (problem,) = finish(world, DONE)
    assert "down; scancel 7" in problem
    assert world.slurm.jobs["7"].state == "RUNNING"


def test_an_output_file_that_is_gone_or_a_refusal_of_slurms_is_reported_and_does_no_harm(world: World) -> None:
    world.out.unlink()
    world.slurm.fail("complete", SlurmRefused("no libslurm"))
    world.slurm.fail("cancel", SlurmRefused("not allowed"))
    first, second = finish(world, DONE)
    assert "only in the run directory" in first
    assert "not allowed" in second and "scancel 7" in second


def test_only_one_record_of_an_attempts_end_stands(world: World) -> None:
    assert publish_end(world.fs, world.run, StepEnd("7.0", 1, None, None))
    assert not publish_end(world.fs, world.run, StepEnd("7.0", 2, 0, None))


# ftsrun waits for the run, not for srun alone


def started(world: World, start: str = "s1", attempt: str = "7.0") -> None:
    """Let the agents of a start have written their attempt's record."""
    Path(world.run.attempt(attempt)).mkdir(exist_ok=True)
    Path(world.run.attempt_file(attempt)).write_bytes(write_record(Attempt(attempt, start=start)))


def closed(world: World, state: State = DONE) -> None:
    FencedCell(world.fs, world.run.state).set(state.encode(), None)


def wait(world: World, start: str = "s1") -> float:
    await_end(world.fs, world.run, start, world.node_timeout_s, world.clock.now, world.sleep)
    return world.clock.now()


def test_it_is_over_when_the_state_is_closed_and_all_agents_have_left(world: World) -> None:
    world.say("n1")
    world.say("n2")
    started(world)
    world.at(100.0, lambda: closed(world))
    world.at(100.5, lambda: world.say("n1", LEFT))
    for tenth in range(300):
        # n2's workers take their time to stop.
        world.at(100.0 + tenth / 10, lambda: world.say("n2"))
    world.at(130.5, lambda: world.say("n2", LEFT))
    assert 130.0 < wait(world) < 133.0


def test_an_agent_that_fell_silent_is_waited_for_no_longer_than_the_node_time_out(world: World) -> None:
    world.say("n1")
    world.say("n2")
    started(world)
    closed(world)
    world.at(1.0, lambda: world.say("n1", LEFT))
    assert 4.0 <= wait(world) < 7.0


def test_so_it_is_where_nodes_are_soon_given_up(world: World) -> None:
    world.node_timeout_s = 0.25
    world.say("n1")
    started(world)
    closed(world)
    assert wait(world) < 3.0


def test_an_earlier_attempt_that_is_closed_does_not_end_this_one(world: World) -> None:
    closed(world)
    world.say("n1", LEFT)
    world.at(50.0, lambda: started(world, "s2", "7.0+1"))
    world.at(
        80.0, lambda: FencedCell(world.fs, world.run.state).set(replace(DONE, attempt="7.0+1").encode(), 1) and None
    )
    assert wait(world, "s2") >= 80.0


def test_a_directory_that_is_away_for_a_while_is_no_end(world: World) -> None:
    state, away = Path(world.run.state), Path(world.run.root) / "away"
    world.say("n1", LEFT)
    started(world)
    state.rename(away)
    world.at(60.0, lambda: away.rename(state) and None)
    world.at(61.0, lambda: closed(world))
    assert 60.0 < wait(world) < 65.0


def test_an_attempt_is_known_by_its_start(world: World) -> None:
    started(world, "s1", "7.0")
    started(world, "s2", "7.0+1")
    (Path(world.run.root) / "attempts" / "8.0").mkdir()
    assert attempt_of_start(world.fs, world.run, "s1") == "7.0"
    assert attempt_of_start(world.fs, world.run, "s2") == "7.0+1"
    assert attempt_of_start(world.fs, world.run, "s3") is None


# The exit code


def report(exit_code: int | None, *attempts: str) -> dict[str, Any]:
    return {"exit_code": exit_code, "run": {"attempts": list(attempts)}}


@pytest.mark.parametrize(
    ("found", "attempt", "step_code", "code", "reported", "text"),
    [
        (report(0, "7.0"), "7.0", 0, 0, True, ""),
        (report(1, "7.0"), "7.0", 1, 1, True, ""),
        (report(0, "7.0"), "7.0", 1, 0, True, "srun ended with code 1, but the job itself succeeded"),
        (report(0, "7.0"), "7.0", None, 0, True, ""),
        (report(0, "7.0"), None, 1, 1, False, "no rank was started (srun ended with code 1)"),
        (report(0, "7.0"), None, 0, 1, False, "no rank was started"),
        (report(0, "7.0"), "8.0", 1, 1, False, "attempt 8.0 took no part in the run /r: attempt 7.0 owns it"),
        (report(0, "7.0", "8.0"), "7.0", 1, 1, False, "attempt 8.0 has taken over"),
        (report(None, "7.0"), "7.0", 137, 137, True, ""),
        (report(None, "7.0"), "7.0", None, 1, True, ""),
        (report(None, "7.0"), "7.0", 0, 1, True, ""),
        (None, None, 1, 1, False, "/r is no longer readable"),
        (None, None, None, 1, False, "/r is no longer readable"),
    ],
)
def test_an_attempt_is_judged_by_its_own_end(
    found: dict[str, Any] | None, attempt: str | None, step_code: int | None, code: int, reported: bool, text: str
) -> None:
    outcome = outcome_of(found, "/r", attempt, step_code)
    assert (outcome.exit_code, outcome.reported) == (code, reported)
    assert text in outcome.problem
    assert bool(text) == bool(outcome.problem)


def test_an_attempt_that_was_stopped_and_did_not_end_in_time_has_the_signals_code() -> None:
    assert outcome_of(report(None, "7.0"), "/r", "7.0", None, "SIGTERM").exit_code == 143


# The scheduler query


def test_slurm_is_queried_only_for_a_run_that_was_stopped_or_lost_a_node() -> None:
    lost = replace(STATE, lost=(LostNode("n2", "b", 1, 0, 8.0),))
    assert needs_scheduler_query(close(STATE, "stopped", "SIGTERM from outside", 143, 0))
    assert needs_scheduler_query(close(lost, "failed", "", 1, 0))
    assert not needs_scheduler_query(close(STATE, "failed", "", 1, 0))
    assert not needs_scheduler_query(close(STATE, "succeeded", "", 0, 0))
    assert not needs_scheduler_query(STATE)


def test_the_scheduler_record_is_written_to_the_attempts_directory_even_without_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "attempts" / "7.0").mkdir(parents=True)
    save_scheduler_record(slurm_job(), STATE, RunDirectory(str(tmp_path)))
    written = json.loads((tmp_path / "attempts" / "7.0" / "scheduler.json").read_text())
    assert (written["attempt"], written["job_id"]) == ("7.0", "7")
    assert written["problem"].startswith("scontrol was not found")
    save_scheduler_record(slurm_job(), STATE, RunDirectory(str(tmp_path / "gone")))

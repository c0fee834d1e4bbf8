"""Carrying out a verdict: once, whatever Slurm answers, and whoever tries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.job_end.settle import settle
from ftslurm.job_end.start_again import PATIENCE_S, JobAccess, start_again
from ftslurm.records import cause
from ftslurm.records.attempt import Attempt, SchedulerView
from ftslurm.records.codec import write_record
from ftslurm.records.state import LostNode
from ftslurm.records.verdict import END, REQUEUE, AttemptVerdict, Requeued
from ftslurm.rendezvous.closing import close
from ftslurm.rendezvous.fold import begin
from ftslurm.rendezvous.observation import RunSpec
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import publish, read_published
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.environment import from_environ
from ftslurm.slurm.errors import SlurmError, SlurmRefused, SlurmTimeout, SlurmUnreachable
from ftslurm.slurm.facts import JobFacts
from tests.unit.fake_slurm import FakeSlurm

RUNNING = JobFacts("7", "RUNNING", restarts=0, batch_host="n1", requeue=True)
VERDICT = AttemptVerdict("7.0", 0, "n1", REQUEUE, cause.NODE, "requeued: node n2 was lost (1 of 3)", 1)


class Resubmissions:
    def __init__(self, error: SlurmError | None = None) -> None:
        self.error = error
        self.runs: list[tuple[str, str]] = []

    def submit(self, job_id: str, run_id: str, nodes: int) -> str:
        assert nodes == 2
        if self.error is not None:
            raise self.error
        self.runs.append((job_id, run_id))
        return "8"


class World:
    """A run directory, a Slurm with job 7, and the processes that carry out its verdict."""

    def __init__(self, directory: Path) -> None:
        self.run = RunDirectory(str(directory))
        self.fs = PosixFileSystem()
        (directory / "attempts" / "7.0").mkdir(parents=True)
        self.slurm = FakeSlurm([RUNNING])
        self.resubmissions = Resubmissions()
        self.slept = 0.0

    def access(self, by: str = "ftsrun") -> JobAccess:
        job = from_environ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"})
        assert job is not None
        return JobAccess(by, job, "job-7", self.slurm, self.resubmissions, lambda: 5, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def start_again(self, verdict: AttemptVerdict = VERDICT, by: str = "ftsrun") -> Requeued | None:
        return start_again(self.fs, self.run, verdict, self.access(by))

    def requests(self) -> list[str]:
        return [name for name, _ in self.slurm.calls if name not in ("job", "max_batch_requeue")]

    def recorded(self) -> Requeued:
        return read_published(self.fs, self.run.requeue_file("7.0"), Requeued)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def outcome(done: Requeued | None) -> str | None:
    return done.outcome if done is not None else None


def test_the_job_is_requeued_and_that_is_recorded_before_slurm_signals_this_process(world: World) -> None:
    recorded = []
    requeue = world.slurm.requeue

    def observed(job_id: str) -> None:
        recorded.append(world.recorded().outcome)
        requeue(job_id)

    world.slurm.requeue = observed  # type: ignore[method-assign]
    assert outcome(world.start_again()) == "requeued"
    assert recorded == ["requeued"]


def test_of_several_processes_only_the_first_acts(world: World) -> None:
    assert outcome(world.start_again()) == "requeued"
    assert world.start_again(by="n2") is None
    assert world.requests() == ["requeue"]


def test_a_verdict_that_the_job_ends_does_nothing(world: World) -> None:
    assert world.start_again(replace(VERDICT, action=END)) is None
    assert world.slurm.calls == []


@pytest.mark.parametrize("facts", [replace(RUNNING, restarts=1), replace(RUNNING, state="PENDING", restarts=1)])
def test_a_job_that_slurm_has_requeued_meanwhile_is_left_alone(world: World, facts: JobFacts) -> None:
    world.slurm.put(facts)
    assert outcome(world.start_again()) == "by-slurm"
    assert world.requests() == []
    assert world.recorded().outcome == "by-slurm"


def test_a_requeue_whose_reply_was_lost_is_not_repeated(world: World) -> None:
    requeue = world.slurm.requeue

    def lost(job_id: str) -> None:
        requeue(job_id)
        raise SlurmTimeout("no reply")

    world.slurm.requeue = lost  # type: ignore[method-assign]
    assert outcome(world.start_again()) == "by-slurm"
    assert world.requests() == ["requeue"]


def test_a_job_submitted_with_no_requeue_is_allowed_it(world: World) -> None:
    world.slurm.put(replace(RUNNING, requeue=False))
    assert outcome(world.start_again()) == "requeued"
    assert world.requests() == ["allow_requeue", "requeue"]


def test_slurm_may_need_some_time_until_it_allows_it(world: World) -> None:
    world.slurm.put(replace(RUNNING, requeue=False))
    world.slurm.fail("allow_requeue", SlurmRefused("the DB index is being set, try again in a bit"), times=2)
    assert outcome(world.start_again()) == "requeued"
    assert world.slept == 10.0


def test_or_never_allow_it(world: World) -> None:
    world.slurm.put(replace(RUNNING, requeue=False))
    world.slurm.fail("allow_requeue", SlurmRefused("the DB index is being set, try again in a bit"), times=None)
    assert outcome(world.start_again()) == "resubmitted"


def test_where_slurm_refuses_the_script_is_submitted_again(world: World) -> None:
    world.slurm.fail("requeue", SlurmRefused("not here"))
    done = world.start_again()
    assert done == Requeued("7.0", 5, "resubmitted", "8", "not here")
    assert world.resubmissions.runs == [("7", "job-7")]
    assert world.recorded() == done


def test_where_slurm_would_hold_the_job_the_script_is_submitted_again(world: World) -> None:
    world.slurm.most_requeues = 2
    world.slurm.put(replace(RUNNING, restarts=0))
    assert outcome(world.start_again()) == "requeued"
    # Its third start.
    (Path(world.run.root) / "attempts" / "7.2").mkdir()
    publish(world.fs, world.run.attempt_file("7.2"), write_record(Attempt("7.2", restart_count=2)))
    world.slurm.put(replace(RUNNING, restarts=2))
    assert outcome(world.start_again(replace(VERDICT, attempt="7.2"))) == "resubmitted"
    assert world.requests() == ["requeue"]


def test_that_neither_is_possible_is_recorded_with_both_reasons(world: World) -> None:
    world.slurm.fail("requeue", SlurmRefused("not here"))
    world.resubmissions.error = SlurmRefused("nor there")
    done = world.start_again()
    assert done is not None and done.outcome == "failed"
    assert done.problem == "not here; nor can it be submitted again: nor there"


def test_an_interactive_job_has_no_script_to_start_again(world: World) -> None:
    # Also while Slurm ends it at its time limit.
    for state in ("RUNNING", "COMPLETING", "TIMEOUT"):
        (Path(world.run.root) / "attempts" / "7.0" / "claim.json").unlink(missing_ok=True)
        world.slurm.put(replace(RUNNING, state=state, batch_host=None, batch=False))
        assert outcome(world.start_again()) == "failed"
        assert world.requests() == [] and world.resubmissions.runs == []


def test_the_verdict_on_an_interactive_job_says_that_it_cannot_start_again(world: World) -> None:
    view = SchedulerView("7.0", 2, "7", state="NODE_FAIL", batch=False)
    found = settle(world.fs, world.run, closed(), view, "n1", 3)
    assert (found.action, found.exit_code) == (END, 1)
    assert found.text == "not requeued: node n2 was lost, and the job has no batch script (salloc)"


def test_a_controller_that_is_down_is_waited_for(world: World) -> None:
    world.slurm.fail("job", SlurmUnreachable("down"), times=3)
    assert outcome(world.start_again()) == "requeued"
    assert world.slept == 15.0


def test_but_not_for_ever(world: World) -> None:
    world.slurm.fail("job", SlurmUnreachable("down"), times=None)
    assert outcome(world.start_again()) == "failed"
    assert world.slept == PATIENCE_S


# The verdict's file


def closed(attempt: str = "7.0", attempts: tuple[str, ...] = ("7.0",)):
    state = begin(None, RunSpec("r", attempt, ("n1", "n2"), 2, 2, 3), "n1", "a", 0)
    state = replace(close(state, "failed", "too few nodes", 1, 0, cause.NODE), attempts=attempts, reached=40)
    return replace(state, lost=(LostNode("n2", "b", 1, 0, 9.0),))


def test_the_first_verdict_stands(world: World) -> None:
    first = settle(world.fs, world.run, closed(), None, "n1", 3)
    assert (first.action, first.text) == (REQUEUE, "requeued: node n2 was lost (1 of 3)")
    assert settle(world.fs, world.run, closed(), None, "n2", 4) == first


def test_the_option_and_the_verdicts_of_earlier_attempts_count(world: World) -> None:
    publish(world.fs, world.run.attempt_file("7.0"), write_record(Attempt("7.0", options={"requeue": "interrupted"})))
    assert settle(world.fs, world.run, closed(), None, "n1", 3).action == END
    attempts = ("7.0", "7.1", "7.2")
    for number, attempt in enumerate(attempts[1:], 1):
        (Path(world.run.root) / "attempts" / attempt).mkdir()
        state = replace(closed(attempt, attempts[: number + 1]), reached_before=40)
        found = settle(world.fs, world.run, state, None, "n1", 3)
    assert (found.action, found.exit_code) == (END, 78)

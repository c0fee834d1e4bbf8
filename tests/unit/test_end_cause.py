"""Why an attempt ended, and how far the run has got, as the fenced state has it: facts for requeue decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fold_histories import Job

from ftslurm.monitor.timeouts import Longest
from ftslurm.records import cause
from ftslurm.records.node import RankVitals, Vitals
from ftslurm.records.state import RUNNING, SUCCEEDED, State
from ftslurm.rendezvous.fold import begin
from ftslurm.rendezvous.observation import RunSpec


def cause_of(job: Job) -> str:
    assert job.state.closed is not None, job.state.phase
    return job.state.closed.cause


def succeeds(job: Job) -> None:
    job.run().publish(1, status=SUCCEEDED).publish(2, status=SUCCEEDED).coordinate()


def fails(job: Job) -> None:
    job.run().fail(1).coordinate()


def hangs(job: Job) -> None:
    job.run().hang(1).coordinate()
    job.collect_stacks(1, 2).coordinate()


def ends_with_78(job: Job) -> None:
    job.run().fail(1, code=78).coordinate()


def loses_a_node(job: Job) -> None:
    job.run().silent["n2"] = 9
    job.coordinate()


def is_unhealthy(job: Job) -> None:
    job.publish(2, unhealthy="no GPU").coordinate(forming_s=601)


def is_terminated(job: Job) -> None:
    job.run().request_stop(1, 2).coordinate(stop_requested_s=3)


def is_interrupted_by_a_user(job: Job) -> None:
    job.run().request_stop(1, 2, name="SIGINT").coordinate(stop_requested_s=3)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (succeeds, cause.SUCCEEDED),
        (fails, cause.FAILURE),
        (hangs, cause.HANG),
        (ends_with_78, cause.NON_RETRYABLE),
        (loses_a_node, cause.NODE),
        (is_unhealthy, cause.UNHEALTHY),
        (is_terminated, cause.INTERRUPTED),
        (is_interrupted_by_a_user, cause.CANCELLED),
    ],
)
def test_the_closed_state_names_the_cause_of_the_end(history: Callable[[Job], None], expected: str) -> None:
    job = Job(2, restarts=0).join()
    history(job)
    assert cause_of(job) == expected


def test_a_node_that_is_lost_after_its_peers_failed_is_the_cause_if_too_few_are_left() -> None:
    job = Job(2, restarts=3).join().run().fail(1)
    job.silent["n2"] = 4
    job.coordinate()
    job.silent["n2"] = 9
    job.ready(1).coordinate(forming_s=601)
    assert cause_of(job) == cause.NODE


# How far the run has got


def at_step(step: int | None, round_: int = 1) -> Vitals:
    return Vitals(round_, Longest(), (RankVitals(0, step, ()),), 0)


def test_the_state_keeps_the_highest_step_of_the_run_from_vitals_and_failures() -> None:
    job = Job(2).join().run()
    job.publish(1, vitals=at_step(30)).publish(2, vitals=at_step(31))
    job.fail(1)  # at step 40, more recent than the vitals
    assert job.coordinate().reached == 40


def test_vitals_of_another_round_do_not_count() -> None:
    job = Job(2).join().run().publish(1, vitals=at_step(50, round_=7))
    job.silent["n2"] = 9
    assert job.coordinate().reached is None


def after(old: State | None, attempt: str = "12.1", reached: int | None = None) -> State:
    return begin(old, RunSpec("r", attempt, ("n1", "n2"), 2, 2, 3), "n1", "i9", 0, reached)


def ended(reached: int | None, before: int | None, by: str, used: int = 2) -> State:
    state = Job(2).join().state
    closed = replace(Job(2, restarts=0).join().run().fail(1).coordinate(), restarts_used=used)
    assert closed.closed is not None
    return replace(
        closed, reached=reached, reached_before=before, closed=replace(closed.closed, cause=by), expected=state.expected
    )


def test_a_requeued_attempt_has_gained_a_step_only_beyond_those_of_earlier_attempts() -> None:
    state = after(ended(40, None, cause.NODE))
    assert (state.reached, state.reached_before, state.gained) == (40, 40, False)
    assert replace(state, reached=41).gained is True
    assert after(None).gained is None


def test_the_steps_of_an_attempt_that_could_not_record_its_end_count() -> None:
    running = replace(ended(40, 20, cause.NODE), phase=RUNNING, closed=None)
    assert after(running, reached=60).reached_before == 60
    assert after(running, reached=30).reached_before == 40


@pytest.mark.parametrize(
    ("reached", "before", "by", "used"),
    [
        (40, 40, cause.NODE, 2),  # not a step further
        (40, 40, cause.INTERRUPTED, 2),
        (41, 40, cause.NODE, 0),
        (40, None, cause.NODE, 0),
        (None, None, cause.NODE, 0),  # unknown
        (40, 40, cause.FAILURE, 0),  # the user has started it again
    ],
)
def test_the_restart_budget_is_kept_over_a_requeue_until_a_step_is_gained(
    reached: int | None, before: int | None, by: str, used: int
) -> None:
    assert after(ended(reached, before, by)).restarts_used == used

"""Why an attempt ended, when Slurm's data on its job is considered too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fold_histories import Job

from ftslurm.job_end.end_cause import cause_of_end, with_lost_step
from ftslurm.records import cause
from ftslurm.records.attempt import SchedulerView
from ftslurm.records.state import LostNode, State

HOUR = 3600 * 10**9
VIEW = SchedulerView("12.0", 10 * HOUR, "12", state="COMPLETING", exit_code=0, signal=0, restarts=0)


def closed(by: str) -> State:
    state = Job(2, restarts=0).join().run().fail(1).coordinate()
    assert state.closed is not None
    return replace(state, closed=replace(state.closed, cause=by, reason="SIGTERM from outside"))


def interrupted(view: SchedulerView | None) -> tuple[str, str]:
    return cause_of_end(closed(cause.INTERRUPTED), view, 10 * HOUR)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (None, (cause.INTERRUPTED, "SIGTERM from outside")),
        (replace(VIEW, state=None, problem="no answer"), (cause.INTERRUPTED, "SIGTERM from outside")),
        (VIEW, (cause.CANCELLED, "cancelled by a user")),
        (replace(VIEW, restarts=1), (cause.REQUEUED, "SIGTERM from outside")),
        (replace(VIEW, state="PENDING", restarts=1), (cause.REQUEUED, "SIGTERM from outside")),
        (replace(VIEW, reason="TimeLimit", time_limit_s=60), (cause.TIME_LIMIT, "time limit of 0:01:00 reached")),
        (replace(VIEW, state="PREEMPTED"), (cause.PREEMPTED, "preempted")),
        # In its grace time the job still runs.
        (replace(VIEW, state="RUNNING", preempted_ns=9 * HOUR), (cause.PREEMPTED, "preempted")),
        # The signal of `sbatch --signal=TERM@300`.
        (
            replace(VIEW, state="RUNNING", end_ns=10 * HOUR + HOUR // 12),
            (cause.TIME_LIMIT, "the job's time is nearly over"),
        ),
        # The same signal by hand, just after the start of a short job.
        (
            replace(VIEW, state="RUNNING", start_ns=10 * HOUR - HOUR // 200, end_ns=10 * HOUR + HOUR // 8),
            (cause.INTERRUPTED, "SIGTERM from outside"),
        ),
        # scancel --signal=TERM, hours before the end
        (replace(VIEW, state="RUNNING", end_ns=13 * HOUR), (cause.INTERRUPTED, "SIGTERM from outside")),
        (replace(VIEW, reason="NodeDown", exit_code=1), (cause.NODE, "node failed (Slurm: COMPLETING)")),
    ],
)
def test_slurm_explains_a_signal_from_outside(view: SchedulerView | None, expected: tuple[str, str]) -> None:
    assert interrupted(view) == expected


def test_what_the_agents_know_themselves_stands() -> None:
    for by in (cause.FAILURE, cause.NON_RETRYABLE, cause.CANCELLED, cause.SUCCEEDED):
        assert cause_of_end(closed(by), replace(VIEW, reason="TimeLimit"), 0)[0] == by


def test_lost_nodes_are_named() -> None:
    lost = (LostNode("n2", "i2", 1, 0, 9.0), LostNode("n3", "i3", 1, 0, 9.0))
    state = closed(cause.NODE)
    assert cause_of_end(replace(state, lost=lost[:1]), None, 0) == (cause.NODE, "node n2 was lost")
    assert cause_of_end(replace(state, lost=lost), None, 0) == (cause.NODE, "nodes n2, n3 were lost")


def test_a_run_whose_agents_ended_without_closing_it_has_lost_its_step() -> None:
    state = with_lost_step(Job(2, restarts=0).join().run().coordinate(), 233, 10 * HOUR)
    assert cause_of_end(state, None, 10 * HOUR) == (cause.NODE, "its step was lost (srun ended with code 233)")

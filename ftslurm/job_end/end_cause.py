"""The cause of an attempt's end, from the closed state and Slurm's data on the job (pure)."""

from __future__ import annotations

from ftslurm.records.attempt import SchedulerView
from ftslurm.records.cause import (
    CANCELLED,
    FAILURE,
    HANG,
    INTERRUPTED,
    NETWORK,
    NODE,
    PREEMPTED,
    REQUEUED,
    SUCCEEDED,
    TIME_LIMIT,
    UNHEALTHY,
)
from ftslurm.records.state import FAILED, State
from ftslurm.rendezvous.closing import close
from ftslurm.report import scheduler
from ftslurm.text import names, one_line

NEAR_END_S = 600.0
NEAR_END_PART, EARLY_S = 0.5, 60.0
"""A signal that comes at most so long before the end of the job's time, in seconds, and in that part of its time, is
that of `sbatch --signal`, which may come a minute early (sbatch(1))."""

_KINDS = {
    scheduler.TIME_LIMIT: TIME_LIMIT,
    scheduler.PREEMPTED: PREEMPTED,
    scheduler.CANCELLED: CANCELLED,
    scheduler.SCHEDULER: NODE,
}


def cause_of_end(state: State, view: SchedulerView | None, now_ns: int) -> tuple[str, str]:
    """Return the cause of the end of a closed attempt, and the same as text.

    Args:
        state: its last one.
        view: Slurm's data on the job; None, or without data: the cause is what the agents know.
        now_ns: when Slurm was queried, nanoseconds since the epoch.
    """
    closed = state.closed
    assert closed is not None
    if view is None or view.state is None or closed.cause == SUCCEEDED:
        return closed.cause, _text(state)
    if scheduler.of_a_later_start(view):
        return REQUEUED, _text(state)
    if closed.cause != INTERRUPTED:
        return closed.cause, _text(state)
    if view.state == "RUNNING":
        if view.preempted_ns is not None:
            return PREEMPTED, "preempted"
        if _is_near_end(view, now_ns):
            return TIME_LIMIT, "the job's time is nearly over"
        return INTERRUPTED, _text(state)
    found = scheduler.verdict(view)
    return (INTERRUPTED, _text(state)) if found is None else (_KINDS[found[0]], found[1])


def _is_near_end(view: SchedulerView, now_ns: int) -> bool:
    if view.end_ns is None:
        return False
    near_s = NEAR_END_S
    if view.start_ns is not None:
        near_s = min(near_s, NEAR_END_PART * (view.end_ns - view.start_ns) / 1e9 + EARLY_S)
    return (view.end_ns - now_ns) / 1e9 <= near_s


def with_lost_step(state: State, step_code: int, now_ns: int) -> State:
    """Return the state of a run whose agents have all ended without closing it, closed for the decision on a requeue.

    srun ends the whole step when it cannot start a task on one node, although the others train already.

    Args:
        step_code: srun's exit code.
        now_ns: nanoseconds since the epoch.
    """
    reason = f"its step was lost (srun ended with code {step_code})"
    return close(state, FAILED, reason, step_code, now_ns, NODE)


def _text(state: State) -> str:
    """Return the reason of the end in few words."""
    closed = state.closed
    assert closed is not None
    lost = list(dict.fromkeys(node.node for node in state.lost))
    if closed.cause == NODE and lost:
        return f"node {lost[0]} was lost" if len(lost) == 1 else f"nodes {names(lost)} were lost"
    if state.stop is not None and state.stop.orderly:
        return one_line(state.stop.reason, 100)
    last = state.past(state.round)
    if closed.cause in (FAILURE, HANG) and last is not None and last.failure is not None:
        failed = last.failure
        return "the round hung" if closed.cause == HANG else f"rank {failed.rank} on {failed.node} failed"
    general = {UNHEALTHY: "too few healthy nodes", NETWORK: "the master's node could not be reached"}
    return general.get(closed.cause) or one_line(closed.reason, 100)

"""Fold the node records into the next state: every decision of the coordinator, as one pure function.

The state that the coordinator publishes depends on the old state and the observation alone, so a coordinator that takes
over at any point continues consistently.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import replace
from ftslurm.records.cause import INTERRUPTED, NETWORK, NODE, NOTICE, PREEMPTED, TIME_LIMIT, UNHEALTHY, UNKNOWN
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import (
    CLOSED,
    FAILED,
    FORMING,
    NODE_LOST,
    RUNNING,
    STOPPED,
    Lease,
    RoundHistory,
    State,
    with_history,
)
from ftslurm.rendezvous.closing import close, end_round, stop_cause, stop_code
from ftslurm.rendezvous.common_failures import excuse_shared_failure, excuse_shared_findings
from ftslurm.rendezvous.forming import fold_forming
from ftslurm.rendezvous.observation import Observation, RunSpec, Timing, alive_nodes
from ftslurm.rendezvous.running import all_succeeded, fold_running, succeed
from ftslurm.rendezvous.stopping import cause_of, close_orderly, close_stopped, fold_stop, is_orderly

STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


KEEPS_RESTARTS = (NODE, UNHEALTHY, NETWORK, INTERRUPTED, NOTICE, PREEMPTED, TIME_LIMIT, UNKNOWN)
"""Ends after which a run continues as it is; after any other the user has started it again, perhaps mended."""


def begin(
    old: State | None, run_spec: RunSpec, node: str, incarnation: str, now_ns: int, reached: int | None = None
) -> State:
    """Return the first state of an attempt with `node` as the coordinator; round numbers continue from `old`.

    Args:
        reached: the highest step that the ranks of `old` have reported, if it could not record its own end.
    """
    if old and reached is not None:
        old = replace(old, reached=reached if old.reached is None else max(old.reached, reached))
    history = old.history if old else ()
    if old and old.phase == RUNNING:
        entry = old.past(old.round)
        if entry:
            # No agent recorded how the round ended: a requeue, or all agents were killed.
            ended = replace(
                entry,
                ended_ns=now_ns,
                outcome=STOPPED,
                reason=f"ended without a record before attempt {run_spec.attempt}",
            )
            history = with_history(old, ended).history
    return State(
        run_id=run_spec.run_id,
        attempt=run_spec.attempt,
        attempts=(*(old.attempts if old else ()), run_spec.attempt),
        expected=run_spec.expected,
        min_nodes=run_spec.min_nodes,
        max_nodes=run_spec.max_nodes,
        max_restarts=run_spec.max_restarts,
        restarts_used=_restarts_used(old, run_spec),
        coordinator=Lease(node, incarnation, old.coordinator.term + 1 if old else 1),
        phase=FORMING,
        round=old.round if old else 0,
        participants=(),
        world_size=0,
        master=None,
        lost=(),
        history=history,
        closed=None,
        learned=old.learned if old else None,
        reached=old.reached if old else None,
        reached_before=old.reached if old else None,
        loaded=old.loaded if old else None,
        avoid=old.avoid if old else (),
        polled=old.polled if old else None,
    )


def _restarts_used(old: State | None, run_spec: RunSpec) -> int:
    """Return the restarts that an attempt begins with: those of the previous one, if that has not gained a step.

    Otherwise a requeue would be a way around `--max-restarts` for a program that fails each time at the same step.
    Where steps are not reported, each attempt has its own budget.
    """
    if old is None or old.gained is not False:
        return 0
    if old.closed is not None and old.closed.cause not in KEEPS_RESTARTS:
        return 0
    return min(old.restarts_used, run_spec.max_restarts)


def take_lease(state: State, node: str, incarnation: str) -> State:
    """Return `state` with `node` as its coordinator."""
    return replace(state, coordinator=Lease(node, incarnation, state.coordinator.term + 1))


def hand_over(state: State, observation: Observation, timing: Timing) -> State:
    """Return `state` with the lease given to the next agent that stays; `state` itself if none does."""
    staying = [record for record in alive_nodes(state, observation, timing) if record.reason is None]
    if not staying:
        return state
    successor = min(staying, key=lambda record: (record.position, record.node))
    return take_lease(state, successor.node, successor.incarnation)


def fold(state: State, observation: Observation, timing: Timing) -> State:
    """Return the successor of `state` given the observation; `state` itself if nothing changes."""
    if state.phase == CLOSED:
        return state
    observation = excuse_shared_findings(state, observation, timing)
    state = _with_stacks_request(state, observation)
    state = fold_stop(state, observation, timing)
    if state.phase == RUNNING and all_succeeded(state, observation):
        return close_orderly(state, observation) if is_orderly(state, observation) else succeed(state, observation)
    stop_requested = [
        record for record in observation.records.values() if record.attempt == state.attempt and record.stop_signal
    ]
    if stop_requested and _all_stop_requested(state, observation, timing):
        return _stop(state, observation, timing, stop_requested)
    if stop_requested and observation.stop_requested_s < timing.stop_spread_s:
        return state
    if state.phase == RUNNING:
        state = fold_running(state, observation, timing)
    if state.phase == FORMING and state.stop is not None:
        return close_stopped(state, observation)
    if state.phase == FORMING:
        state = fold_forming(excuse_shared_failure(state, observation), observation, timing)
    return state


def _with_stacks_request(state: State, observation: Observation) -> State:
    """Return `state` with a user's request for the stacks of the round that runs: all its agents then answer."""
    file = observation.stacks_file
    if file is None or state.phase != RUNNING or (file.attempt, file.round) != (state.attempt, state.round):
        return state
    return state if file == state.stacks_request else replace(state, stacks_request=file)


def _all_stop_requested(state: State, observation: Observation, timing: Timing) -> bool:
    """Return whether all live agents have received a stop signal (scancel, preemption, time limit, Ctrl-C)."""
    records = alive_nodes(state, observation, timing)
    return bool(records) and all(record.stop_signal for record in records)


def _stop(state: State, observation: Observation, timing: Timing, stop_requested: Sequence[NodeRecord]) -> State:
    first = stop_requested[0]
    reason = first.reason or "stopped"
    votes = [record.stop_vote for record in stop_requested if record.stop_vote is not None]
    late = next((vote for vote in votes if vote.late), None)
    if (stop := state.stop) is not None and late is not None:
        reason = f"{reason}; {late.late}"
        # A second Ctrl-C does not wait for the save. The grace is measured by other clocks, too: its last tenth counts.
        over = stop.grace_s is not None and observation.now_ns - stop.requested_ns >= stop.grace_s * 0.9e9
        state = replace(state, stop=replace(stop, result=late.late, save_cut=late.saving and over))
    last = state.past(state.round)
    if state.phase == RUNNING or (last is not None and _ended_by_stop(state, observation, timing, last)):
        state = end_round(state, observation, STOPPED, reason, None)
    cause = cause_of(state.stop) if state.stop is not None else stop_cause(first.stop_signal)
    return close(state, STOPPED, reason, stop_code(first.stop_signal), observation.now_ns, cause)


def _ended_by_stop(state: State, observation: Observation, timing: Timing, last: RoundHistory) -> bool:
    """Return whether the round ended as the first effect of the stop: one node received the signal before the others.

    A node or rank lost for another reason, or long before, keeps its entry in the history.
    """
    if last.attempt != state.attempt or state.phase != FORMING:
        return False
    if last.outcome == NODE_LOST:
        stop_requested = {
            (record.node, record.incarnation) for record in observation.records.values() if record.stop_signal
        }
        return all((gone.node, gone.incarnation) in stop_requested for gone in state.lost if gone.round == last.round)
    by_signal = last.failure is not None and last.failure.signal in STOP_SIGNALS
    return (
        last.outcome == FAILED
        and by_signal
        and observation.forming_for_s - observation.stop_requested_s < timing.stop_spread_s
    )

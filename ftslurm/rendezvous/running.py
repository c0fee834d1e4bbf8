"""End of a running round and its consequence: the half of the fold that judges participants."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.records import cause
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import (
    EXIT_DO_NOT_REQUEUE,
    EXIT_FAILED,
    EXIT_SUCCESS,
    FAILED,
    FORMING,
    HANG,
    NODE_LOST,
    READY,
    STOPPED,
    SUCCEEDED,
    UNREACHABLE,
    Failure,
    Hang,
    LostNode,
    Participant,
    State,
)
from ftslurm.rendezvous.checkpoints import may_avoid_checkpoint
from ftslurm.rendezvous.closing import close, describe, end_round
from ftslurm.rendezvous.exclusion import excluded_nodes, failed_repeatedly
from ftslurm.rendezvous.non_retryable import awaiting_other_nodes, on_all_nodes, repeated, why_non_retryable
from ftslurm.rendezvous.observation import (
    AT_ONCE,
    Observation,
    Timing,
    alive_nodes,
    is_replaced,
    record_of,
    waiting_nodes,
)
from ftslurm.rendezvous.stopping import lets_others_save
from ftslurm.rendezvous.unreachable import give_up
from ftslurm.text import duration, plural


@dataclass
class _Participants:
    """Participants of the running round that are not simply running, by condition."""

    failures: list[Failure] = field(default_factory=list)
    lost: list[Participant] = field(default_factory=list)
    leaving: list[NodeRecord] = field(default_factory=list)
    requesting_next: list[NodeRecord] = field(default_factory=list)


def _sort_participants(state: State, observation: Observation, timing: Timing) -> _Participants:
    found = _Participants()
    for participant in state.participants:
        record = record_of(participant, observation)
        if record and record.failure and record.failure.round == state.round:
            found.failures.append(record.failure)
        elif record and record.status == SUCCEEDED and record.round == state.round:
            continue
        elif record and record.reason is not None:
            found.leaving.append(record)
        elif record and record.status == READY and record.round == state.round:
            found.requesting_next.append(record)
        elif observation.is_lost(participant.node, timing) or is_replaced(state, participant, observation):
            found.lost.append(participant)
    return found


def fold_running(state: State, observation: Observation, timing: Timing) -> State:
    """Return the successor of a state whose round runs; `state` itself if the round continues."""
    if state.hang is not None:
        return _after_hang(state, state.hang, observation, timing)
    found = _sort_participants(state, observation, timing)
    failures, lost, leaving, requesting_next = found.failures, found.lost, found.leaving, found.requesting_next
    if failures and all(failure.kind == HANG for failure in failures) and (hang := _find_hang(state, observation)):
        # Its agent has already ended the worker. The stacks of the other nodes' ranks can still be collected.
        return replace(state, hang=hang)
    # Ranks fail when a peer's node receives a stop signal: the stop is the cause, their failures are cascades.
    if failures and not (lost or leaving) and lets_others_save(state, failures, observation, timing):
        return state
    if failures and not any(record.stop_signal for record in leaving):
        undecided = (
            not (lost or leaving)
            and awaiting_other_nodes(state, failures)
            and observation.failing_for_s < timing.signature_s
        )
        return state if undecided else _after_failure(state, observation, timing, failures)
    if lost or leaving:
        return _after_loss(state, observation, lost, leaving)
    if hang := _find_hang(state, observation):
        return replace(state, hang=hang)
    if requesting_next:
        what = f"{', '.join(record.node for record in requesting_next)} requested the next round"
        return _restart(end_round(state, observation, FAILED, what, None), observation, what, cause.FAILURE)
    return _admit(state, observation, timing) if timing.rejoin == AT_ONCE and state.stop is None else state


def _records(state: State, observation: Observation) -> list[NodeRecord]:
    records = (record_of(participant, observation) for participant in state.participants)
    return [record for record in records if record is not None]


def _find_hang(state: State, observation: Observation) -> Hang | None:
    return next(
        (record.hang for record in _records(state, observation) if record.hang and record.hang.round == state.round),
        None,
    )


def _after_hang(state: State, hang: Hang, observation: Observation, timing: Timing) -> State:
    """End the round once all nodes that can have collected their ranks' stacks, since the ranks are killed then.

    Failures meanwhile are effects of the hang, or coincidence. But ranks also wait for those of a dead node, and their
    time-out may be shorter than the node's: the silence of a node that has collected no stacks is judged first.
    """
    collected = {
        record.node
        for record in _records(state, observation)
        if record.stacks_collected == state.round or record.reason is not None
    }
    missing = [p for p in state.participants if p.node not in collected]
    silent_s = {p.node: observation.silent_s.get(p.node, 0.0) for p in missing}
    lost = [p for p in missing if observation.is_lost(p.node, timing) or is_replaced(state, p, observation)]
    if lost:
        return _after_loss(state, observation, lost, ())
    quiet_s = min(observation.hanging_for_s, timing.node_timeout_s / 2)
    if missing and (
        observation.hanging_for_s < timing.stack_collection_s or any(s >= quiet_s for s in silent_s.values())
    ):
        return state
    return _after_failure(state, observation, timing, [hang.failure()])


def _admit(state: State, observation: Observation, timing: Timing) -> State:
    """End the round to admit late nodes if there is room for them; that is no failure, so no restart is used up."""
    room = state.max_nodes - len(state.participants)
    living = {record.node for record in alive_nodes(state, observation, timing)}
    # A node that the next round would leave out as well would end one round after the other.
    left_out = excluded_nodes(state, observation.records, timing.exclude_after)
    late = [w.node for w in waiting_nodes(state, observation.records) if w.node in living and w.node not in left_out]
    if room <= 0 or not late or (len(late) < room and observation.joining_for_s < timing.last_call_s):
        return state
    what = f"{', '.join(sorted(late))} joined"
    return replace(end_round(state, observation, STOPPED, what, None), phase=FORMING)


def all_succeeded(state: State, observation: Observation) -> bool:
    """Return whether the workers of every participant have succeeded."""
    records = [record_of(participant, observation) for participant in state.participants]
    return all(record is not None and record.status == SUCCEEDED and record.round == state.round for record in records)


def succeed(state: State, observation: Observation) -> State:
    """Close the attempt as succeeded."""
    state = end_round(state, observation, SUCCEEDED, None, None)
    ranks = f"{'all ' if state.world_size != 1 else ''}{plural(state.world_size, 'rank')}"
    reason = f"{ranks} on {plural(len(state.participants), 'node')} succeeded"
    if state.stop is not None and state.stop.committed:
        reason += f", although a stop was requested ({state.stop.reason})"
    return close(state, SUCCEEDED, reason, EXIT_SUCCESS, observation.now_ns, cause.SUCCEEDED)


def _after_failure(state: State, observation: Observation, timing: Timing, failures: Sequence[Failure]) -> State:
    first = _first(failures)
    what = describe(first)
    state = end_round(state, observation, FAILED, what, first)
    if refused := refuse_restart(state, observation):
        return refused
    if state.stop is not None and first.leaving:
        return replace(state, phase=FORMING)  # No further round is formed.
    if first.kind == UNREACHABLE:
        return give_up(state, observation, timing) or replace(state, phase=FORMING)
    by = cause.HANG if first.kind == HANG else cause.FAILURE
    return _give_up(state, observation, timing, failures, what) or _restart(state, observation, what, by)


def _first(failures: Sequence[Failure]) -> Failure:
    """Return the failure that explains the others, as far as is known at this point.

    A non-retryable failure precedes its cascades on other ranks, and so does an unreachable master, which fails before
    the ranks are started.
    """
    non_retryable = next((failure for failure in failures if failure.non_retryable), None)
    return non_retryable or next((failure for failure in failures if failure.kind == UNREACHABLE), failures[0])


def _give_up(
    state: State, observation: Observation, timing: Timing, failures: Sequence[Failure], what: str
) -> State | None:
    """Close if the next round would fail as this one did, instead of using up the restart budget."""
    if why := why_non_retryable(failures):
        # An environment may be broken on some nodes only; another allocation may succeed then.
        code = EXIT_DO_NOT_REQUEUE if on_all_nodes(state, failures) else EXIT_FAILED
        return close(
            state, FAILED, f"{what}; it would fail again: {why}", code, observation.now_ns, cause.NON_RETRYABLE
        )
    return refuse_repetition(state, observation, timing) if state.restarts_used < state.max_restarts else None


def refuse_repetition(state: State, observation: Observation, timing: Timing) -> State | None:
    """Close if the newest round has failed at start as the previous ones did, since the next one would, too."""
    rounds, last = repeated(state), state.past(state.round)
    if not rounds or last is None or last.failure is None or _may_do_better_elsewhere(state, observation, timing):
        return None
    if may_avoid_checkpoint(state):
        return None
    listed = f"{', '.join(map(str, rounds[:-1]))} and {rounds[-1]}"
    why = f"it would fail again: the same at start in rounds {listed}"
    return close(
        state, FAILED, f"{describe(last.failure)}; {why}", EXIT_FAILED, observation.now_ns, cause.NON_RETRYABLE
    )


def _may_do_better_elsewhere(state: State, observation: Observation, timing: Timing) -> bool:
    """Return whether the node of the newest failure is about to be excluded, and another one can take its place."""
    last = state.past(state.round)
    node = last.failure.node if last is not None and last.failure is not None else None
    return node in failed_repeatedly(state.history, timing.exclude_after) and bool(
        waiting_nodes(state, observation.records)
    )


def refuse_restart(state: State, observation: Observation) -> State | None:
    """Close if a rank of the newest round must not be restarted, even if another rank failed before it."""
    for participant in state.participants:
        record = record_of(participant, observation)
        failure = record.failure if record else None
        if failure and failure.round == state.round and failure.exit_code == EXIT_DO_NOT_REQUEUE:
            code = f"code {EXIT_DO_NOT_REQUEUE}: do not restart, do not requeue"
            reason = f"rank {failure.rank} on {failure.node} ended with {code}"
            return close(state, FAILED, reason, EXIT_DO_NOT_REQUEUE, observation.now_ns, cause.NON_RETRYABLE)
        if failure and failure.round == state.round and failure.non_retryable and failure.on_any_node:
            reason = f"{describe(failure)}; it would fail again: {failure.non_retryable}"
            return close(state, FAILED, reason, EXIT_DO_NOT_REQUEUE, observation.now_ns, cause.NON_RETRYABLE)
    return None


def _after_loss(
    state: State, observation: Observation, lost: Sequence[Participant], leaving: Sequence[NodeRecord]
) -> State:
    reasons = [f"{record.node} left: {record.reason}" for record in leaving]
    reasons += [_how_lost(state, p, observation) for p in lost]
    gone = [(record.node, record.incarnation) for record in leaving] + [(p.node, p.incarnation) for p in lost]
    entries = tuple(
        LostNode(node, incarnation, state.round, observation.now_ns, round(observation.silent_s.get(node, 0.0), 3))
        for node, incarnation in gone
    )
    what = "; ".join(reasons)
    state = end_round(replace(state, lost=state.lost + entries), observation, NODE_LOST, what, None)
    return _restart(state, observation, what, cause.NODE)


def _how_lost(state: State, participant: Participant, observation: Observation) -> str:
    node = participant.node
    if not is_replaced(state, participant, observation):
        silence = f"no heartbeat of its agent for {duration(observation.silent_s.get(node, 0.0))}"
        evidence = observation.dead.get(node)
        return f"{node} was lost: {silence}" + (f", and {evidence}" if evidence is not None else "")
    predecessor = observation.records[node].predecessor
    if predecessor is not None and predecessor.incarnation == participant.incarnation:
        return f"{node} left: {predecessor.reason}"
    return f"{node} was lost: its agent was restarted"


def _restart(state: State, observation: Observation, what: str, by: str) -> State:
    """Begin the next round if a restart is left; otherwise close with `by` as the cause."""
    if state.restarts_used >= state.max_restarts:
        budget = f"no restarts allowed (--max-restarts {state.max_restarts})"
        if state.max_restarts:
            budget = "the only restart is used up"
        if state.max_restarts > 1:
            budget = f"all {state.max_restarts} restarts are used up"
        return close(state, FAILED, f"{what}; {budget}", EXIT_FAILED, observation.now_ns, by)
    return replace(state, phase=FORMING, restarts_used=state.restarts_used + 1)

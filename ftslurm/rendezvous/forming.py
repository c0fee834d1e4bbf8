"""A round forms: can it begin, and with whom? The half of the fold that chooses participants and ranks."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ftslurm.dataclasses import replace
from ftslurm.rendezvous.closing import close, count
from ftslurm.rendezvous.exclusion import excluded_nodes, preferred_nodes
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.non_retryable import compared
from ftslurm.rendezvous.observation import NEVER, Observation, Timing, alive_nodes, may_join
from ftslurm.rendezvous.running import refuse_repetition, refuse_restart
from ftslurm.rendezvous.state import (
    EXIT_FAILED,
    FAILED,
    LEFT,
    NODE_LOST,
    READY,
    RUNNING,
    SUCCEEDED,
    Master,
    Participant,
    RoundHistory,
    State,
    with_history,
)
from ftslurm.rendezvous.unreachable import involvement, reachable_first, wait_s, with_another_master


def fold_forming(state: State, observation: Observation, timing: Timing) -> State:
    """Form the next round, or close when it cannot be; `state` itself while it waits."""
    if refused := refuse_restart(state, observation):
        return refused
    known = compared(state, [record.failure for record in observation.records.values() if record.failure is not None])
    if known is not state:
        # Only now it shows that the restart which this round was to be is none.
        if refused := refuse_repetition(replace(known, restarts_used=known.restarts_used - 1), observation, timing):
            return refused
        state = known
    living = alive_nodes(state, observation, timing)
    staying = [record for record in living if record.reason is None and _may_take_part(state, record, timing)]
    shunned_nodes = excluded_nodes(state, observation.records, timing.exclude_after)
    joining = [record for record in staying if may_join(record)]
    # Only the attempt's first round waits for the unknown: a node that never came must not delay every restart.
    first = not any(past.attempt == state.attempt for past in state.history)
    # After that, a place is for who lives: a record that never changes may be that of an agent which died as a spare.
    proven = [record for record in joining if first or record.node not in observation.unproven]
    ready = reachable_first(state, preferred_nodes(proven, shunned_nodes, state.min_nodes))
    # One that leaves may still be stopping workers; what they do to a checkpoint must come before the next round. And
    # one that is being looked at keeps its place.
    busy = any(_is_busy(record, shunned_nodes) for record in living)
    # It is waited for, until it proves itself or is silent, where a node that something speaks against would be chosen.
    blamed = {*shunned_nodes, *involvement(state)}
    unproven = len(proven) < len(joining) and _blameless(proven, blamed) < min(
        state.max_nodes, _blameless(joining, blamed)
    )
    heard = {record.node for record in observation.records.values() if record.attempt == state.attempt}
    unheard = [node for node in state.expected if node not in heard]
    enough = len(ready) >= state.min_nodes
    overdue = observation.forming_for_s >= timing.join_timeout_s
    # Without a node list nobody knows who may still come; with one, the last missing node ends the wait.
    complete = bool(state.expected) and not unheard
    patience_s = timing.last_call_s
    if len(ready) >= state.max_nodes:
        patience_s = timing.settle_s if _out_of_order(state, ready, unheard) else 0.0
    awaited = first and not complete and observation.forming_for_s < patience_s
    hopes = [record for record in observation.records.values() if _may_return(state, record, observation, timing)]
    if observation.forming_for_s < wait_s(state):
        return state
    # A busy node is about to be ready, unless a worker of its cannot be killed: it is not waited for without end.
    if enough and ((not busy and not awaited and not unproven) or overdue):
        return _form(state, ready, observation, staying)
    if (complete and len(staying) + len(hopes) < state.min_nodes) or (overdue and not enough):
        return _too_few(state, observation, staying, overdue)
    return state


def _may_return(state: State, record: NodeRecord, observation: Observation, timing: Timing) -> bool:
    """Tell whether a node may be heard again: silent as one that is frozen or cut off, or with a new agent to come.

    Of one whose agent has ended for good its guardian says so.
    """
    if record.attempt == state.attempt and record.status == LEFT and record.to_be_replaced:
        return True
    silent = observation.silent_s.get(record.node, 0.0) >= timing.node_timeout_s
    return record.attempt == state.attempt and silent and record.status != LEFT and record.reason is None


def _blameless(records: Sequence[NodeRecord], blamed: Container[str]) -> int:
    return sum(record.node not in blamed for record in records)


def _is_busy(record: NodeRecord, shunned_nodes: Container[str]) -> bool:
    if record.status == READY:
        return record.health_pending and record.reason is None and record.node not in shunned_nodes
    return record.status != LEFT


def _may_take_part(state: State, record: NodeRecord, timing: Timing) -> bool:
    return timing.rejoin != NEVER or not state.admitted or record.node in state.admitted


def _out_of_order(state: State, ready: Sequence[NodeRecord], unheard: Sequence[str]) -> bool:
    """Tell whether a node that was not heard of yet comes before one that would take its place now."""
    chosen = {record.node for record in choose(ready, state.participants, state.max_nodes)}
    places = [place for place, node in enumerate(state.expected) if node in chosen]
    return bool(places) and any(node in unheard for node in state.expected[: places[-1]])


def _too_few(state: State, observation: Observation, staying: Sequence[NodeRecord], overdue: bool) -> State:
    heard = [record for record in observation.records.values() if record.attempt == state.attempt]
    never = [node for node in state.expected if node not in {record.node for record in heard}]
    left = [f"{record.node} left: {record.reason}" for record in heard if record.reason is not None]
    unhealthy = [
        f"{record.node} is unhealthy: {record.unhealthy}" for record in staying if record.unhealthy is not None
    ]
    stuck = [
        f"{record.node} still has workers of round {record.round}, which cannot be killed"
        for record in staying
        if overdue and record.status in (RUNNING, SUCCEEDED, FAILED)
    ]
    last = state.past(state.round)
    # A round that lost a node has said so already, with the better words.
    stop_requested = last.reason if last and last.attempt == state.attempt and last.outcome == NODE_LOST else None
    parts = [*([stop_requested] if stop_requested else left), *unhealthy, *stuck]
    if never:
        more = f" and {len(never) - 8} more" if len(never) > 8 else ""
        parts.append(f"never heard of {', '.join(never[:8])}{more}")
    able = count(len(staying) - len(unhealthy) - len(stuck), "node")
    why = f"after waiting {observation.forming_for_s:.0f} s" if overdue else "and nothing can replace it"
    how = "healthy" if unhealthy else "ready" if stuck else "left"
    parts.append(f"{able} {how}, at least {state.min_nodes} needed, {why}")
    return close(state, FAILED, "; ".join(parts), EXIT_FAILED, observation.now_ns)


def _form(state: State, ready: Sequence[NodeRecord], observation: Observation, staying: Sequence[NodeRecord]) -> State:
    chosen = with_another_master(state, choose(ready, state.participants, state.max_nodes))
    participants: list[Participant] = []
    first_rank = 0
    for group_rank, record in enumerate(chosen):
        participants.append(Participant(record.node, record.incarnation, record.slots, first_rank, group_rank))
        first_rank += record.slots
    number = state.round + 1
    entry = RoundHistory(
        number,
        state.attempt,
        tuple(p.node for p in participants),
        first_rank,
        observation.now_ns,
        None,
        RUNNING,
        None,
        None,
    )
    formed = replace(
        state,
        phase=RUNNING,
        round=number,
        participants=tuple(participants),
        admitted=state.admitted or tuple(record.node for record in staying),
        world_size=first_rank,
        master=Master(chosen[0].address, chosen[0].port),
    )
    return with_history(formed, entry)


def choose(ready: Sequence[NodeRecord], previous: Sequence[Participant], max_nodes: int) -> list[NodeRecord]:
    """Return the nodes of the next round in the order of their ranks.

    Nodes of the previous round come first; when as many take part as before, each keeps its place and a newcomer gets
    the place of who is gone. Otherwise the order is Slurm's (`position`), which follows the topology.
    """
    before = {p.node: p.group_rank for p in previous}
    by_position = sorted(ready, key=lambda record: (record.position, record.node))
    chosen = sorted(by_position, key=lambda record: record.node not in before)[:max_nodes]
    if len(chosen) != len(previous):
        return sorted(chosen, key=lambda record: (record.position, record.node))
    places: dict[int, NodeRecord] = {before[record.node]: record for record in chosen if record.node in before}
    newcomers = iter(record for record in chosen if record.node not in before)
    return [places[place] if place in places else next(newcomers) for place in range(len(chosen))]

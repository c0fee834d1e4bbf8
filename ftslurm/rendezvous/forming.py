"""Formation of a round: the half of the fold that chooses participants and assigns ranks."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ftslurm.dataclasses import replace
from ftslurm.records.cause import NODE, UNHEALTHY
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import (
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
from ftslurm.rendezvous.checkpoints import judge_checkpoint
from ftslurm.rendezvous.closing import close
from ftslurm.rendezvous.exclusion import excluded_nodes, preferred_nodes
from ftslurm.rendezvous.non_retryable import with_signature
from ftslurm.rendezvous.observation import NEVER, Observation, Timing, alive_nodes, may_join
from ftslurm.rendezvous.running import refuse_repetition, refuse_restart
from ftslurm.rendezvous.unreachable import involvement, reachable_first, wait_s, with_another_master
from ftslurm.text import duration, plural


def fold_forming(state: State, observation: Observation, timing: Timing) -> State:
    """Form the next round, or close if it cannot be formed; return `state` itself while waiting."""
    if refused := refuse_restart(state, observation):
        return refused
    updated = with_signature(
        state, [record.failure for record in observation.records.values() if record.failure is not None]
    )
    if updated is not state:
        # Only the signature shows that this restart repeats a failure, so that it must not take place.
        if refused := refuse_repetition(replace(updated, restarts_used=updated.restarts_used - 1), observation, timing):
            return refused
        state = updated
    living = alive_nodes(state, observation, timing)
    staying = [record for record in living if record.reason is None and _may_take_part(state, record, timing)]
    excluded = excluded_nodes(state, observation.records, timing.exclude_after)
    joining = [record for record in staying if may_join(record)]
    # Only the attempt's first round waits for missing nodes: a node that never joined must not delay every restart.
    first = not any(past.attempt == state.attempt for past in state.history)
    # Later rounds require a live agent: a record that never changes may be that of an agent that died as a spare.
    proven = [record for record in joining if first or record.node not in observation.unproven]
    ready = reachable_first(state, preferred_nodes(proven, excluded, state.min_nodes))
    # A leaving node may still be stopping workers, whose checkpoint writes must precede the next round. A node whose
    # health is pending keeps its place.
    busy = any(_is_busy(record, excluded) for record in living)
    # If a blamed node would be chosen instead, wait until the unproven one updates its record or becomes silent.
    blamed = {*excluded, *involvement(state)}
    unproven = len(proven) < len(joining) and _blameless(proven, blamed) < min(
        state.max_nodes, _blameless(joining, blamed)
    )
    joined = {record.node for record in observation.records.values() if record.attempt == state.attempt}
    missing = [node for node in state.expected if node not in joined]
    enough = len(ready) >= state.min_nodes
    overdue = observation.forming_for_s >= timing.join_timeout_s
    # Without a node list, more nodes may always join; with one, the wait ends when the last missing node joins.
    complete = bool(state.expected) and not missing
    patience_s = timing.last_call_s
    if len(ready) >= state.max_nodes:
        patience_s = timing.settle_s if _out_of_order(state, ready, missing) else 0.0
        # A missing node may be healthy, and then replaces an excluded one.
        if missing and any(record.node in excluded for record in ready):
            patience_s = max(patience_s, timing.last_call_s)
    awaited = first and not complete and observation.forming_for_s < patience_s
    returning = [record for record in observation.records.values() if _may_return(state, record, observation, timing)]
    if observation.forming_for_s < wait_s(state):
        return state
    # A busy node is about to be ready, unless one of its workers cannot be killed: the wait for it is bounded.
    if enough and ((not busy and not awaited and not unproven) or overdue):
        return _form(state, ready, observation, staying)
    if (complete and len(staying) + len(returning) < state.min_nodes) or (overdue and not enough):
        return _too_few(state, observation, staying, overdue)
    return state


def _may_return(state: State, record: NodeRecord, observation: Observation, timing: Timing) -> bool:
    """Return whether a node may rejoin: it is silent (frozen or partitioned), or its guardian starts a new agent.

    An agent that has ended permanently is marked as left by its guardian.
    """
    if record.attempt == state.attempt and record.status == LEFT and record.to_be_replaced:
        return True
    silent = observation.is_lost(record.node, timing)
    return record.attempt == state.attempt and silent and record.status != LEFT and record.reason is None


def _blameless(records: Sequence[NodeRecord], blamed: Container[str]) -> int:
    return sum(record.node not in blamed for record in records)


def _is_busy(record: NodeRecord, excluded: Container[str]) -> bool:
    if record.status == READY:
        return record.health_pending and record.reason is None and record.node not in excluded
    return record.status != LEFT


def _may_take_part(state: State, record: NodeRecord, timing: Timing) -> bool:
    return timing.rejoin != NEVER or not state.admitted or record.node in state.admitted


def _out_of_order(state: State, ready: Sequence[NodeRecord], missing: Sequence[str]) -> bool:
    """Return whether a missing node precedes a chosen one in Slurm's order."""
    chosen = {record.node for record in choose(ready, state.participants, state.max_nodes)}
    places = [place for place, node in enumerate(state.expected) if node in chosen]
    return bool(places) and any(node in missing for node in state.expected[: places[-1]])


def _too_few(state: State, observation: Observation, staying: Sequence[NodeRecord], overdue: bool) -> State:
    joined = [record for record in observation.records.values() if record.attempt == state.attempt]
    never = [node for node in state.expected if node not in {record.node for record in joined}]
    left = [f"{record.node} left: {record.reason}" for record in joined if record.reason is not None]
    unhealthy = [
        f"{record.node} is unhealthy: {record.unhealthy}" for record in staying if record.unhealthy is not None
    ]
    stuck = [
        f"{record.node} still has workers of round {record.round}, which cannot be killed"
        for record in staying
        if overdue and record.status in (RUNNING, SUCCEEDED, FAILED)
    ]
    last = state.past(state.round)
    # The reason of a round that lost a node is more precise than the node's own.
    reason = last.reason if last and last.attempt == state.attempt and last.outcome == NODE_LOST else None
    parts = [*([reason] if reason else left), *unhealthy, *stuck]
    if never:
        more = f" and {len(never) - 8} more" if len(never) > 8 else ""
        parts.append(f"no node record of {', '.join(never[:8])}{more}")
    able = plural(len(staying) - len(unhealthy) - len(stuck), "node")
    why = f"after waiting {duration(observation.forming_for_s)}" if overdue else "and nothing can replace it"
    how = "healthy" if unhealthy else "ready" if stuck else "left"
    parts.append(f"{able} {how}, at least {state.min_nodes} needed, {why}")
    by = UNHEALTHY if unhealthy and not (reason or left or never) else NODE
    return close(state, FAILED, "; ".join(parts), EXIT_FAILED, observation.now_ns, by)


def _form(state: State, ready: Sequence[NodeRecord], observation: Observation, staying: Sequence[NodeRecord]) -> State:
    state = judge_checkpoint(state, observation)
    chosen = with_another_master(state, choose(ready, state.participants, state.max_nodes))
    participants: list[Participant] = []
    first_rank = 0
    for group_rank, record in enumerate(chosen):
        place = (first_rank, group_rank, record.role)
        participants.append(Participant(record.node, record.incarnation, record.slots, *place))
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
    """Return the nodes of the next round in rank order.

    Nodes of the previous round take precedence. If the number of nodes is unchanged, each keeps its group rank and new
    nodes take those of missing ones. Otherwise the order is Slurm's (`position`), which follows the topology.
    """
    before = {p.node: p.group_rank for p in previous}
    by_position = sorted(ready, key=lambda record: (record.position, record.node))
    chosen = sorted(by_position, key=lambda record: record.node not in before)[:max_nodes]
    if len(chosen) != len(previous):
        return sorted(chosen, key=lambda record: (record.position, record.node))
    places: dict[int, NodeRecord] = {before[record.node]: record for record in chosen if record.node in before}
    newcomers = iter(record for record in chosen if record.node not in before)
    return [places[place] if place in places else next(newcomers) for place in range(len(chosen))]

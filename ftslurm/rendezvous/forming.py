"""A round forms: can it begin, and with whom? The half of the fold that chooses participants and ranks."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ftslurm.dataclasses import replace
from ftslurm.rendezvous.closing import close, count
from ftslurm.rendezvous.exclusion import preferred, shunned
from ftslurm.rendezvous.node_record import NodeWord
from ftslurm.rendezvous.non_retryable import compared
from ftslurm.rendezvous.observation import NEVER, Seen, Timing, alive, may_join
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


def fold_forming(state: State, seen: Seen, timing: Timing) -> State:
    """Form the next round, or close when it cannot be; `state` itself while it waits."""
    if refused := refuse_restart(state, seen):
        return refused
    known = compared(state, [word.failure for word in seen.words.values() if word.failure is not None])
    if known is not state:
        # Only now it shows that the restart which this round was to be is none.
        if refused := refuse_repetition(replace(known, restarts_used=known.restarts_used - 1), seen, timing):
            return refused
        state = known
    living = alive(state, seen, timing)
    staying = [word for word in living if word.reason is None and _may_take_part(state, word, timing)]
    shunned_nodes = shunned(state, seen.words, timing.set_aside_after)
    joining = [word for word in staying if may_join(word)]
    # Only the attempt's first round waits for the unknown: a node that never came must not delay every restart.
    first = not any(past.attempt == state.attempt for past in state.history)
    # After that, a place is for who lives: a record that never changes may be that of an agent which died as a spare.
    proven = [word for word in joining if first or word.node not in seen.unproven]
    ready = reachable_first(state, preferred(proven, shunned_nodes, state.min_nodes))
    # One that leaves may still be stopping workers; what they do to a checkpoint must come before the next round. And
    # one that is being looked at keeps its place.
    busy = any(_is_busy(word, shunned_nodes) for word in living)
    # It is waited for, until it proves itself or is silent, where a node that something speaks against would be chosen.
    blamed = {*shunned_nodes, *involvement(state)}
    unproven = len(proven) < len(joining) and _blameless(proven, blamed) < min(
        state.max_nodes, _blameless(joining, blamed)
    )
    heard = {word.node for word in seen.words.values() if word.attempt == state.attempt}
    unheard = [node for node in state.expected if node not in heard]
    enough = len(ready) >= state.min_nodes
    overdue = seen.forming_for_s >= timing.join_timeout_s
    # Without a node list nobody knows who may still come; with one, the last missing node ends the wait.
    complete = bool(state.expected) and not unheard
    patience_s = timing.last_call_s
    if len(ready) >= state.max_nodes:
        patience_s = timing.settle_s if _out_of_order(state, ready, unheard) else 0.0
    awaited = first and not complete and seen.forming_for_s < patience_s
    hopes = [word for word in seen.words.values() if _may_return(state, word, seen, timing)]
    if seen.forming_for_s < wait_s(state):
        return state
    # A busy node is about to be ready, unless a worker of its cannot be killed: it is not waited for without end.
    if enough and ((not busy and not awaited and not unproven) or overdue):
        return _form(state, ready, seen, staying)
    if (complete and len(staying) + len(hopes) < state.min_nodes) or (overdue and not enough):
        return _too_few(state, seen, staying, overdue)
    return state


def _may_return(state: State, word: NodeWord, seen: Seen, timing: Timing) -> bool:
    """Tell whether a node may be heard again: silent as one that is frozen or cut off, or with a new agent to come.

    Of one whose agent has ended for good its guardian says so.
    """
    if word.attempt == state.attempt and word.status == LEFT and word.to_be_replaced:
        return True
    silent = seen.silent_s.get(word.node, 0.0) >= timing.node_timeout_s
    return word.attempt == state.attempt and silent and word.status != LEFT and word.reason is None


def _blameless(words: Sequence[NodeWord], blamed: Container[str]) -> int:
    return sum(word.node not in blamed for word in words)


def _is_busy(word: NodeWord, shunned_nodes: Container[str]) -> bool:
    if word.status == READY:
        return word.looking and word.reason is None and word.node not in shunned_nodes
    return word.status != LEFT


def _may_take_part(state: State, word: NodeWord, timing: Timing) -> bool:
    return timing.rejoin != NEVER or not state.admitted or word.node in state.admitted


def _out_of_order(state: State, ready: Sequence[NodeWord], unheard: Sequence[str]) -> bool:
    """Tell whether a node that was not heard of yet comes before one that would take its place now."""
    chosen = {word.node for word in choose(ready, state.participants, state.max_nodes)}
    places = [place for place, node in enumerate(state.expected) if node in chosen]
    return bool(places) and any(node in unheard for node in state.expected[: places[-1]])


def _too_few(state: State, seen: Seen, staying: Sequence[NodeWord], overdue: bool) -> State:
    heard = [word for word in seen.words.values() if word.attempt == state.attempt]
    never = [node for node in state.expected if node not in {word.node for word in heard}]
    left = [f"{word.node} left: {word.reason}" for word in heard if word.reason is not None]
    unfit = [f"{word.node} is unfit: {word.unfit}" for word in staying if word.unfit is not None]
    stuck = [
        f"{word.node} still has workers of round {word.round}, which cannot be killed"
        for word in staying
        if overdue and word.status in (RUNNING, SUCCEEDED, FAILED)
    ]
    last = state.past(state.round)
    # A round that lost a node has said so already, with the better words.
    told = last.reason if last and last.attempt == state.attempt and last.outcome == NODE_LOST else None
    parts = [*([told] if told else left), *unfit, *stuck]
    if never:
        more = f" and {len(never) - 8} more" if len(never) > 8 else ""
        parts.append(f"never heard of {', '.join(never[:8])}{more}")
    able = count(len(staying) - len(unfit) - len(stuck), "node")
    why = f"after waiting {seen.forming_for_s:.0f} s" if overdue else "and nothing can replace it"
    how = "fit" if unfit else "ready" if stuck else "left"
    parts.append(f"{able} {how}, at least {state.min_nodes} needed, {why}")
    return close(state, FAILED, "; ".join(parts), EXIT_FAILED, seen.now_ns)


def _form(state: State, ready: Sequence[NodeWord], seen: Seen, staying: Sequence[NodeWord]) -> State:
    chosen = with_another_master(state, choose(ready, state.participants, state.max_nodes))
    participants: list[Participant] = []
    first_rank = 0
    for group_rank, word in enumerate(chosen):
        participants.append(Participant(word.node, word.incarnation, word.slots, first_rank, group_rank))
        first_rank += word.slots
    number = state.round + 1
    entry = RoundHistory(
        number, state.attempt, tuple(p.node for p in participants), first_rank, seen.now_ns, None, RUNNING, None, None
    )
    formed = replace(
        state,
        phase=RUNNING,
        round=number,
        participants=tuple(participants),
        admitted=state.admitted or tuple(word.node for word in staying),
        world_size=first_rank,
        master=Master(chosen[0].address, chosen[0].port),
    )
    return with_history(formed, entry)


def choose(ready: Sequence[NodeWord], previous: Sequence[Participant], max_nodes: int) -> list[NodeWord]:
    """Return the nodes of the next round in the order of their ranks.

    Nodes of the previous round come first; when as many take part as before, each keeps its place and a newcomer gets
    the place of who is gone. Otherwise the order is Slurm's (`position`), which follows the topology.
    """
    before = {p.node: p.group_rank for p in previous}
    by_position = sorted(ready, key=lambda word: (word.position, word.node))
    chosen = sorted(by_position, key=lambda word: word.node not in before)[:max_nodes]
    if len(chosen) != len(previous):
        return sorted(chosen, key=lambda word: (word.position, word.node))
    places: dict[int, NodeWord] = {before[word.node]: word for word in chosen if word.node in before}
    newcomers = iter(word for word in chosen if word.node not in before)
    return [places[place] if place in places else next(newcomers) for place in range(len(chosen))]

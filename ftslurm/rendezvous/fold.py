"""Fold the nodes' words into the next state: every decision of the coordinator, as one pure function.

The coordinator calls `fold` with what it sees; whatever it publishes follows from that alone, so a successor that takes
over in the middle goes on as if nothing had happened.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ftslurm.rendezvous.state import (
    CLOSED,
    EXIT_DO_NOT_REQUEUE,
    EXIT_FAILED,
    EXIT_SUCCESS,
    FAILED,
    FORMING,
    LEFT,
    NODE_LOST,
    READY,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    Closed,
    Failure,
    Lease,
    LostNode,
    Master,
    NodeWord,
    Participant,
    RoundHistory,
    State,
    with_history,
)

AT_ONCE, NEXT_ROUND, NEVER = "at-once", "next-round", "never"
REJOIN = (AT_ONCE, NEXT_ROUND, NEVER)
STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


@dataclass(frozen=True)
class Timing:
    """How long things may take, in seconds.

    Attributes:
        node_timeout_s: a node whose counter stands still for so long is lost.
        join_timeout_s: a round that has too few nodes for so long closes the run.
        last_call_s: how long to wait for more nodes once the minimum is ready.
        stop_spread_s: Slurm's signals reach the nodes one after the other: when one node has been told to stop, the
            verdict waits so long for the others to say the same.
        settle_s: with nodes to spare, how long the first round waits for the ones that come first in Slurm's order.
        rejoin: when a late node gets in: with the NEXT_ROUND, whenever that comes, or AT_ONCE: the running round ends
            for it, after a last call that costs no training time; or NEVER: only nodes that were there at the start
            take part, spares included.
    """

    node_timeout_s: float
    join_timeout_s: float
    last_call_s: float
    stop_spread_s: float = 2.0
    settle_s: float = 2.0
    rejoin: str = NEXT_ROUND


@dataclass(frozen=True)
class Seen:
    """What the coordinator sees.

    Attributes:
        words: the newest word read of each node, of any attempt.
        silent_s: for how long each node (those without a word too) has been silent.
        forming_for_s: for how long this coordinator has seen the phase FORMING.
        now_ns: this coordinator's clock, for stamps that people read.
        told_for_s: for how long it has seen a node that was told from outside to stop.
        joining_for_s: for how long no further node has come to wait for a place.
    """

    words: Mapping[str, NodeWord]
    silent_s: Mapping[str, float]
    forming_for_s: float
    now_ns: int
    told_for_s: float = 0.0
    joining_for_s: float = 0.0


@dataclass(frozen=True)
class Shape:
    """What an attempt asks for; see `State` for the fields."""

    run_id: str
    attempt: str
    expected: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    max_restarts: int


def begin(old: State | None, shape: Shape, node: str, incarnation: str, now_ns: int) -> State:
    """Return the first state of an attempt, whose coordinator is `node`; rounds go on counting from `old`."""
    history = old.history if old else ()
    if old and old.phase == RUNNING:
        entry = old.past(old.round)
        if entry:
            # Nobody was left to say how it ended: a requeue, or everything was killed.
            ended = replace(
                entry, ended_ns=now_ns, outcome=STOPPED, reason=f"ended without a word before attempt {shape.attempt}"
            )
            history = with_history(old, ended).history
    return State(
        run_id=shape.run_id,
        attempt=shape.attempt,
        attempts=(*(old.attempts if old else ()), shape.attempt),
        expected=shape.expected,
        min_nodes=shape.min_nodes,
        max_nodes=shape.max_nodes,
        max_restarts=shape.max_restarts,
        restarts_used=0,
        coordinator=Lease(node, incarnation, old.coordinator.term + 1 if old else 1),
        phase=FORMING,
        round=old.round if old else 0,
        participants=(),
        world_size=0,
        master=None,
        lost=(),
        history=history,
        closed=None,
    )


def take_lease(state: State, node: str, incarnation: str) -> State:
    """Return `state` with `node` as its coordinator."""
    return replace(state, coordinator=Lease(node, incarnation, state.coordinator.term + 1))


def hand_over(state: State, seen: Seen, timing: Timing) -> State:
    """Return `state` with the lease given to the next one who stays; `state` itself when nobody does."""
    staying = [word for word in _alive(state, seen, timing) if word.reason is None]
    if not staying:
        return state
    heir = min(staying, key=lambda word: (word.position, word.node))
    return take_lease(state, heir.node, heir.incarnation)


def fold(state: State, seen: Seen, timing: Timing) -> State:
    """Return the state that follows from `state` and what is seen; `state` itself when nothing does."""
    if state.phase == CLOSED:
        return state
    if state.phase == RUNNING and _all_succeeded(state, seen):
        return _succeed(state, seen)
    told = [word for word in seen.words.values() if word.attempt == state.attempt and word.stop_signal]
    if told and _all_told(state, seen, timing):
        return _stop(state, seen, timing, told)
    if told and seen.told_for_s < timing.stop_spread_s:
        return state
    if state.phase == RUNNING:
        state = _fold_running(state, seen, timing)
    if state.phase == FORMING:
        state = _fold_forming(state, seen, timing)
    return state


# Running: has the round ended?


def _fold_running(state: State, seen: Seen, timing: Timing) -> State:
    failures: list[Failure] = []
    lost: list[Participant] = []
    leaving: list[NodeWord] = []
    again: list[NodeWord] = []
    for participant in state.participants:
        word = _word_of(participant, seen)
        if word and word.failure and word.failure.round == state.round:
            failures.append(word.failure)
        elif word and word.status == SUCCEEDED and word.round == state.round:
            continue
        elif word and word.reason is not None:
            leaving.append(word)
        elif word and word.status == READY and word.round == state.round:
            again.append(word)
        elif seen.silent_s.get(participant.node, 0.0) >= timing.node_timeout_s or _replaced(state, participant, seen):
            lost.append(participant)
    # Ranks fail when a peer's node is told to stop: the stop is the cause then, their failures are its effect.
    if failures and not any(word.stop_signal for word in leaving):
        return _after_failure(state, seen, failures)
    if lost or leaving:
        return _after_loss(state, seen, lost, leaving)
    if again:
        what = f"{', '.join(word.node for word in again)} asked for the next round"
        return _restart(_end_round(state, seen, FAILED, what, None), seen, what)
    return _admit(state, seen, timing) if timing.rejoin == AT_ONCE else state


def _admit(state: State, seen: Seen, timing: Timing) -> State:
    """End the round for late nodes when there is room for them; that is no failure, so no restart is used up."""
    room = state.max_nodes - len(state.participants)
    alive = {word.node for word in _alive(state, seen, timing)}
    late = [word.node for word in waiting(state, seen.words) if word.node in alive]
    if room <= 0 or not late or (len(late) < room and seen.joining_for_s < timing.last_call_s):
        return state
    what = f"{', '.join(sorted(late))} joined"
    return replace(_end_round(state, seen, STOPPED, what, None), phase=FORMING)


def waiting(state: State, words: Mapping[str, NodeWord]) -> list[NodeWord]:
    """Return the words of nodes that are ready and have no part in the newest round."""
    return [
        word
        for word in words.values()
        if word.attempt == state.attempt
        and word.status == READY
        and word.reason is None
        and state.participant(word.node, word.incarnation) is None
    ]


def _word_of(participant: Participant, seen: Seen) -> NodeWord | None:
    """Return the participant's word, None when its node has none or speaks for another agent by now."""
    word = seen.words.get(participant.node)
    return word if word is not None and word.incarnation == participant.incarnation else None


def _all_succeeded(state: State, seen: Seen) -> bool:
    words = [_word_of(participant, seen) for participant in state.participants]
    return all(word is not None and word.status == SUCCEEDED and word.round == state.round for word in words)


def _succeed(state: State, seen: Seen) -> State:
    state = _end_round(state, seen, SUCCEEDED, None, None)
    reason = f"all {state.world_size} ranks on {_count(len(state.participants), 'node')} succeeded"
    return close(state, SUCCEEDED, reason, EXIT_SUCCESS, seen.now_ns)


def _replaced(state: State, participant: Participant, seen: Seen) -> bool:
    # Another attempt's word proves nothing: it is an old one read late, or an agent that has no business here.
    word = seen.words.get(participant.node)
    return word is not None and word.incarnation != participant.incarnation and word.attempt == state.attempt


def _after_failure(state: State, seen: Seen, failures: Sequence[Failure]) -> State:
    first = failures[0]
    what = describe(first)
    state = _end_round(state, seen, FAILED, what, first)
    return _refuse_restart(state, seen) or _restart(state, seen, what)


def _refuse_restart(state: State, seen: Seen) -> State | None:
    """Close when a rank of the newest round said "do not restart", perhaps after another one had failed."""
    for participant in state.participants:
        word = _word_of(participant, seen)
        said = word.failure if word else None
        if said and said.round == state.round and said.exit_code == EXIT_DO_NOT_REQUEUE:
            code = f"code {EXIT_DO_NOT_REQUEUE}: do not restart, do not requeue"
            reason = f"rank {said.rank} on {said.node} ended with {code}"
            return close(state, FAILED, reason, EXIT_DO_NOT_REQUEUE, seen.now_ns)
    return None


def _after_loss(state: State, seen: Seen, lost: Sequence[Participant], leaving: Sequence[NodeWord]) -> State:
    reasons = [f"{word.node} left: {word.reason}" for word in leaving]
    reasons += [
        f"{p.node} was lost: its agent gave no sign of life for {seen.silent_s.get(p.node, 0.0):.1f} s"
        if not _replaced(state, p, seen)
        else f"{p.node} was lost: its agent was started anew"
        for p in lost
    ]
    gone = [(word.node, word.incarnation) for word in leaving] + [(p.node, p.incarnation) for p in lost]
    entries = tuple(
        LostNode(node, incarnation, state.round, seen.now_ns, round(seen.silent_s.get(node, 0.0), 3))
        for node, incarnation in gone
    )
    what = "; ".join(reasons)
    state = _end_round(replace(state, lost=state.lost + entries), seen, NODE_LOST, what, None)
    return _restart(state, seen, what)


def _restart(state: State, seen: Seen, what: str) -> State:
    if state.restarts_used >= state.max_restarts:
        budget = f"no restarts allowed (--max-restarts {state.max_restarts})"
        if state.max_restarts:
            budget = f"all {state.max_restarts} restarts are used up"
        return close(state, FAILED, f"{what}; {budget}", EXIT_FAILED, seen.now_ns)
    return replace(state, phase=FORMING, restarts_used=state.restarts_used + 1)


def _end_round(state: State, seen: Seen, outcome: str, reason: str | None, failure: Failure | None) -> State:
    entry = state.past(state.round)
    if entry is None:
        return state
    return with_history(state, replace(entry, ended_ns=seen.now_ns, outcome=outcome, reason=reason, failure=failure))


def _all_told(state: State, seen: Seen, timing: Timing) -> bool:
    """Tell whether everybody who is alive was told from outside to stop (scancel, preemption, time limit, Ctrl-C)."""
    alive = _alive(state, seen, timing)
    return bool(alive) and all(word.stop_signal for word in alive)


def _stop(state: State, seen: Seen, timing: Timing, told: Sequence[NodeWord]) -> State:
    first = told[0]
    reason = first.reason or "stopped"
    last = state.past(state.round)
    if state.phase == RUNNING or (last is not None and _was_the_stop(state, seen, timing, last)):
        state = _end_round(state, seen, STOPPED, reason, None)
    return close(state, STOPPED, reason, stop_code(first.stop_signal), seen.now_ns)


def _was_the_stop(state: State, seen: Seen, timing: Timing, last: RoundHistory) -> bool:
    """Tell whether the round ended as the first effect of the stop: one node heard of it before the others.

    A node or rank that was lost for another reason, or long before, keeps its place in the history.
    """
    if last.attempt != state.attempt or state.phase != FORMING:
        return False
    if last.outcome == NODE_LOST:
        told = {(word.node, word.incarnation) for word in seen.words.values() if word.stop_signal}
        return all((gone.node, gone.incarnation) in told for gone in state.lost if gone.round == last.round)
    by_signal = last.failure is not None and last.failure.signal in STOP_SIGNALS
    return last.outcome == FAILED and by_signal and seen.forming_for_s - seen.told_for_s < timing.stop_spread_s


def stop_code(name: str | None) -> int:
    """Return the exit code of a job that was stopped by that signal: 128 + its number."""
    try:
        return 128 + signal.Signals[name or ""].value
    except KeyError:
        return EXIT_FAILED


def close(state: State, outcome: str, reason: str, exit_code: int, now_ns: int) -> State:
    """Return `state` closed: everybody leaves with `exit_code`."""
    return replace(state, phase=CLOSED, closed=Closed(outcome, reason, exit_code, now_ns))


def finish(
    state: State, outcome: str, reason: str, exit_code: int, now_ns: int, failure: Failure | None = None
) -> State:
    """Return `state` closed by somebody who knows how it ended; the running round ended the same way."""
    entry = state.past(state.round)
    if state.phase == RUNNING and entry is not None:
        state = with_history(state, replace(entry, ended_ns=now_ns, outcome=outcome, reason=reason, failure=failure))
    return close(state, outcome, reason, exit_code, now_ns)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def describe(failure: Failure) -> str:
    """Return a failure in one line."""
    step = "" if failure.step is None else f" at step {failure.step}"
    return f"rank {failure.rank} on {failure.node} failed{step}: {failure.message}"


# Forming: can the next round begin?


def _alive(state: State, seen: Seen, timing: Timing) -> list[NodeWord]:
    """Return the words of this attempt's agents that are neither silent nor gone."""
    return [
        word
        for node, word in seen.words.items()
        if word.attempt == state.attempt
        and seen.silent_s.get(node, 0.0) < timing.node_timeout_s
        and not (word.status == "left" and not word.stop_signal)
    ]


def _fold_forming(state: State, seen: Seen, timing: Timing) -> State:
    if refused := _refuse_restart(state, seen):
        return refused
    staying = [
        word for word in _alive(state, seen, timing) if word.reason is None and _may_take_part(state, word, timing)
    ]
    ready = [word for word in staying if word.status == READY]
    # One that leaves may still be stopping workers; what they do to a checkpoint must come before the next round.
    busy = len([word for word in _alive(state, seen, timing) if word.status not in (READY, LEFT)])
    heard = {word.node for word in seen.words.values() if word.attempt == state.attempt}
    unheard = [node for node in state.expected if node not in heard]
    enough = len(ready) >= state.min_nodes
    overdue = seen.forming_for_s >= timing.join_timeout_s
    # Without a node list nobody knows who may still come; with one, the last missing node ends the wait.
    complete = bool(state.expected) and not unheard
    # Only the attempt's first round waits for the unknown: a node that never came must not delay every restart.
    first = not any(past.attempt == state.attempt for past in state.history)
    patience_s = timing.last_call_s
    if len(ready) >= state.max_nodes:
        patience_s = timing.settle_s if _out_of_order(state, ready, unheard) else 0.0
    awaited = first and not complete and seen.forming_for_s < patience_s
    # A busy node is about to be ready, unless a worker of its cannot be killed: it is not waited for without end.
    if enough and ((not busy and not awaited) or overdue):
        return _form(state, ready, seen)
    if complete and len(staying) < state.min_nodes:
        return _too_few(state, seen, len(staying), "and nothing can replace it")
    if overdue and not enough:
        return _too_few(state, seen, len(staying), f"after waiting {seen.forming_for_s:.0f} s")
    return state


def _may_take_part(state: State, word: NodeWord, timing: Timing) -> bool:
    return timing.rejoin != NEVER or not state.admitted or word.node in state.admitted


def _out_of_order(state: State, ready: Sequence[NodeWord], unheard: Sequence[str]) -> bool:
    """Tell whether a node that was not heard of yet comes before one that would take its place now."""
    chosen = {word.node for word in choose(ready, state.participants, state.max_nodes)}
    places = [place for place, node in enumerate(state.expected) if node in chosen]
    return bool(places) and any(node in unheard for node in state.expected[: places[-1]])


def _too_few(state: State, seen: Seen, staying: int, why: str) -> State:
    heard = {word.node for word in seen.words.values() if word.attempt == state.attempt}
    never = [node for node in state.expected if node not in heard]
    left = [
        f"{word.node} left: {word.reason}"
        for word in seen.words.values()
        if word.attempt == state.attempt and word.reason is not None
    ]
    last = state.past(state.round)
    # A round that lost a node has said so already, with the better words.
    told = last.reason if last and last.attempt == state.attempt and last.outcome == NODE_LOST else None
    parts = [told] if told else left
    if never:
        more = f" and {len(never) - 8} more" if len(never) > 8 else ""
        parts.append(f"never heard of {', '.join(never[:8])}{more}")
    count = f"{_count(staying, 'node')} left, at least {state.min_nodes} needed, {why}"
    return close(state, FAILED, "; ".join([*(p for p in parts if p), count]), EXIT_FAILED, seen.now_ns)


def _form(state: State, ready: Sequence[NodeWord], seen: Seen) -> State:
    chosen = choose(ready, state.participants, state.max_nodes)
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
        admitted=state.admitted or tuple(word.node for word in ready),
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

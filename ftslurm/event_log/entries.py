"""The events that a state proves, in their order, each with an identity (pure).

Not the difference of two states: a coordinator that takes over has not seen all of them. It writes what its state
proves and it has not written; what the one before has written too has the same identity, by which readers drop it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftslurm.dataclasses import replace
from ftslurm.records.event import LoggedEvent
from ftslurm.records.state import FORMING, HANG, RUNNING, SUCCEEDED, Failure, LostNode, RoundHistory, State
from ftslurm.records.stop import ANY_STEP
from ftslurm.slurm.nodelist import NodeListError, compress
from ftslurm.text import clip, duration, one_line, plural

ATTEMPT, COORDINATOR, ROUND, ROUND_ENDED = "attempt", "coordinator", "round", "round-ended"
FAILURE, HUNG, NODE_LOST, RESTART = "failure", "hang", "node-lost", "restart"
STOP, STOP_STEP, BAD_CHECKPOINT, END = "stop", "stop-step", "bad-checkpoint", "end"
EXCLUDED, NO_LONGER_EXCLUDED = "excluded", "no-longer-excluded"
VERDICT, REQUEUE = "verdict", "requeue"
KINDS = (
    *(ATTEMPT, COORDINATOR, ROUND, FAILURE, HUNG, NODE_LOST, ROUND_ENDED, RESTART),
    *(STOP, STOP_STEP, BAD_CHECKPOINT, END, EXCLUDED, NO_LONGER_EXCLUDED, VERDICT, REQUEUE),
)
NEWEST_ROUNDS = 3
"""One change may end a round and begin the next; to look at a hundred each time would cost the agent's loop 0.1 s."""
TEXT_LIMIT, LIST_LIMIT = 300, 2000
"""Characters of a text, and of a node list; a longer list is left out, for a part of it would be a wrong one."""


def identity(event: LoggedEvent) -> tuple[object, ...]:
    """Return what two lines about the same event have in common."""
    if event.event == COORDINATOR:
        return (event.event, event.term)
    if event.event == BAD_CHECKPOINT:
        # It stays in the state over all later attempts.
        return (event.event, event.text)
    moment = event.time_ns if event.event in (EXCLUDED, NO_LONGER_EXCLUDED) else None
    return (event.event, event.attempt, event.round, event.node, event.step, moment)


def events_of(state: State, rounds: int | None = None) -> list[LoggedEvent]:
    """Return the events of the state's attempt so far; times that a state does not have are None.

    Args:
        rounds: only this number of the newest rounds; None: all that are in the state.
    """
    lease = state.coordinator
    number = state.attempts.index(state.attempt) + 1 if state.attempt in state.attempts else len(state.attempts)
    size = f": {plural(len(state.expected), 'node')}" if state.expected else ""
    found = [
        LoggedEvent(ATTEMPT, state.attempt, f"attempt {number} of the run{size}", nodes=_list(state.expected)),
        LoggedEvent(COORDINATOR, state.attempt, f"{lease.node} coordinates (term {lease.term})", node=lease.node),
    ]
    history = [past for past in state.history if past.attempt == state.attempt]
    first = 0 if rounds is None else max(0, len(history) - rounds)
    for index in range(first, len(history)):
        found += _events_of_round(state, history[index], history[index - 1] if index else None)
    found += [_lost(state, one) for one in state.lost]
    if state.hang is not None:
        found.append(_failed(state, state.hang.failure()))
    found += _stop(state)
    found += [LoggedEvent(BAD_CHECKPOINT, state.attempt, one_line(path, TEXT_LIMIT)) for path in state.avoid]
    if (closed := state.closed) is not None:
        text = _line(f"{closed.outcome}: {closed.reason}")
        end = LoggedEvent(END, state.attempt, text, closed.time_ns, outcome=closed.outcome, cause=closed.cause)
        found.append(replace(end, exit_code=closed.exit_code))
    return [replace(event, term=lease.term) for event in found]


def new_events(state: State, known: Collection[tuple[object, ...]], now_ns: int) -> list[LoggedEvent]:
    """Return the events that the coordinator has not written yet, with the present time where the state has none.

    Args:
        known: identities of what it has written. Of a long run, what it may have missed is in the newest rounds: the
            coordinators before have written the others.
    """
    fresh = [event for event in events_of(state, NEWEST_ROUNDS) if identity(event) not in known]
    return [event if event.time_ns is not None else replace(event, time_ns=now_ns) for event in fresh]


def _events_of_round(state: State, past: RoundHistory, before: RoundHistory | None) -> list[LoggedEvent]:
    was, now = (before.nodes if before is not None else past.nodes), past.nodes
    joined, left = [node for node in now if node not in set(was)], [node for node in was if node not in set(now)]
    size = f"{plural(past.world_size, 'rank')} on {plural(len(now), 'node')}"
    changed = "".join(
        f"; {_names(nodes)} {verb}" for nodes, verb in ((joined, "joined"), (left, "left")) if before and nodes
    )
    found = [
        LoggedEvent(
            *(ROUND, past.attempt, _line(f"{size}{changed}"), past.formed_ns, past.round),
            nodes=_list(now),
            joined=_list(joined),
            left=_list(left),
            world_size=past.world_size,
        )
    ]
    if past.failure is not None:
        found.append(_failed(state, past.failure))
    if past.outcome == RUNNING:
        return found
    ran = "" if past.ended_ns is None else f" after {duration(max(0, past.ended_ns - past.formed_ns) / 1e9)}"
    why = f": {past.reason}" if past.reason and past.outcome != SUCCEEDED else ""
    text = _line(f"{past.outcome}{ran}{why}")
    found.append(LoggedEvent(ROUND_ENDED, past.attempt, text, past.ended_ns, past.round, outcome=past.outcome))
    newest = past.round == (state.round if state.phase == FORMING else state.round - 1)
    # Only the newest one's budget is in the state.
    if newest and state.closed is None and state.stop is None:
        budget = (state.restarts_used, state.max_restarts)
        text = f"{budget[0]} of {plural(budget[1], 'restart')} used"
        again = LoggedEvent(RESTART, past.attempt, text, past.ended_ns, past.round)
        found.append(replace(again, restarts_used=budget[0], max_restarts=budget[1]))
    return found


def _failed(state: State, failure: Failure) -> LoggedEvent:
    step = "" if failure.step is None else f" at step {failure.step}"
    text = _line(f"rank {failure.rank} on {failure.node}{step}: {failure.message}")
    kind = HUNG if failure.kind == HANG else FAILURE
    event = LoggedEvent(kind, state.attempt, text, failure.time_ns, failure.round, node=failure.node, rank=failure.rank)
    event = replace(event, step=failure.step, cause=failure.kind)
    return replace(event, exit_code=failure.exit_code, signal=failure.signal)


def _lost(state: State, lost: LostNode) -> LoggedEvent:
    how = f"silent for {duration(lost.silent_s)}" if lost.silent_s else "its agent left"
    return LoggedEvent(NODE_LOST, state.attempt, f"{lost.node}: {how}", lost.time_ns, lost.round, node=lost.node)


def _stop(state: State) -> list[LoggedEvent]:
    stop = state.stop
    if stop is None:
        return []
    text = _line(stop.reason)
    found = [LoggedEvent(STOP, state.attempt, text, stop.requested_ns, node=stop.node, cause=stop.cause)]
    if stop.committed:
        step = stop.step if stop.step is not None and stop.step != ANY_STEP else None
        where = f"at step {step}" if step is not None else "at their next step"
        found.append(LoggedEvent(STOP_STEP, state.attempt, f"all ranks leave {where}", round=stop.round, step=step))
    return found


def _list(nodes: Sequence[str]) -> str | None:
    try:
        text = compress(nodes)
    except NodeListError:
        text = ",".join(nodes)
    return text if 0 < len(text) <= LIST_LIMIT else None


def _names(nodes: Sequence[str]) -> str:
    return clip(_list(nodes) or plural(len(nodes), "node"), 80)


def _line(text: str) -> str:
    return one_line(text, TEXT_LIMIT)

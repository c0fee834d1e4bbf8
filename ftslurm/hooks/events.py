"""The events of a run that a command may follow, as far as a state proves them, and the call that runs it (pure)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ftslurm.boot import module_command
from ftslurm.dataclasses import dataclass
from ftslurm.records.state import FAILED, NODE_LOST, RUNNING, STOPPED, RoundHistory, State
from ftslurm.records.state import HANG as HANG_KIND
from ftslurm.text import plural

FAILURE, RESTART, HANG, REQUEUE, STOP, END = "failure", "restart", "hang", "requeue", "stop", "end"
EVENTS = (FAILURE, RESTART, HANG, REQUEUE, STOP, END)
COMMAND_S = 30.0
"""Time-out of the command for one event, in seconds."""


@dataclass(frozen=True)
class Event:
    """One event; name, attempt and round identify it.

    Attributes:
        name: one of EVENTS.
        round: number of the round that failed, hung or began; 0: the attempt as a whole.
        time_ns: by the coordinator's clock; None: unknown.
        text: one line.
    """

    name: str
    attempt: str
    round: int
    time_ns: int | None
    text: str


def events_of(state: State) -> list[Event]:
    """Return the events of the state's attempt so far, in their order."""
    found: list[Event] = []
    if len(state.attempts) > 1:
        number = state.attempts.index(state.attempt) + 1 if state.attempt in state.attempts else len(state.attempts)
        found.append(Event(REQUEUE, state.attempt, 0, None, f"attempt {number} begins"))
    before: RoundHistory | None = None
    for past in state.history:
        if past.attempt != state.attempt:
            continue
        if before is not None:
            text = f"round {past.round}: {plural(past.world_size, 'rank')} on {plural(len(past.nodes), 'node')}"
            found.append(Event(RESTART, past.attempt, past.round, past.formed_ns, text))
        if past.outcome in (FAILED, NODE_LOST):
            hung = past.failure is not None and past.failure.kind == HANG_KIND
            name, reason = HANG if hung else FAILURE, past.reason or past.outcome
            found.append(Event(name, past.attempt, past.round, past.ended_ns, f"round {past.round}: {reason}"))
        before = past if past.outcome != RUNNING else before
    if state.closed is not None:
        text = f"{state.closed.outcome}: {state.closed.reason}"
        names = (STOP, END) if state.closed.outcome == STOPPED else (END,)
        found += [Event(name, state.attempt, 0, state.closed.time_ns, text) for name in names]
    return found


def arguments_of(python: str, run_dir: str, node: str, command: str, events: Sequence[Event]) -> tuple[str, ...]:
    """Return the command line of `ftslurm.hooks.child`, which runs the user's command for these events."""
    listed = json.dumps([[one.name, one.attempt, one.round, one.time_ns, one.text] for one in events])
    return module_command(python, "ftslurm.hooks.child", run_dir, node, command, listed)

"""Texts of an agent's log lines and reasons: one line per event (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.agent.actions import Log
from ftslurm.records.state import (
    CLOSED,
    FAILED,
    FORMING,
    HANG,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    UNREACHABLE,
    Failure,
    State,
)
from ftslurm.rendezvous.checkpoints import bad_checkpoint
from ftslurm.rendezvous.unreachable import wait_s
from ftslurm.terminal import ERROR, INFO, WARNING
from ftslurm.text import duration, plural, safe


def short(text: str, length: int = 160) -> str:
    """Return `text`, truncated to one line of a terminal; the report has the whole text."""
    return text if len(text) <= length else text[: length - 1] + "…"


def failure_line(failure: Failure) -> str:
    """Return the line for the first failure of a round on this node."""
    step = "" if failure.step is None else f" at step {failure.step}"
    peers = ", perhaps because of another rank" if failure.by_peers else ""
    what = f"rank {failure.rank} failed{step}{peers}" if failure.kind != UNREACHABLE else "cannot begin"
    return f"round {failure.round}: {what}: {short(failure.message)}"


def never_begun(rank: int, exit_code: int, prefix: Sequence[str]) -> str:
    """Return the line for a rank whose container did not get as far as starting it."""
    return (
        f"rank {rank}: `{short(safe(' '.join(prefix)), 60)}` ended with code {exit_code} before the rank began: its "
        "message is in this output; see docs/containers.md for what must be bound"
    )


def stop_reason(failure: Failure) -> str:
    """Return why a round is stopped on the node of its first failure."""
    if failure.kind == UNREACHABLE:
        return failure.message
    if failure.kind == HANG:
        return f"the round hung (time-out of rank {failure.rank} on {failure.node})"
    return f"rank {failure.rank} on {failure.node} failed"


def end_reason(state: State, round_: int, attempt: str) -> str:
    """Return why a round of an attempt is over, according to a state in which it no longer runs."""
    if state.attempt != attempt:
        return f"attempt {state.attempt} has taken over"
    past = state.past(round_)
    if past is not None and past.reason:
        return past.reason
    return state.closed.reason if state.closed else "the round is over"


def messages(old: State | None, new: State) -> list[Log]:
    """Return the coordinator's lines for the events between `old` and `new`."""
    lines: list[Log] = []
    if len(new.attempts) > 1 and (old is None or old.attempt != new.attempt) and new.phase != CLOSED:
        lines.append(Log(_goes_on(new)))
    if old is not None and old.attempt == new.attempt and old.phase == RUNNING and new.phase != CLOSED:
        # One change may end a round and begin the next.
        past = new.past(old.round)
        if past is not None and past.outcome != RUNNING:
            then = f"restart {new.restarts_used} of {new.max_restarts}"
            if new.phase == FORMING and (seconds := wait_s(new)):
                then = f"trying again in {duration(seconds)}"
            lines.append(Log(f"round {past.round} ended: {short(past.reason or past.outcome)}; {then}", WARNING))
    for path in new.avoid:
        if old is not None and old.attempt == new.attempt and path not in old.avoid:
            lines.append(Log(bad_checkpoint(path), WARNING))
    if new.phase == RUNNING and (old is None or old.round != new.round) and new.master is not None:
        size = f"{plural(new.world_size, 'rank')} on {plural(len(new.participants), 'node')}"
        lines.append(Log(f"round {new.round}: {size}, master {new.master.address}:{new.master.port}"))
    if new.phase == CLOSED and new.closed is not None and (old is None or old.phase != CLOSED):
        level = {SUCCEEDED: INFO, STOPPED: WARNING}.get(new.closed.outcome, ERROR)
        lines.append(Log(f"{new.closed.outcome}: {short(new.closed.reason, 300)}", level))
    return lines


def _goes_on(state: State) -> str:
    """Return the line for the beginning of an attempt that goes on with an earlier one's run."""
    before = state.history[-1].outcome if state.history else None
    how = f" ({before})" if before in (FAILED, STOPPED, SUCCEEDED) else ""
    reached = f", which reached step {state.reached_before}" if state.reached_before is not None else ""
    return f"run {state.run_id} goes on: attempt {len(state.attempts)}, after {state.attempts[-2]}{how}{reached}"

"""State updates that end a round or close an attempt."""

from __future__ import annotations

import signal

from ftslurm.dataclasses import replace
from ftslurm.monitor.timeouts import Learned, learn, merge
from ftslurm.rendezvous.observation import Observation, record_of
from ftslurm.rendezvous.state import (
    CLOSED,
    EXIT_FAILED,
    HANG,
    RUNNING,
    UNREACHABLE,
    Closed,
    Failure,
    State,
    with_history,
)


def end_round(
    state: State, observation: Observation, outcome: str, reason: str | None, failure: Failure | None
) -> State:
    """Return `state` with the outcome of its newest round entered in its history."""
    entry = state.past(state.round)
    if entry is None:
        return state
    state = replace(state, hang=None, learned=_learn(state, observation))
    return with_history(
        state, replace(entry, ended_ns=observation.now_ns, outcome=outcome, reason=reason, failure=failure)
    )


def _learn(state: State, observation: Observation) -> Learned | None:
    """Return the time-outs of the next round, learned from each node's last record of this one."""
    parts = [
        record.vitals.longest
        for participant in state.participants
        if (record := record_of(participant, observation)) is not None
        and record.vitals
        and record.vitals.round == state.round
    ]
    return learn(state.learned, merge(parts)) if parts else state.learned


def close(state: State, outcome: str, reason: str, exit_code: int, now_ns: int) -> State:
    """Return `state` closed: every agent exits with `exit_code`."""
    return replace(state, phase=CLOSED, closed=Closed(outcome, reason, exit_code, now_ns))


def finish(
    state: State, outcome: str, reason: str, exit_code: int, now_ns: int, failure: Failure | None = None
) -> State:
    """Return `state` closed with a known outcome, which a running round takes over."""
    entry = state.past(state.round)
    if state.phase == RUNNING and entry is not None:
        state = with_history(state, replace(entry, ended_ns=now_ns, outcome=outcome, reason=reason, failure=failure))
    return close(state, outcome, reason, exit_code, now_ns)


def stop_code(name: str | None) -> int:
    """Return the exit code of a job stopped by a signal: 128 + its number."""
    try:
        return 128 + signal.Signals[name or ""].value
    except KeyError:
        return EXIT_FAILED


def describe(failure: Failure) -> str:
    """Return a failure in one line."""
    if failure.kind == UNREACHABLE:
        # The message names both nodes; no rank was started.
        return failure.message
    step = "" if failure.step is None else f" at step {failure.step}"
    happened = "hung" if failure.kind == HANG else "failed"
    return f"rank {failure.rank} on {failure.node} {happened}{step}: {failure.message}"


def count(number: int, thing: str) -> str:
    """Return "1 node", "2 nodes"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"

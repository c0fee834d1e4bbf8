"""State updates that end a round or close an attempt."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from ftslurm.dataclasses import replace
from ftslurm.monitor.timeouts import Learned, learn, merge
from ftslurm.records.cause import CANCELLED, INTERRUPTED, UNKNOWN
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import (
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
from ftslurm.rendezvous.observation import Observation, record_of


def end_round(
    state: State, observation: Observation, outcome: str, reason: str | None, failure: Failure | None
) -> State:
    """Return `state` with the outcome of its newest round entered in its history."""
    entry = state.past(state.round)
    if entry is None:
        return state
    records = [record for part in state.participants if (record := record_of(part, observation)) is not None]
    reached = highest_step(records, state.round, state.reached)
    state = replace(state, hang=None, learned=_learn(state, observation), reached=reached)
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


def highest_step(records: Iterable[NodeRecord], round_: int, reached: int | None) -> int | None:
    """Return the highest of the steps that the ranks of a round have reported, and `reached`; None without any."""
    steps = [] if reached is None else [reached]
    for record in records:
        if record.vitals is not None and record.vitals.round == round_:
            steps += [rank.step for rank in record.vitals.ranks if rank.step is not None]
        vote = record.stop_vote
        if vote is not None and vote.round == round_ and vote.step is not None:
            steps.append(vote.step)
        # More recent than the vitals, which are published with the heartbeat.
        for found in (record.failure, record.hang):
            if found is not None and found.round == round_ and found.step is not None:
                steps.append(found.step)
    return max(steps, default=None)


def close(state: State, outcome: str, reason: str, exit_code: int, now_ns: int, cause: str = UNKNOWN) -> State:
    """Return `state` closed: every agent exits with `exit_code`; `cause`: see `ftslurm.records.cause`."""
    return replace(state, phase=CLOSED, closed=Closed(outcome, reason, exit_code, now_ns, cause))


def finish(
    state: State,
    outcome: str,
    reason: str,
    exit_code: int,
    now_ns: int,
    failure: Failure | None = None,
    cause: str = UNKNOWN,
) -> State:
    """Return `state` closed with a known outcome, which a running round takes over."""
    entry = state.past(state.round)
    if state.phase == RUNNING and entry is not None:
        state = with_history(state, replace(entry, ended_ns=now_ns, outcome=outcome, reason=reason, failure=failure))
    return close(state, outcome, reason, exit_code, now_ns, cause)


def stop_cause(name: str | None) -> str:
    """Return the cause of an end by a stop signal, as far as the agents know it: Slurm's data say more at job end."""
    return CANCELLED if name == "SIGINT" else INTERRUPTED


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
    if failure.kind == HANG:
        # The rank whose time is over need not be the one that hangs.
        return f"the round hung{step} (rank {failure.rank} on {failure.node}: {failure.message})"
    return f"rank {failure.rank} on {failure.node} failed{step}: {failure.message}"

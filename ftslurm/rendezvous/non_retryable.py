"""Failures that a restart cannot cure: told by the ranks themselves, or by the same failure at start again (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.dataclasses import replace
from ftslurm.rendezvous.state import SPAWN, Failure, RoundHistory, State, with_history

SAME_RANK, ANY_RANK = 2, 3
"""So many rounds in a row, failed at start in the same way by the same rank, or by any, are enough."""


def why_non_retryable(failures: Sequence[Failure]) -> str | None:
    """Return why the ranks would fail again, in words; None: they might not."""
    return next((failure.again for failure in failures if failure.again), None)


def agreed(state: State, failures: Sequence[Failure]) -> bool:
    """Whether the ranks of all nodes of the round have failed so."""
    return {f.node for f in failures if f.again} >= {p.node for p in state.participants}


def compared(state: State, failures: Sequence[Failure]) -> State:
    """Return `state` whose newest round's failure has the signature that its node found after it had published it.

    What a rank wrote to its stderr lies on the shared filesystem; the failure itself is not held up for it.
    """
    last = state.past(state.round)
    if last is None or last.failure is None or last.failure.signature is not None:
        return state
    known = last.failure
    for failure in failures:
        if failure.signature is not None and replace(failure, signature=None) == known:
            return with_history(state, replace(last, failure=failure))
    return state


def disagreeing(state: State, failures: Sequence[Failure]) -> bool:
    """Whether it is open yet if all nodes lack something, or only some: none has failed by anything else."""
    if not all(f.again and not f.everywhere for f in failures):
        return False
    return not agreed(state, failures)


def repeated(state: State) -> list[int]:
    """Return the rounds, the newest last, that failed at start in the same way; empty if that is no pattern yet."""
    rounds: list[RoundHistory] = []
    for entry in reversed(state.history):
        newest = rounds[0].failure if rounds else entry.failure
        if entry.attempt != state.attempt or entry.failure is None or newest is None:
            break
        if not _at_start(entry.failure) or not _same(entry.failure, newest):
            break
        rounds.append(entry)
    ranks = [entry.failure.rank for entry in rounds[:SAME_RANK] if entry.failure is not None]
    if len(ranks) == SAME_RANK and len(set(ranks)) == 1:
        return [entry.round for entry in reversed(rounds[:SAME_RANK])]
    return [entry.round for entry in reversed(rounds[:ANY_RANK])] if len(rounds) >= ANY_RANK else []


def _at_start(failure: Failure) -> bool:
    return failure.at_start or failure.kind == SPAWN


def _same(one: Failure, other: Failure) -> bool:
    """Tell whether two failures are the same one; where there is nothing to compare, an exit code proves nothing."""
    if (one.kind, one.exit_code, one.signal) != (other.kind, other.exit_code, other.signal):
        return False
    if one.kind == SPAWN:
        # The agent's own words, which name the program and the operating system's error.
        return _without_numbers(one.message) == _without_numbers(other.message)
    return one.signature is not None and one.signature == other.signature


def _without_numbers(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)

"""Failures that a restart cannot cure: marked so by the ranks, or repeated identically at start (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.dataclasses import replace
from ftslurm.records.state import SPAWN, Failure, RoundHistory, State, with_history

SAME_RANK, ANY_RANK = 2, 3
"""Number of consecutive rounds with the same failure at start, of the same rank or of any rank, that is decisive."""


def why_non_retryable(failures: Sequence[Failure]) -> str | None:
    """Return why the ranks would fail again, as text; None: they might not."""
    return next((failure.non_retryable for failure in failures if failure.non_retryable), None)


def on_all_nodes(state: State, failures: Sequence[Failure]) -> bool:
    """Return whether ranks of all nodes of the round have non-retryable failures."""
    return {f.node for f in failures if f.non_retryable} >= {p.node for p in state.participants}


def with_signature(state: State, failures: Sequence[Failure]) -> State:
    """Return `state` with the signature of its newest round's failure, which the node publishes after the failure.

    It is computed from the rank's stderr on the shared filesystem; the failure itself is not delayed for that.
    """
    last = state.past(state.round)
    if last is None or last.failure is None or last.failure.signature is not None:
        return state
    current = last.failure
    for failure in failures:
        if failure.signature is not None and replace(failure, signature=None) == current:
            return with_history(state, replace(last, failure=failure))
    return state


def awaiting_other_nodes(state: State, failures: Sequence[Failure]) -> bool:
    """Return whether it is still open if all nodes lack something or only some: no rank failed for another reason."""
    if not all(f.non_retryable and not f.on_any_node for f in failures):
        return False
    return not on_all_nodes(state, failures)


def repeated(state: State) -> list[int]:
    """Return the rounds, newest last, that failed identically at start; empty if they are too few."""
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
    """Return whether two failures are the same; without a signature to compare, an exit code proves nothing."""
    if (one.kind, one.exit_code, one.signal) != (other.kind, other.exit_code, other.signal):
        return False
    if one.kind == SPAWN:
        # The agent's own message, which names the program and the operating system's error.
        return _without_numbers(one.message) == _without_numbers(other.message)
    return one.signature is not None and one.signature == other.signature


def _without_numbers(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)

"""Failures that a restart cannot cure: told by the ranks themselves, or by the same failure at start again (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.rendezvous.state import SPAWN, Failure, RoundHistory, State

SAME_RANK, ANY_RANK = 2, 3
"""So many rounds in a row, failed at start in the same way by the same rank, or by any, are enough."""


def hopeless(failures: Sequence[Failure]) -> str | None:
    """Return why the ranks would fail again, in words; None: they might not."""
    return next((failure.again for failure in failures if failure.again), None)


def agreed(state: State, failures: Sequence[Failure]) -> bool:
    """Whether the ranks of all nodes of the round have failed so."""
    return {f.node for f in failures if f.again} >= {p.node for p in state.participants}


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
        if not _at_start(entry.failure) or _signature(entry.failure) != _signature(newest):
            break
        rounds.append(entry)
    ranks = [entry.failure.rank for entry in rounds[:SAME_RANK] if entry.failure is not None]
    if len(ranks) == SAME_RANK and len(set(ranks)) == 1:
        return [entry.round for entry in reversed(rounds[:SAME_RANK])]
    return [entry.round for entry in reversed(rounds[:ANY_RANK])] if len(rounds) >= ANY_RANK else []


def _at_start(failure: Failure) -> bool:
    return failure.at_start or failure.kind == SPAWN


def _signature(failure: Failure) -> tuple[str, int | None, str | None, str]:
    """What two failures of the same kind have in common: all but the numbers in the message."""
    text = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", failure.message)
    return failure.kind, failure.exit_code, failure.signal, text

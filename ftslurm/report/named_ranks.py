"""Failures that a runtime raises on all ranks although it names those where it happened (pure).

torch.distributed.checkpoint gathers the failures of all ranks, and raises a CheckpointException with them on each.
DistributedDataParallel compares two ranks' numbers of parameters on each rank: all of them show which rank differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ftslurm.failures.reason import ON_RANKS
from ftslurm.pattern import pattern
from ftslurm.report.failed_worker import FailedWorker

_NUMBER = pattern(r"\d+")
_CALLS = pattern(r"\b[Rr]ank (\d{1,6}) is running collective: CollectiveFingerPrint\(([^)]{1,400}?)\)")
_PARAMETERS = pattern(r"\b[Rr]ank (\d{1,6}) has (?:inconsistent )?(\d{1,9}) params")


def named_ranks(failed: FailedWorker) -> frozenset[int]:
    """Return the ranks that a failure names as those where it happened; empty: it names none."""
    again = failed.exception.raised_again if failed.exception is not None else ""
    return frozenset(map(int, _NUMBER.findall(again))) if again.startswith(ON_RANKS) else frozenset()


def named_first(ordered: Sequence[FailedWorker]) -> list[FailedWorker]:
    """Return the failures of a round with one of a rank first that the first of them names, if it failed so, too."""
    named = named_ranks(ordered[0]) if ordered else frozenset()
    odd = _odd_one(ordered) or _odd_call(ordered)
    if odd:
        found = next((each for each in ordered if each.rank in odd), None)
        return list(ordered) if found is None else [found, *(each for each in ordered if each is not found)]
    found = next((each for each in ordered if each.rank in named and named_ranks(each) == named), None)
    return list(ordered) if found is None else [found, *(each for each in ordered if each is not found)]


def odd_model(failed: Sequence[FailedWorker]) -> list[str]:
    """Return which rank's model differs from that of all others, by the numbers of parameters that they report."""
    odd = _odd_one(failed)
    if odd is None:
        return []
    (rank, own), *_ = odd.items()
    others = next(count for count in _numbers(failed).values() if count != own)
    return [f"rank {rank} has {own} parameters, the others have {others}"]


def _odd_one(failed: Sequence[FailedWorker]) -> dict[int, int] | None:
    """Return the only rank with another number of parameters than at least two others that agree, with its number."""
    numbers = _numbers(failed)
    usual = {count for count, ranks in Counter(numbers.values()).items() if ranks > 1}
    odd = {rank: count for rank, count in numbers.items() if count not in usual}
    return odd if len(usual) == 1 and len(odd) == 1 else None


def _odd_call(failed: Sequence[FailedWorker]) -> set[int]:
    """Return the only rank whose call, by all messages on calls that do not match, is not that of all others."""
    texts = (each.exception.message for each in failed if each.cause.name == "collective-mismatch" and each.exception)
    calls = {int(rank): call for text in texts for rank, call in _CALLS.findall(text)}
    usual, *rest = [call for call, _ in Counter(calls.values()).most_common()] or [""]
    odd = {rank for rank, call in calls.items() if call != usual}
    return odd if len(rest) == len(odd) == 1 and len(calls) > 2 else set()


def _numbers(failed: Sequence[FailedWorker]) -> dict[int, int]:
    texts = (each.exception.message for each in failed if each.cause.name == "model-mismatch" and each.exception)
    return {int(rank): int(count) for text in texts for rank, count in _PARAMETERS.findall(text)}

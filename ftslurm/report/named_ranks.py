"""Failures that a runtime raises on all ranks although it names those where it happened (pure).

torch.distributed.checkpoint gathers the failures of all ranks, and raises a CheckpointException with them on each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.failures.reason import ON_RANKS
from ftslurm.report.failed_worker import FailedWorker

_NUMBER = re.compile(r"\d+")


def named_ranks(failed: FailedWorker) -> frozenset[int]:
    """Return the ranks that a failure names as those where it happened; empty: it names none."""
    again = failed.exception.raised_again if failed.exception is not None else ""
    return frozenset(map(int, _NUMBER.findall(again))) if again.startswith(ON_RANKS) else frozenset()


def named_first(ordered: Sequence[FailedWorker]) -> list[FailedWorker]:
    """Return the failures of a round with one of a rank first that the first of them names, if it failed so, too."""
    named = named_ranks(ordered[0]) if ordered else frozenset()
    found = next((each for each in ordered if each.rank in named and named_ranks(each) == named), None)
    return list(ordered) if found is None else [found, *(each for each in ordered if each is not found)]


__all__ = ["named_first", "named_ranks"]

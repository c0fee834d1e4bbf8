"""Ranks that NCCL's watchdog ended, by the collectives in which their outputs place them (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.failures.nccl_timeout import CollectiveTimeout, difference, is_mismatch, odd_rank, timeout_of
from ftslurm.report.facts import RoundFiles
from ftslurm.report.failed_worker import FailedWorker

READ = 1024
"""Ranks whose outputs are compared, at most."""
BY_WATCHDOG = ("nccl-abort", "nccl-timeout")
"""Causes of ranks whose time for a collective was over."""


def odd_one_first(files: RoundFiles, failed: Sequence[FailedWorker]) -> list[FailedWorker]:
    """Return the failures with that rank first that alone was in another collective than the others."""
    odd = odd_rank(_timeouts(files, failed))
    first = [each for each in failed if odd is not None and each.rank == odd]
    return [*first, *(each for each in failed if each not in first)]


def are_parted(files: RoundFiles, failed: Sequence[FailedWorker]) -> bool:
    """Return whether ranks were in different collectives."""
    return bool(difference(_timeouts(files, failed)))


def are_mismatched(files: RoundFiles, failed: Sequence[FailedWorker]) -> bool:
    """Return whether ranks called different operations as the same collective of their sequence."""
    return is_mismatch(_timeouts(files, failed))


def remark(files: RoundFiles, failed: Sequence[FailedWorker]) -> list[str]:
    """Return in which collectives the ranks were, if in different ones."""
    text = difference(_timeouts(files, failed))
    return [text] if text else []


def _timeouts(files: RoundFiles, failed: Sequence[FailedWorker]) -> dict[int, CollectiveTimeout]:
    """Return the time-outs by rank; none if another failure may explain them."""
    if not failed or not all(each.cause.name in BY_WATCHDOG for each in failed):
        return {}
    found: dict[int, CollectiveTimeout] = {}
    for each in failed[:READ]:
        texts = [tail.text for tail in files.tails.get(each.rank, ()) if tail.stream != "stdout"]
        timeout = next((one for one in map(timeout_of, texts) if one is not None), None)
        if timeout is not None and each.rank >= 0:
            found[each.rank] = timeout
    return found

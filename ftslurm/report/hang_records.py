"""Whether a hang ended a round (pure). Its description is in `ftslurm.report.hang`, loaded only if there is one."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.report import root_cause
from ftslurm.report.facts import Failure, Snapshot
from ftslurm.report.failed_worker import FailedWorker

HANG = "hang"


def hang_of(snapshot: Snapshot, number: int) -> Failure | None:
    """Return the hang that ended a round; None if there was another reason."""
    entry = root_cause.history_of(snapshot, number)
    if entry is not None and entry.failure is not None:
        return entry.failure if entry.failure.kind == HANG else None
    if entry is not None and entry.outcome == "node-lost":
        # Ranks that waited for those of the lost node may have hung meanwhile.
        return None
    return next((f for f in root_cause.summaries(snapshot, number).values() if f.kind == HANG), None)


def is_first(hang: Failure, found: Sequence[FailedWorker]) -> bool:
    """Whether the hang was the round's first failure: no primary failure precedes the expiry of its time-out.

    A rank that raised an exception and then did not end makes the others hang.
    """
    time_ns = hang.time_ns
    return not any(
        s.cause.role == "primary" and s.time_ns is not None and time_ns is not None and s.time_ns < time_ns
        for s in found
    )


def without_hung(hang: Failure, found: Sequence[FailedWorker]) -> list[FailedWorker]:
    """Return the failed workers without the hung one, which ftslurm ended."""
    return [s for s in found if s.rank != hang.rank or s.kind == "exception"]


__all__ = ["HANG", "hang_of", "is_first", "without_hung"]

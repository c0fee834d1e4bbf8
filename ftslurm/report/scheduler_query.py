"""Query Slurm, at the time of the report, for a job whose end the records do not explain; bounded."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ftslurm.dataclasses import replace
from ftslurm.report.facts import Snapshot
from ftslurm.report.scheduler import attempt_to_query, scheduler_from

if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl

BOUND_S = 2.0


def scheduler_query(snapshot: Snapshot, report: dict[str, Any], slurm: SlurmControl | None = None) -> Snapshot | None:
    """Return the snapshot with Slurm's view of its newest attempt; None if no query is needed.

    Args:
        snapshot: the run directory.
        report: the report without Slurm's view.
        slurm: the interface to query; None: Slurm's commands, for at most two seconds in all.
    """
    attempt = attempt_to_query(snapshot, report["status"], report["cause"])
    if attempt is None or attempt.job_id is None:
        return None
    # Imported here: rarely needed, and a tenth of a small report's time.
    from ftslurm.slurm.account import account, bounded_slurm

    if slurm is None:
        slurm = bounded_slurm(os.environ, BOUND_S, time.monotonic)
    lost = sorted({lost.node for lost in snapshot.state.lost}) if snapshot.state else []
    view = scheduler_from(account(slurm, attempt.attempt, attempt.job_id, lost, snapshot.now_ns))
    if view.state is None and any(each.attempt == view.attempt for each in snapshot.scheduler):
        return None
    others = tuple(each for each in snapshot.scheduler if each.attempt != view.attempt)
    # The cached verdicts do not include this.
    return replace(snapshot, scheduler=(*others, view), judged={})

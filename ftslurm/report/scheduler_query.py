"""Ask Slurm, at the time of the report, how a job ended whose end is not explained by what is recorded; bounded."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ftslurm.dataclasses import replace
from ftslurm.report.facts import Snapshot
from ftslurm.report.scheduler import job_to_ask, scheduler_from

if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl

BOUND_S = 2.0


def scheduler_query(snapshot: Snapshot, report: dict[str, Any], slurm: SlurmControl | None = None) -> Snapshot | None:
    """Return the snapshot with Slurm's account of its newest attempt; None if there is no need to ask.

    Args:
        snapshot: what was read.
        report: what it tells without Slurm.
        slurm: whom to ask; None: Slurm's commands, for at most two seconds in all.
    """
    attempt = job_to_ask(snapshot, report["status"], report["cause"])
    if attempt is None or attempt.job_id is None:
        return None
    # Seldom needed, and it costs a tenth of a small report.
    from ftslurm.slurm.account import account, bounded_slurm

    if slurm is None:
        slurm = bounded_slurm(os.environ, BOUND_S, time.monotonic)
    lost = sorted({lost.node for lost in snapshot.state.lost}) if snapshot.state else []
    said = scheduler_from(account(slurm, attempt.attempt, attempt.job_id, lost, snapshot.now_ns))
    if said.state is None and any(known.attempt == said.attempt for known in snapshot.scheduler):
        return None
    others = tuple(known for known in snapshot.scheduler if known.attempt != said.attempt)
    # Verdicts were reached without knowing this.
    return replace(snapshot, scheduler=(*others, said), judged={})

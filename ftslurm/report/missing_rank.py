"""A rank that did not come to where the others gave up, as the first failure in place of the one that noticed (pure).

A monitored barrier and the set-up of process groups are in no record of collectives. Their exceptions, or the ranks
that did not fail, tell who is missing, and the stacks that the agents have collected tell where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import replace
from ftslurm.monitor.triage import ODD, Triage, describe, with_suspects
from ftslurm.records.error import Frame
from ftslurm.report.consequence import ABSENT, Origin
from ftslurm.report.facts import Failure, RoundFiles
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import MISSING, FirstFailure
from ftslurm.report.hang import hang_failure
from ftslurm.report.root_cause import HANG

MEETINGS = ("init_process_group", "monitored_barrier")
"""Functions of ``torch.distributed`` to which all ranks come, and which are not recorded."""
_C10D = "/torch/distributed/distributed_c10d.py"


def suspects(places: Triage | None, worker: FailedWorker, found: Origin) -> Triage | None:
    """Return the ranks' locations with those as suspects that did not come; None: it is not known where these were.

    Args:
        places: the triage of the ranks' stacks.
        worker: the failure that is the first one otherwise.
        found: what it follows from.
    """
    if places is None or found.kind != ABSENT or not _meeting(worker.frames):
        return None
    named = with_suspects(places, found.ranks, ODD, found.text)
    located = {rank for group in named.suspects if group.activity is not None for rank in group.ranks}
    return named if located.issuperset(found.ranks) else None


def missing_rank(
    files: RoundFiles, worker: FailedWorker, verdict: Triage, step: int | None, cwd: str | None
) -> FirstFailure:
    """Describe the ranks that did not come as the first failure.

    Args:
        files: the round.
        worker: the failure by which that was noticed.
        verdict: the ranks' locations, see `suspects`.
        step: the last step of the round.
        cwd: the working directory of its attempt.
    """
    noticed = noticed_by(worker, files.number)
    first = hang_failure(files, noticed, verdict, step, cwd)
    count = sum(len(group.ranks) for group in verdict.suspects)
    what = f"{'has' if count == 1 else 'have'} not come to {_meeting(worker.frames)}"
    hang = {**(first.hang or {}), "verdict": MISSING, "where": describe(verdict.suspects[0])}
    return replace(first, what=what, signature=f"{HANG}|{MISSING}|{what}", hang=hang)


def noticed_by(worker: FailedWorker, number: int) -> Failure:
    """Return the failure of a rank of a round, which waited for others, as that by which a hang was noticed."""
    return Failure(
        node=worker.node,
        rank=worker.rank,
        local_rank=worker.local_rank or 0,
        time_ns=worker.time_ns or 0,
        kind=HANG,
        exit_code=None,
        signal=None,
        message=worker.cause.title,
        step=worker.step,
        round=number,
    )


def _meeting(frames: Sequence[Frame]) -> str:
    """Return the function in which a rank waited for all others; empty: in no such one."""
    inner = (frame.function.rpartition(".")[2] for frame in reversed(frames) if frame.file.endswith(_C10D))
    return next((name for name in inner if name in MEETINGS), "")


__all__ = ["missing_rank", "noticed_by", "suspects"]

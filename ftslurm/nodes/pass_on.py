"""Passes exclusions on to a Slurm job that is pending or being requeued.

Measured on Slurm 22.05 and 24.11: ExcNodeList can be changed while the job is PENDING, and from `scontrol requeue`,
preemption or a node's failure on (its state is COMPLETING then, and the batch script still runs for KillWait seconds
after its SIGTERM); it stays over further requeues. While the job runs the change is refused ("Job is no longer
pending execution"), so a job that is requeued by its exit code (RequeueExit) cannot change it itself. One unknown name
makes Slurm refuse the whole list. A list that leaves too few nodes is accepted, and the job waits for ever: so the
number of usable nodes is checked here first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.slurm.control import SlurmControl
from ftslurm.slurm.errors import SlurmRefused
from ftslurm.slurm.facts import JobFacts
from ftslurm.slurm.nodelist import compress

_UNUSABLE = ("down", "drain", "fail", "error", "future", "unknown", "inval")
"""Prefixes of sinfo's states of nodes that are unusable until repaired; nodes in other states become available."""

_NOT_PENDING = ("Job has already finished", "no longer pending")


@dataclass(frozen=True)
class ExclusionPlan:
    """Change of a job's ExcNodeList.

    Attributes:
        exclude: the job's new ExcNodeList; None: no change.
        note: message for the user, one line; empty without one.
    """

    exclude: tuple[str, ...] | None
    note: str = ""


def plan(job: JobFacts, excluded: Sequence[str], partition: Mapping[str, str]) -> ExclusionPlan:
    """Compute the nodes that a job should exclude (pure).

    Args:
        job: Slurm's data on it.
        excluded: the excluded nodes, those with the highest priority first.
        partition: the nodes of its partition, and their states in sinfo's spelling.
    """
    if job.state not in ("PENDING", "COMPLETING"):
        return ExclusionPlan(None)
    new = [node for node in excluded if node in partition and node not in job.excluded]
    if not new:
        return ExclusionPlan(None)
    free = [node for node, state in partition.items() if node not in job.excluded and not state.startswith(_UNUSABLE)]
    left = len(free) - len([node for node in new if node in free])
    needed = job.num_nodes or 1
    if left < needed:
        return ExclusionPlan(
            None,
            f"job {job.job_id} does not exclude {compress(new)}: without them, {left} usable nodes are left in "
            f"partition {job.partition}, and it needs {needed}",
        )
    return ExclusionPlan((*job.excluded, *new), f"job {job.job_id} now excludes {compress(new)}")


def pass_on(slurm: SlurmControl, job_id: str, excluded: Sequence[str]) -> str:
    """Exclude these nodes from a job if Slurm allows that; return a message for the user, empty without one.

    Raises:
        SlurmError: Slurm did not answer, or refused.
        ValueError: `job_id` is not a valid job id.
    """
    if not excluded:
        return ""
    job = slurm.job(job_id)
    if job is None:
        return f"job {job_id}: Slurm has no record of it"
    if job.partition is None:
        return ""
    decided = plan(job, excluded, slurm.partition_nodes(job.partition))
    if decided.exclude is not None:
        try:
            slurm.exclude_nodes(job_id, decided.exclude)
        except SlurmRefused as error:
            # It was cancelled or reached its time limit instead of being requeued; or it runs again.
            if any(text in str(error) for text in _NOT_PENDING):
                return ""
            raise
    return decided.note

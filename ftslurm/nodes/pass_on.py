"""Passes the nodes that are excluded on to a job that waits in Slurm's queue, or is just being requeued.

Measured on Slurm 22.05 and 24.11: ExcNodeList can be changed while the job is PENDING, and from `scontrol requeue`,
preemption or a node's failure on (its state is COMPLETING then, and the batch script still runs for KillWait seconds
after its SIGTERM); it stays over further requeues. While the job runs it is refused ("Job is no longer pending
execution"), so a job that is requeued by its exit code (RequeueExit) cannot change it itself. One unknown name refuses
the whole list. A list that leaves too few nodes is taken, and the job waits for ever: that is looked at here first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.slurm.control import SlurmControl
from ftslurm.slurm.errors import SlurmRefused
from ftslurm.slurm.facts import JobFacts
from ftslurm.slurm.nodelist import compress

_OUT = ("down", "drain", "fail", "error", "future", "unknown", "inval")
"""How sinfo's words for nodes begin that no job gets until somebody mends them; others are worth waiting for."""

_NOT_WAITING = ("Job has already finished", "no longer pending")


@dataclass(frozen=True)
class Plan:
    """What to ask Slurm for.

    Attributes:
        exclude: the job's new ExcNodeList; None: it stays as it is.
        note: one line for people; empty: nothing to say.
    """

    exclude: tuple[str, ...] | None
    note: str = ""


def plan(job: JobFacts, excluded: Sequence[str], partition: Mapping[str, str]) -> Plan:
    """Decide which nodes a job is to avoid (pure).

    Args:
        job: as Slurm describes it.
        excluded: the nodes that are excluded, those most wanted out first.
        partition: the nodes that it could get, and their states as sinfo spells them.
    """
    if job.state not in ("PENDING", "COMPLETING"):
        return Plan(None)
    new = [node for node in excluded if node in partition and node not in job.excluded]
    if not new:
        return Plan(None)
    free = [node for node, state in partition.items() if node not in job.excluded and not state.startswith(_OUT)]
    left = len(free) - len([node for node in new if node in free])
    needed = job.num_nodes or 1
    if left < needed:
        return Plan(
            None,
            f"job {job.job_id} is not told to avoid {compress(new)}: without them, {left} usable nodes are left in "
            f"partition {job.partition}, and it needs {needed}",
        )
    return Plan((*job.excluded, *new), f"job {job.job_id} avoids {compress(new)} from now on, which are excluded")


def pass_on(slurm: SlurmControl, job_id: str, excluded: Sequence[str]) -> str:
    """Let a job avoid these nodes, where Slurm allows that; return what to tell, empty for nothing.

    Raises:
        SlurmError: Slurm did not answer, or refused.
        ValueError: `job_id` is no job's id.
    """
    if not excluded:
        return ""
    job = slurm.job(job_id)
    if job is None:
        return f"job {job_id}: Slurm knows no such job, or it ended long ago"
    if job.partition is None:
        return ""
    decided = plan(job, excluded, slurm.partition_nodes(job.partition))
    if decided.exclude is not None:
        try:
            slurm.exclude_nodes(job_id, decided.exclude)
        except SlurmRefused as error:
            # It was cancelled, or its time was over, and it only looked like one that comes back; or it runs again.
            if any(sign in str(error) for sign in _NOT_WAITING):
                return ""
            raise
    return decided.note

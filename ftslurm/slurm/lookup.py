"""Job queries for the commands that locate the job's run."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts

PATIENCE_S = 10.0


def job_facts(job_id: str) -> JobFacts | None:
    """Return Slurm's data on a job; None if Slurm has no such job, or does not answer within `PATIENCE_S` seconds."""
    # Imported on demand: most commands locate their run without Slurm.
    from ftslurm.slurm.control import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    try:
        return CommandSlurm(timeout_s=PATIENCE_S).job(job_id)
    except (SlurmError, ValueError):
        return None

"""What Slurm knows of a job, for the commands that look for its run."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts

PATIENCE_S = 10.0


def job_facts(job_id: str) -> JobFacts | None:
    """Ask Slurm for a job; None when it knows no such job, or does not say within `PATIENCE_S` seconds."""
    # Imported when it is needed: most commands find their run without Slurm.
    from ftslurm.slurm.control import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    try:
        return CommandSlurm(timeout_s=PATIENCE_S).job(job_id)
    except (SlurmError, ValueError):
        return None

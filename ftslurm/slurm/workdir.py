"""Where a job was submitted, for the commands that look for its run."""

from __future__ import annotations

PATIENCE_S = 10.0


def workdir_of(job_id: str) -> str | None:
    """Ask Slurm for a job's working directory; None when it does not say within `PATIENCE_S` seconds."""
    # Imported when somebody asks: most commands find their run without Slurm.
    from ftslurm.slurm.control import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    try:
        facts = CommandSlurm(timeout_s=PATIENCE_S).job(job_id)
    except (SlurmError, ValueError):
        return None
    return facts.work_dir if facts is not None else None

"""The link that ftsrun leaves beside a job's output when the run directory is elsewhere.

`slurm-123.ftslurm` leads to the run directory: for people, and for `ftslurm report 123`, which would otherwise have to
know what FTSLURM_SHARED_DIR or --rdzv-id were in the batch script.
"""

from __future__ import annotations

import os
from pathlib import Path


def pointer_name(job_id: str) -> str:
    """Return the link's name for a job `123` or array task `123_4`."""
    return f"slurm-{job_id}.ftslurm"


def leave_pointer(directory: Path, job_id: str, run_dir: str) -> bool:
    """Make the link in `directory`, in place of an older one; tell whether that could be done."""
    path = directory / pointer_name(job_id)
    temporary = directory / f".{path.name}.{os.urandom(8).hex()}.tmp"
    try:
        temporary.symlink_to(run_dir)
        # Nothing but our own link is replaced.
        if path.is_symlink() or not path.exists():
            temporary.rename(path)
            return True
        temporary.unlink()
    except OSError:
        pass
    return False

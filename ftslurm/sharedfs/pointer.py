"""The symbolic link that ftsrun creates beside a job's output if the run directory is elsewhere.

`slurm-123.ftslurm` points to the run directory, for users and for `ftslurm report 123`, which would otherwise need the
batch script's FTSLURM_SHARED_DIR or --rdzv-id.
"""

from __future__ import annotations

import os
from pathlib import Path


def pointer_name(job_id: str) -> str:
    """Return the link's name for a job `123` or array task `123_4`."""
    return f"slurm-{job_id}.ftslurm"


def leave_pointer(directory: Path, job_id: str, run_dir: str) -> bool:
    """Create the link in `directory`, replacing an older one; return whether that succeeded."""
    path = directory / pointer_name(job_id)
    temporary = directory / f".{path.name}.{os.urandom(8).hex()}.tmp"
    try:
        temporary.symlink_to(run_dir)
        # Only a link is replaced, never another file.
        if path.is_symlink() or not path.exists():
            temporary.rename(path)
            return True
        temporary.unlink()
    except OSError:
        pass
    return False

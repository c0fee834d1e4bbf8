"""The runs of one Slurm job: `job-25` for the first start of ftsrun, `job-25-2`, `job-25-3` for further ones.

A batch script may start ftsrun several times, for independent stages. The n-th start after a requeue continues the n-th
run, with its round numbers.

Beside the job's output ftsrun creates a symbolic link, `slurm-25.ftslurm`, to a run directory that is elsewhere: for
users, and for `ftslurm report 25`, which would otherwise need the batch script's FTSLURM_SHARED_DIR or --rdzv-id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"(job-[0-9]+(?:_[0-9]+)?)(?:-([0-9]+))?")
MOST_RUNS = 1000
"""No job starts ftsrun so often; other users may have taken names in a shared directory."""


def run_of_start(
    first: str, attempt: str, closed_by: Callable[[str], str | None], is_foreign: Callable[[str], bool]
) -> str:
    """Return the run directory of a start of ftsrun: the first one that this restart of the job has not closed.

    That may be one that it has begun and not closed: if it is running, the agents refuse it, else they take it over.

    Args:
        first: the run directory of the job's first start.
        attempt: the attempt's name.
        closed_by: returns the attempt that has closed a run; None for a run that is not closed or does not exist.
        is_foreign: whether something that is not this user's has that name. Job ids are easily guessed: in a directory
            that several users share, one must not stop another's job by taking its name.
    """
    names = [first, *(f"{first}-{number}" for number in range(2, MOST_RUNS + 1))]
    for run_dir in names:
        if is_foreign(run_dir):
            continue
        closer = closed_by(run_dir)
        if closer is None or _restart(closer) != _restart(attempt):
            return run_dir
    return first


def first_run(run_id: str) -> str:
    """Return the name of the run of the first start of ftsrun in the job of that run."""
    found = _NAME.fullmatch(run_id)
    return found[1] if found else run_id


def _restart(attempt: str) -> str:
    """Return `<job>.<restart>` of an attempt's name, without the Slurm step."""
    return attempt.partition("+")[0]


def runs_beside(run_dir: str) -> list[str]:
    """Return the names of all runs of that run directory's job, itself included, in the order of their starts.

    Raises:
        OSError: its parent directory cannot be read.
    """
    parent, name = os.path.split(run_dir)
    own = _NAME.fullmatch(name)
    if own is None:
        return [name]
    found = (_NAME.fullmatch(other) for other in os.listdir(parent or "."))
    same = [match for match in found if match is not None and match[1] == own[1]]
    return [match[0] for match in sorted(same, key=lambda match: int(match[2] or 1))]


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

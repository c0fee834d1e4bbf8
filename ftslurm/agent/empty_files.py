"""Removal of what ranks left empty at a round's end: inodes are quota, and most ranks of a large job print nothing."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LOGS = ("stdout.log", "stderr.log")


def remove_empty(directories: Iterable[str]) -> None:
    """Remove the empty log files of ranks that have ended, and their directories where nothing is left.

    Args:
        directories: of the ranks, see `ftslurm.sharedfs.rundir.rank_directory`; those above them stay, because other
            nodes may be making theirs.
    """
    for directory in directories:
        # A rank with output costs two calls: only an emptied directory is tried.
        gone = [_remove_if_empty(os.path.join(directory, name)) for name in LOGS]
        if all(gone):
            try:
                os.rmdir(directory)  # noqa: PTH106 (pathlib costs an agent 0.7 MB)
            except OSError:
                # An error record, stacks, or a file that NFS keeps while it is open.
                pass


def _remove_if_empty(path: str) -> bool:
    """Return whether the file is not there any more."""
    try:
        facts = os.lstat(path)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size:
            return False
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

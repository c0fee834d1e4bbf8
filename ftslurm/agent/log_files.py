"""The ranks' log files: their sizes and times, removal of the empty ones; done where the shared filesystem may hang."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence

LOGS = ("stdout.log", "stderr.log")


class Outputs(dict[int, tuple[int, float]]):
    """By local rank: the size of its output, and how many seconds ago it was written last."""


def outputs(logs: Mapping[int, Sequence[str]], now_s: float) -> Outputs:
    """Return the activity of the ranks that have printed anything, by their log files.

    Args:
        logs: the paths, by local rank.
        now_s: seconds since the epoch.
    """
    found = Outputs()
    for local_rank, paths in logs.items():
        facts = [one for path in paths if (one := _size_and_time(path))[0]]
        if facts:
            found[local_rank] = (sum(size for size, _ in facts), now_s - max(at for _, at in facts))
    return found


def log_sizes(logs: Mapping[int, Sequence[str]]) -> dict[int, int]:
    """Return the number of bytes that each rank has printed, by local rank."""
    return {local_rank: sum(_size_and_time(path)[0] for path in paths) for local_rank, paths in logs.items()}


def _size_and_time(path: str) -> tuple[int, float]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0.0
    return found.st_size, found.st_mtime


def remove_empty(directories: Iterable[str]) -> None:
    """Remove the empty log files of ranks that have ended, and their directories where nothing is left.

    Inodes are quota, and most ranks of a large job print nothing.

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

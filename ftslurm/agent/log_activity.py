"""Sizes and times of the ranks' log files; read where the shared filesystem may hang."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence


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

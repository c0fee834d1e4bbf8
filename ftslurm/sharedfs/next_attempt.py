"""Whether a run that has ended goes on: a requeued job's attempt that begins, before its agents own the state."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ftslurm.records.attempt import Attempt
from ftslurm.records.codec import BadFile, read_record
from ftslurm.sharedfs.bounded_read import Malformed, list_directory, read_file
from ftslurm.sharedfs.rundir import RunDirectory

CLOCKS_NS = 5 * 10**9
"""Difference of two nodes' clocks that is allowed for."""
BEGINNING_NS = 300 * 10**9
"""An attempt that has not taken over the state for so long has not begun: its agents died, or were refused."""
_LIMIT = 64 << 20


def next_attempt(root: str | Path, attempts: Collection[str], ended_ns: int, now_ns: int) -> str | None:
    """Return the name of an attempt that began after the run's end and has not ended; None without one.

    Args:
        root: the run directory.
        attempts: the attempts that the state names.
        ended_ns: when the newest of them ended.
        now_ns: wall clock.
    """
    run = RunDirectory(str(root))
    try:
        names = list_directory(Path(run.attempt_file("x")).parent.parent)[1]
    except Malformed:
        return None
    for name in names:
        if name in attempts or os.path.exists(run.step_file(name)):
            continue
        created_ns = _created_ns(run.attempt_file(name), os.stat(run.root).st_uid)
        # One that another attempt refused began before the end.
        if created_ns is not None and ended_ns - CLOCKS_NS < created_ns and now_ns - created_ns < BEGINNING_NS:
            return name
    return None


def _created_ns(path: str, owner: int) -> int | None:
    try:
        data = read_file(path, _LIMIT, frozenset((owner, 0)))
        return None if data is None else read_record(Attempt, data, path, lenient=True).created_ns
    except (Malformed, BadFile):
        return None

"""Waiting for a run directory that is away for a moment: its server restarts, it is moved and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable

from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.terminal import complain
from ftslurm.text import duration

LIMIT_S = 30.0
"""Longest wait, in seconds: a part of the 140 s that ftsrun has for all that follows the end of the step."""
RETRY_S = 0.25


def await_directory(
    fs: FileSystem,
    run_dir: str,
    limit_s: float = LIMIT_S,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return as soon as the run directory can be opened, at the latest after `limit_s` seconds, at most `LIMIT_S`.

    What follows the end of the agents happens once: without the directory, a job would not be started again, and the
    run would count as running for ever.
    """
    deadline = monotonic() + min(limit_s, LIMIT_S)
    announced = False
    while True:
        try:
            fs.refresh(run_dir)
            return
        except OSError as error:
            left_s = deadline - monotonic()
            if left_s <= 0:
                return
            if not announced:
                announced = True
                complain(f"{run_dir}: {error.strerror or error}; waiting up to {duration(left_s)} for it")
            sleep(min(RETRY_S, left_s))

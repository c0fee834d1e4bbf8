"""`ftslurm await-end`: exits at the end of the attempt that ftsrun has started.

ftsrun runs it beside srun, which waits for ever for a task of a node that rebooted before Slurm detected it, or whose
slurmstepd was killed (measured on 22.05 and 24.11). The run is over when its state is closed and every agent has left,
or has been silent for the node time-out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from ftslurm.job_end.attempts import attempt_of_start
from ftslurm.job_end.departures import PRESENT, Departures
from ftslurm.records.codec import BadFile
from ftslurm.records.state import CLOSED, State
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import FileSystem, PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory

FOLLOW_S = 2.0
"""Interval of reading the state until it is closed, in seconds."""
DEPARTURE_S = 0.25
"""Interval of reading the node records after that, in seconds."""


def main(arguments: Sequence[str]) -> int:
    """Wait for the end of the attempt that was started as `arguments[1]` in run directory `arguments[0]`.

    `arguments[2]` is the node time-out in seconds. Returns 0 when the attempt is over; otherwise it ends only with its
    parent.
    """
    from ftslurm.kernel import die_with_parent

    run_dir, start, node_timeout_s = arguments
    die_with_parent()
    fs = PosixFileSystem(owner=os.geteuid())
    await_end(fs, RunDirectory(run_dir), start, float(node_timeout_s), time.monotonic, time.sleep)
    return 0


def await_end(
    fs: FileSystem,
    run: RunDirectory,
    start: str,
    node_timeout_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Return when the attempt's state is closed and all its agents have left or are silent.

    Errors of the shared directory are ignored.

    Args:
        start: identifies the attempt, see `attempts.attempt_of_start`.
        node_timeout_s: an agent that does not publish for this time is not waited for.
        now: monotonic clock, seconds.
        sleep: waits the given seconds.
    """
    attempt = _await_close(fs, run, start, sleep)
    departures = Departures(fs, run, attempt, node_timeout_s / 2, now)
    while True:
        try:
            agents = [departures.observe(node) for node in departures.nodes()]
            if not any(found == PRESENT and silent_s < node_timeout_s for found, silent_s in agents):
                return
        except OSError:
            pass
        # Time between reads that are further apart than half of the time-out would not count as silence.
        sleep(min(DEPARTURE_S, node_timeout_s / 4))


def _await_close(fs: FileSystem, run: RunDirectory, start: str, sleep: Callable[[float], None]) -> str:
    """Return the name of the attempt once its state is closed."""
    cell = FencedCell(fs, run.state)
    attempt: str | None = None
    token = 0
    while True:
        try:
            attempt = attempt or attempt_of_start(fs, run, start)
            newest = cell.get_newer(token) if attempt is not None else None
            if attempt is not None and newest is not None:
                token = newest.token
                state = State.decode(newest.value, run.state)
                if state.attempt == attempt and state.phase == CLOSED:
                    return attempt
        except (OSError, BadFile):
            pass
        sleep(FOLLOW_S)

"""``ftslurm stop``: ask a run to stop; its ranks leave at a common step."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftslurm.records.codec import BadFile
from ftslurm.records.state import CLOSED, State
from ftslurm.records.stop import StopFile
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.locate import NotFound
from ftslurm.sharedfs.ownership import user_name
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.status.command import locate_run
from ftslurm.terminal import print_error, show
from ftslurm.text import duration_s, one_line

if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts

EXIT_FAILED, EXIT_USAGE, EXIT_ENDED = 1, 2, 3
POLL_S = 0.2
"""Interval at which ``--wait`` reads the state, in seconds."""


def main(
    argv: Sequence[str],
    *,
    ask: Callable[[str], JobFacts | None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Run ``ftslurm stop`` and return its exit status: 0 the run was asked (with ``--wait``: has stopped)."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    try:
        run = RunDirectory(str(locate_run(options, ask)))
        return _stop(run, options, sleep, monotonic)
    except (NotFound, BadFile) as error:
        return _error(str(error), EXIT_USAGE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _error(f"{where}{error.strerror or error}", EXIT_FAILED)
    except KeyboardInterrupt:
        return 130


def _stop(
    run: RunDirectory, options: argparse.Namespace, sleep: Callable[[float], None], monotonic: Callable[[], float]
) -> int:
    fs = PosixFileSystem(owner=os.geteuid())
    state = _read(fs, run)
    name = os.path.basename(run.root)
    if state is None or state.closed is not None:
        why = "it has not begun" if state is None or state.closed is None else f"it has ended: {state.closed.reason}"
        return _error(f"{name} does not run: {one_line(why)}", EXIT_ENDED)
    reason = one_line(options.reason or f"ftslurm stop by {user_name()}")
    request = StopFile(state.attempt, reason, time.time_ns())
    publish(fs, run.stop_file, request.encode())
    if options.wait is None:
        show(f"{name}: asked to stop; its ranks leave at a common step, see ftslurm status {run.root}\n")
        return 0
    until = monotonic() + options.wait
    while (state := _read(fs, run)) is None or (state.phase != CLOSED and state.attempt == request.attempt):
        if monotonic() >= until:
            return _error(f"{name} has not stopped within {options.wait:g} s; it is asked to", EXIT_FAILED)
        sleep(POLL_S)
    closed = one_line(state.closed.reason) if state.closed is not None else "a new attempt has begun"
    show(f"{name}: {closed}\n")
    return 0


def _read(fs: PosixFileSystem, run: RunDirectory) -> State | None:
    newest = FencedCell(fs, run.state).get_newer(0, True)
    return None if newest is None else State.decode(newest.value, run.state)


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_run, add_shared_dir

    parser = CommandParser(
        prog="ftslurm stop",
        description="Ask a run to stop: ranks that call ftslurm.should_stop leave at a common step; others get SIGTERM "
        "and their grace. The job then ends with exit code 75.",
    )
    add_run(parser)
    add_shared_dir(parser)
    parser.add_argument("--reason", metavar="TEXT", help="one line for the log and the report")
    parser.add_argument("--wait", type=_seconds, metavar="SECONDS", help="wait so long for the end of the run")
    return parser


def _seconds(text: str) -> float:
    seconds = duration_s(text)
    if seconds is None or seconds > 1e9:
        raise argparse.ArgumentTypeError(f"expected a time (such as 30 or 10m), found {text!r}")
    return seconds


def _error(text: str, code: int) -> int:
    print_error(f"ftslurm stop: {text}")
    return code

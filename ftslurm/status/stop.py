"""``ftslurm stop``: ask a run to stop; its ranks leave at a common step."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftslurm.records.attempt import Attempt
from ftslurm.records.codec import BadFile
from ftslurm.records.state import CLOSED, State
from ftslurm.records.stop import StopFile
from ftslurm.runs.array_tasks import only_task
from ftslurm.runs.restart import GOES_ON
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.job_runs import first_run
from ftslurm.sharedfs.locate import NotFound, is_job_id
from ftslurm.sharedfs.ownership import user_name
from ftslurm.sharedfs.publish import publish, read_published
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.environment import job_of
from ftslurm.status.command import locate_run
from ftslurm.terminal import UsageError, print_error, show
from ftslurm.text import duration_s, one_line

if TYPE_CHECKING:
    from ftslurm.runs.overview import Overview
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
        found = only_task("stop", options.run, locate_run(options, ask), _runs, "none of them runs")
        return _stop(RunDirectory(str(found)), options, sleep, monotonic)
    except (NotFound, BadFile, UsageError) as error:
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
    other = _other_job(fs, run, options.run, state.attempt)
    if other is not None:
        return _error(
            f"job {options.run} does not run {name} now: job {other} does; to stop that: ftslurm stop {other}",
            EXIT_ENDED,
        )
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


def _runs(run: Overview) -> bool:
    return run.state in GOES_ON


def _other_job(fs: PosixFileSystem, run: RunDirectory, argument: str | None, attempt: str) -> str | None:
    """Return the job that runs a run now, if the user gave another job's id.

    A run may be shared by jobs (--rdzv-id, a chain): who stops one of them must not stop another one. The id in the
    run's name means the run, whichever job continues it.
    """
    if argument is None or not is_job_id(argument):
        return None
    if first_run(os.path.basename(run.root)) in (f"job-{argument}", argument):
        return None
    running = job_of(attempt)
    try:
        record = read_published(fs, run.attempt_file(attempt), Attempt)
        task = f"{record.array_job_id}_{record.array_task_id}" if record.array_task_id is not None else None
    except (OSError, BadFile):
        task = None
    # An array's own id was resolved to the one task that runs.
    same = (running, task, None if task is None else task.partition("_")[0])
    return None if running is None or argument in same else task or running


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

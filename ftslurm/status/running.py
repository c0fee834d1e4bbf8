"""What the commands on a running job have in common: its run, its state, and why they do nothing."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftslurm.records.attempt import Attempt
from ftslurm.records.codec import BadFile
from ftslurm.records.state import State
from ftslurm.runs.array_tasks import only_task
from ftslurm.runs.restart import GOES_ON
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.job_runs import first_run
from ftslurm.sharedfs.locate import NotFound, is_job_id
from ftslurm.sharedfs.publish import read_published
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.environment import job_of
from ftslurm.status.command import locate_run
from ftslurm.terminal import UsageError, print_error
from ftslurm.text import one_line

if TYPE_CHECKING:
    from ftslurm.runs.overview import Overview
    from ftslurm.slurm.facts import JobFacts

EXIT_FAILED, EXIT_USAGE, EXIT_ENDED = 1, 2, 3


class NotRunning(Exception):
    """The run does not run, or another job runs it; the text says so."""


def run_command(
    command: str,
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    act: Callable[[RunDirectory, argparse.Namespace], int],
    ask: Callable[[str], JobFacts | None] | None,
) -> int:
    """Carry out ``ftslurm COMMAND`` on the one run that its arguments mean, and return the exit status."""
    try:
        options = parser.parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    try:
        found = only_task(command, options.run, locate_run(options, ask), _runs, "none of them runs")
        return act(RunDirectory(str(found)), options)
    except NotRunning as error:
        return failed(command, str(error), EXIT_ENDED)
    except (NotFound, BadFile, UsageError) as error:
        return failed(command, str(error), EXIT_USAGE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return failed(command, f"{where}{error.strerror or error}", EXIT_FAILED)
    except KeyboardInterrupt:
        return 130


def failed(command: str, text: str, code: int) -> int:
    """Print why a command has failed, and return its exit status."""
    print_error(f"ftslurm {command}: {text}")
    return code


def running_state(fs: PosixFileSystem, run: RunDirectory, argument: str | None, *, past: str, other: str) -> State:
    """Return the state of a run that is not over.

    Args:
        argument: what the user named the run by.
        past: added to the reason if it does not run.
        other: the same if another job runs it, before that job's id.

    Raises:
        NotRunning: it is over, has not begun, or is another job's.
    """
    state, name = read_state(fs, run), os.path.basename(run.root)
    if state is None or state.closed is not None:
        why = "it has not begun" if state is None or state.closed is None else f"it has ended: {state.closed.reason}"
        raise NotRunning(f"{name} does not run: {one_line(why)}{past}")
    job = _other_job(fs, run, argument, state.attempt)
    if job is not None:
        raise NotRunning(f"job {argument} does not run {name} now: job {job} does; {other} {job}")
    return state


def read_state(fs: PosixFileSystem, run: RunDirectory) -> State | None:
    """Return the run's newest state; None: it has none."""
    newest = FencedCell(fs, run.state).get_newer(0, True)
    return None if newest is None else State.decode(newest.value, run.state)


def _runs(run: Overview) -> bool:
    return run.state in GOES_ON


def _other_job(fs: PosixFileSystem, run: RunDirectory, argument: str | None, attempt: str) -> str | None:
    """Return the job that runs a run now, if the user gave another job's id.

    A run may be shared by jobs (--rdzv-id, a chain): a request to one of them must not reach another one. The id in the
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

"""`ftslurm list`: the user's runs in a directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ftslurm.slurm.errors import SlurmError, in_short
from ftslurm.slurm.queue import QueuedJob
from ftslurm.terminal import UsageError, print_error, show

if TYPE_CHECKING:
    import argparse

    from ftslurm.runs.folder import Runs
    from ftslurm.runs.overview import Overview

DONE, USAGE, INTERRUPTED = 0, 2, 130
SHOWN = 20
"""Number of runs without --all: those whose state changed last, and all whose job is in Slurm's queue."""

Queue = Callable[[], Mapping[str, QueuedJob]]


def main(argv: Sequence[str], *, queue: Queue | None = None) -> int:
    """Run the command; return its exit code: 0, or 2 for wrong usage.

    Args:
        argv: the arguments after `list`.
        queue: returns the user's jobs in Slurm's queue by their ids; default: queries Slurm where there is one.
    """
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    from ftslurm.runs.folder import directory_of, find_runs, runs_directory
    from ftslurm.runs.list_table import render, to_json
    from ftslurm.sharedfs.answer_limit import AnswerLimit

    try:
        place = directory_of(options.directory, os.environ, os.getcwd())
        with AnswerLimit("list", place) as limit:
            directory = runs_directory(place)
            runs = find_runs(directory, os.geteuid())
            overviews, notes = _read(runs, options.all, limit.paused(queue or queue_of_slurm))
    except UsageError as error:
        print_error(f"ftslurm list: {error}")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    form = to_json if options.json else render
    show(form(overviews, directory, len(runs.own) - len(overviews), notes, time.time_ns()))
    return DONE


def _read(runs: Runs, everything: bool, queue: Queue) -> tuple[list[Overview], list[str]]:
    from ftslurm.runs.overview import in_queue, overview

    notes, queued = [], {}
    if runs.own:
        try:
            queued = dict(queue())
        except SlurmError as error:
            notes.append(f"{in_short(error)}: time left and pending jobs are unknown")
    in_use = {f"job-{name}" for name in queued}
    chosen = [run.path for i, run in enumerate(runs.own) if everything or i < SHOWN or run.name in in_use]
    found = [in_queue(run, queued) for run in map(overview, chosen)]
    if runs.foreign:
        notes.append(f"{runs.foreign} more of other users, or links, are left out")
    if runs.cut:
        notes.append("the directory has more entries than are read")
    return found, notes


def queue_of_slurm() -> Mapping[str, QueuedJob]:
    """Return the user's jobs in Slurm's queue; none where there is no Slurm.

    Raises:
        SlurmError: Slurm gives no answer in time.
    """
    from ftslurm.slurm.queue import user_jobs
    from ftslurm.slurm.run_command import has_program

    return user_jobs(os.geteuid(), os.environ) if has_program("squeue", os.environ) else {}


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_runs_directory

    parser = CommandParser(
        prog="ftslurm list",
        description="List your runs in a directory, the last changed first: state, round, step, failure, time left.",
    )
    add_runs_directory(parser)
    parser.add_argument("--all", action="store_true", help=f"all runs, not only the newest {SHOWN}")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser

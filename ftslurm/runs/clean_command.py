"""`ftslurm clean`: what old runs occupy; with --yes, remove them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ftslurm.host_lock import CommandLock, LockHeld
from ftslurm.runs.list_command import queue_of_slurm
from ftslurm.slurm.errors import SlurmError, in_short
from ftslurm.slurm.queue import QueuedJob
from ftslurm.slurm.run_command import has_program
from ftslurm.terminal import UsageError, print_error, show

if TYPE_CHECKING:
    import argparse

    from ftslurm.runs.clean import Old
    from ftslurm.runs.folder import RunFolder

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
OLDER = "30d"
PATIENCE_S = 5.0
"""How long another `ftslurm clean` of this host is waited for, in seconds."""
NOTES = """\
Never removed: a run that goes on, that began within the last hour, or whose job is in Slurm's queue; another user's; a
link. Logs that --log-dir has put elsewhere stay.
"""

Queue = Callable[[], "Mapping[str, QueuedJob] | None"]


def main(argv: Sequence[str], *, queue: Queue | None = None) -> int:
    """Run the command; return its exit code: 0, 1 if something could not be removed, 2 for wrong usage.

    Args:
        argv: the arguments after `clean`.
        queue: returns the user's jobs in Slurm's queue by their ids, None if that is unknown; default: queries Slurm.
    """
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    from ftslurm.runs.folder import directory_of, runs_directory
    from ftslurm.sharedfs.answer_limit import AnswerLimit

    directory = directory_of(options.directory, os.environ, os.getcwd())
    try:
        with AnswerLimit("clean", directory) as limit:
            directory = runs_directory(directory)
            ask = limit.paused(queue or _queue)
            if not options.yes:
                return _clean(directory, options, ask)
            with CommandLock("clean", directory, PATIENCE_S):
                return _clean(directory, options, ask)
    except LockHeld as holder:
        print_error(f"ftslurm clean: {holder} is cleaning {directory}; try again when that has ended")
        return USAGE
    except UsageError as error:
        print_error(f"ftslurm clean: {error}")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def _clean(directory: str, options: argparse.Namespace, queue: Queue) -> int:
    from ftslurm.runs.clean import render
    from ftslurm.runs.folder import find_runs

    now_ns = time.time_ns()
    runs = find_runs(directory, os.geteuid()).own
    old = [run for run in runs if now_ns - run.written_ns > options.older_than]
    found = _judge(old, now_ns - options.older_than, queue)
    show(render(found, directory, options.older_than / 1e9, now_ns, everything=options.all))
    going = [each for each in found if each.stays is None]
    if not options.yes:
        if going:
            show("nothing was removed; with --yes they are\n")
        return DONE
    return _remove(directory, going)


def _judge(runs: Sequence[RunFolder], before_ns: int, queue: Queue) -> list[Old]:
    from ftslurm.dataclasses import replace
    from ftslurm.runs.clean import Old, why_it_stays
    from ftslurm.runs.overview import Overview, overview
    from ftslurm.runs.removal import NotRemovable, mark_of, usage

    found: list[Old] = []
    queued = queue() if runs else None
    for run in runs:
        try:
            # Before the run is judged: what changes later shows in the mark.
            mark = mark_of(run.path)
        except (NotRemovable, OSError):
            # Replaced or removed since it was listed.
            continue
        if mark.changed_ns > before_ns:
            continue
        try:
            old = Old(overview(run.path), mark)
            old = replace(old, stays=why_it_stays(old.run, queued))
            found.append(old if old.stays else replace(old, usage=usage(run.path)))
        except (NotRemovable, OSError) as error:
            why = str(error) if isinstance(error, NotRemovable) else f"cannot be read: {error.strerror}"
            found.append(Old(Overview(run.name, run.path, "unknown"), mark, why))
    return found


def _remove(directory: str, going: Sequence[Old]) -> int:
    from ftslurm.runs.removal import NotRemovable, left_aside, remove, remove_tree
    from ftslurm.text import plural, safe, size

    code, files, freed, removed = DONE, 0, 0, 0
    for path in left_aside(directory):
        try:
            remove_tree(path)
        except NotRemovable as error:
            code = FAILED
            print_error(f"ftslurm clean: {path}: {error}")
    for old in going:
        try:
            remove(old.run.directory, old.mark)
        except NotRemovable as error:
            code = FAILED
            print_error(f"ftslurm clean: {old.run.run}: {error}")
            continue
        removed += 1
        files, freed = files + (old.usage.files if old.usage else 0), freed + (old.usage.size if old.usage else 0)
    show(f"removed {plural(removed, 'run')} in {safe(directory)}: {plural(files, 'file')}, {size(freed)}\n")
    return code


def _queue() -> Mapping[str, QueuedJob] | None:
    if not has_program("squeue", os.environ):
        return None
    try:
        return queue_of_slurm()
    except SlurmError as error:
        print_error(f"ftslurm clean: {in_short(error)}")
        return None


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_runs_directory, duration_ns

    parser = CommandParser(
        prog="ftslurm clean",
        description="Show what your old runs in a directory occupy; with --yes, remove them.",
        notes=NOTES,
    )
    add_runs_directory(parser)
    parser.add_argument(
        "--older-than",
        type=duration_ns,
        default=duration_ns(OLDER),
        metavar="TIME",
        help=f"runs that have not changed for this time: 12h, 30d, 8w (default {OLDER})",
    )
    parser.add_argument("--yes", action="store_true", help="remove them")
    parser.add_argument("--all", action="store_true", help="print all of them, not only the first 40")
    return parser

"""`ftslurm history`: how the runs of a directory ended, what failed, and what that cost; or one run's events."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.terminal import UsageError, print_error, show

if TYPE_CHECKING:
    import argparse

DONE, USAGE, INTERRUPTED = 0, 2, 130
NOTES = """\
The report.json of a run that has ended is used where it is about that end; other runs are judged anew.
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code: 0, or 2 for wrong usage."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    # A thousand reports are a million objects, none of them garbage.
    collecting = gc.isenabled()
    gc.disable()
    try:
        if options.events is None:
            _put(_history(options), options)
        else:
            _put_events(options)
    except UsageError as error:
        print_error(f"ftslurm history: {error}")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if collecting:
            gc.enable()
    return DONE


def _history(options: argparse.Namespace) -> dict[str, Any]:
    from ftslurm.runs.folder import directory_of, find_runs, runs_directory
    from ftslurm.runs.history import history
    from ftslurm.runs.history_reading import read_run
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.sharedfs.bounded_read import read_in_parallel

    now_ns = time.time_ns()
    since_ns = None if options.since is None else now_ns - options.since
    place = directory_of(options.directory, os.environ, os.getcwd())
    # The runs themselves are read by other threads, which the limit does not observe.
    with AnswerLimit("history", place):
        directory = runs_directory(place)
        chosen = [run.path for run in find_runs(directory, os.geteuid()).own if run.written_ns >= (since_ns or 0)]
    return history(list(read_in_parallel(read_run, chosen)), directory, since_ns, now_ns, failed=options.failed)


def _put_events(options: argparse.Namespace) -> None:
    """Print the events of one run, by its event log."""
    from ftslurm.event_log.reading import read_events
    from ftslurm.event_log.rendering import event_history, render
    from ftslurm.report.pipeline import format_of
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.sharedfs.locate import NotFound, locate, place_of

    if options.failed or (not options.json and format_of(options.output) == "html"):
        wrong = "--failed" if options.failed else "page"
        raise UsageError(f"--events: expected no {wrong} with it, only text or --json")
    run, parent = options.events or None, options.directory
    try:
        with AnswerLimit("history", place_of(run, os.environ, Path.cwd(), parent)):
            if run is None and parent is not None and not os.path.isdir(parent):
                # history RUN --events
                run, parent = parent, None
            directory = locate(run, environ=os.environ, cwd=Path.cwd(), shared_dir=parent)
            events = read_events(directory)
    except NotFound as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    found = event_history(events, str(directory), None if options.since is None else time.time_ns() - options.since)
    if options.json or format_of(options.output) == "json":
        _write(json.dumps(found, indent=2) + "\n", options.output)
    else:
        _write(render(found, everything=options.all), options.output)


def _put(found: dict[str, Any], options: argparse.Namespace) -> None:
    from ftslurm.report.pipeline import format_of

    output: Path | None = options.output
    form = "json" if options.json else format_of(output)
    if form == "json":
        # ASCII only, so that nothing in it can be a terminal control sequence.
        text = json.dumps(found, indent=2) + "\n"
    elif form == "html":
        from ftslurm.runs.history_html import render as render_page

        text = render_page(found)
    else:
        from ftslurm.runs.history_text import render

        text = render(found, failed=options.failed, everything=options.all)
    _write(text, output)


def _write(text: str, output: Path | None) -> None:
    from ftslurm.report.pipeline import publish

    if output is None:
        show(text)
        return
    try:
        publish(output, text, mode=0o666)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from None


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_runs_directory, duration_ns

    parser = CommandParser(
        prog="ftslurm history",
        description="Report on all your runs in a directory: how they ended, what failed, what that cost.",
        notes=NOTES,
    )
    add_runs_directory(parser)
    parser.add_argument(
        "--events",
        nargs="?",
        const="",
        metavar="RUN_DIR|JOB_ID",
        help="the events of one run instead: rounds, failures, decisions, exclusions; default: the newest run",
    )
    parser.add_argument(
        "--since", type=duration_ns, metavar="TIME", help="runs that changed (events) within this time: 12h, 30d, 8w"
    )
    parser.add_argument("--failed", action="store_true", help="only runs with failures; failures by cause and by node")
    parser.add_argument(
        "--all", action="store_true", help="print all, not only 40 runs, causes and nodes, or the newest 100 events"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write to FILE; a page if it ends in .html, or .json"
    )
    return parser

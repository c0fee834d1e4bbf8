"""``ftslurm status``: locate the run, read its run directory, print its status; once or repeatedly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.slurm.lookup import job_facts
from ftslurm.terminal import is_terminal, print_error, show, wants_colour

if TYPE_CHECKING:
    import argparse

    from ftslurm.slurm.facts import JobFacts

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
ACCOUNTED_NODES = 128
"""For larger runs only the report reads all records: the status must be fast."""
CLEAR = "\x1b[H\x1b[2J"


def main(
    argv: Sequence[str],
    *,
    ask: Callable[[str], JobFacts | None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run ``ftslurm status`` and return its exit status.

    Args:
        argv: the arguments after ``status``.
        ask: queries a job; used only if a job id is given and the run was not found by other means. Default:
            queries Slurm.
        sleep: waits the given seconds, for ``--watch``.

    Returns:
        0; 2 for wrong usage, a run that does not exist, and a run without a readable state.
    """
    from ftslurm.report.locating import NotFound

    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    try:
        directory = _locate(options, ask)
        status = make_status(directory)
        while show(_output(status, options)) and options.watch is not None and status["status"] != "closed":
            sleep(options.watch)
            status = make_status(directory)
    except NotFound as error:
        return _error(str(error))
    except OSError as error:
        return _error(f"cannot read {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if status["status"] == "unknown" and status["problems"]:
        worst = next((p for p in status["problems"] if p["file"].startswith("state")), status["problems"][0])
        return _error(f"no readable state in {directory}: {worst['file']}: {worst['reason']}")
    return 0


def make_status(directory: Path) -> dict[str, Any]:
    """Read a run directory and return the run's status; see `ftslurm.status.summary` for the keys.

    Raises:
        OSError: the directory does not exist or cannot be entered.
    """
    from ftslurm.status.snapshot import read
    from ftslurm.status.summary import summarise

    status = summarise(read(directory, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns))
    return {**status, "time": _time(directory, status)}


def _time(directory: Path, status: dict[str, Any]) -> str | None:
    """Return the report's accounting of time as text; None for a large run, whose records take long to read."""
    if not status["rounds"] or len(status["nodes"]) > ACCOUNTED_NODES:
        return None
    from ftslurm.report.accounting import sentence
    from ftslurm.report.command import make_report

    return sentence(make_report(directory)) or None


def _locate(options: argparse.Namespace, ask: Callable[[str], JobFacts | None] | None) -> Path:
    from ftslurm.report.locating import NotFound, locate

    if options.latest and options.run is not None:
        raise NotFound(f"expected --latest or a run, found both: --latest and {options.run}")
    try:
        return locate(
            options.run,
            environ=os.environ,
            cwd=Path.cwd(),
            shared_dir=options.shared_dir,
            job_facts=ask or job_facts,
        )
    except NotFound:
        path = Path.cwd() / (options.run or ".")
        if options.run is not None and path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            # It may be a run that only its owner can read.
            owner = path.stat().st_uid
            raise NotFound(f"{path} belongs to user id {owner}, you are {os.geteuid()}, and is not readable") from None
        raise


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(
        prog="ftslurm status",
        allow_abbrev=False,
        description="Print the current status of a run, read from its run directory alone: round, nodes and ranks.",
        epilog="The silence of a node is measured by the file server's clock and is a lower bound. "
        "For the cause of a failure use ftslurm report.",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN_DIR|JOB_ID", help="default: the newest run in the shared directory"
    )
    parser.add_argument("--latest", action="store_true", help="the newest run in the shared directory, as by default")
    parser.add_argument(
        "--json", action="store_true", help="print everything as JSON; with --watch as one line each time"
    )
    parser.add_argument("--all", action="store_true", help="one line per node, all rounds, all conspicuous ranks")
    parser.add_argument("--watch", type=_watch_interval, metavar="SECONDS", help="repeat until the run has ended")
    parser.add_argument(
        "--shared-dir", metavar="DIR", help="where runs are (default: $FTSLURM_SHARED_DIR, ./ftslurm-runs)"
    )
    return parser


def _watch_interval(text: str) -> float:
    import argparse

    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"expected seconds, 1 or more, found {text!r}")
    return seconds


def _output(status: dict[str, Any], options: argparse.Namespace) -> str:
    """Return the output; on a terminal, each output of --watch replaces the last one."""
    if options.json:
        import json

        # ASCII only, so that nothing in it can be a terminal control sequence.
        return json.dumps(status, indent=None if options.watch is not None else 2) + "\n"
    from ftslurm.status.text import render

    text = render(status, everything=options.all, colour=wants_colour())
    if options.watch is None:
        return text
    return f"{CLEAR}{text}" if is_terminal() else f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{text}\n"


def _error(message: str) -> int:
    print_error(f"ftslurm status: {message}")
    return EXIT_USAGE

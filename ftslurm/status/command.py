"""``ftslurm status``: locate the run, read its run directory, print its status; once or repeatedly."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.slurm.bounded import job_facts
from ftslurm.terminal import is_terminal, print_error, show, wants_colour

if TYPE_CHECKING:
    import argparse

    from ftslurm.slurm.facts import JobFacts
    from ftslurm.slurm.job_now import JobNow
    from ftslurm.status.slurm_job import JobInquiry

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
ACCOUNTED_NODES = 32
"""For larger runs only --all and the report read all records of all rounds: the status must be fast."""
ACCOUNTED_ALL = 1024
OVER = ("closed", "ended")
"""As `ftslurm.logs.files.RunOutput.end`: the state is closed, or its attempt has a record of the agents' end."""
CLEAR = "\x1b[H\x1b[2J"


def main(
    argv: Sequence[str],
    *,
    ask: Callable[[str], JobFacts | None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    job_now: Callable[[str], JobNow] | None = None,
) -> int:
    """Run ``ftslurm status`` and return its exit status.

    Args:
        argv: the arguments after ``status``.
        ask: queries a job; used only if a job id is given and the run was not found by other means. Default:
            queries Slurm.
        sleep: waits the given seconds, for ``--watch``.
        job_now: queries the run's job for time left, a hold and drained nodes. Default: queries Slurm, if there is one.

    Returns:
        0; 2 for wrong usage, a run that does not exist, and a run without a readable state.
    """
    from ftslurm.runs.array_tasks import shown_task
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.sharedfs.locate import NotFound, place_of
    from ftslurm.status.slurm_job import JobInquiry

    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    # The collector would take a tenth of the time for the records of a large run, and free nothing.
    collecting = gc.isenabled() and options.watch is None
    if collecting:
        gc.disable()
    try:
        with AnswerLimit("status", place_of(options.run, os.environ, Path.cwd(), options.shared_dir)) as limit:
            directory = shown_task("status", options.run, locate_run(options, limit.paused(ask or job_facts)))
            slurm = None if options.offline else JobInquiry(job_now)
            status = make_status(directory, slurm, everything=options.all)
        while _put(status, options) and options.watch is not None and not _is_over(directory, status):
            sleep(options.watch)
            with AnswerLimit("status", directory, patient=True):
                status = make_status(directory, slurm, everything=options.all)
    except NotFound as error:
        return _error(str(error))
    except OSError as error:
        return _error(f"cannot read {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        if collecting:
            gc.enable()
    if status["status"] == "unknown" and status["problems"]:
        worst = next((p for p in status["problems"] if p["file"].startswith("state")), status["problems"][0])
        return _error(f"no readable state in {directory}: {worst['file']}: {worst['reason']}")
    return 0


def _is_over(directory: Path, status: dict[str, Any]) -> bool:
    """Return whether the run has ended, and no requeued job's attempt begins."""
    from ftslurm.sharedfs.next_attempt import next_attempt

    if status["status"] not in OVER:
        return False
    closed = status["closed"]
    ended_ns = closed["time_ns"] if closed is not None else status["ended_ns"]
    return next_attempt(directory, status["attempt_names"], ended_ns or 0, time.time_ns()) is None


def make_status(directory: Path, slurm: JobInquiry | None = None, *, everything: bool = False) -> dict[str, Any]:
    """Read a run directory and return the run's status; see `ftslurm.status.summary` for the keys.

    Args:
        directory: the run directory.
        slurm: queries the run's job meanwhile; None: nothing does.
        everything: account for the time of a large run, too.

    Raises:
        OSError: the directory does not exist or cannot be entered.
    """
    from ftslurm.slurm.environment import job_of
    from ftslurm.status.slurm_job import newest_job, report
    from ftslurm.status.snapshot import read
    from ftslurm.status.summary import summarise

    if slurm is not None:
        slurm.begin(newest_job(str(directory)))
    snapshot = read(directory, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns)
    status = {**summarise(snapshot)}
    status["time"] = _time(directory, status, ACCOUNTED_ALL if everything else ACCOUNTED_NODES)
    if slurm is not None and snapshot.state is not None:
        now = slurm.answer(job_of(snapshot.state.attempt))
        status["slurm"] = report(now, snapshot.time_limit_s)
    return status


def _time(directory: Path, status: dict[str, Any], most: int) -> str | None:
    """Return the report's accounting of time as text; None for a large run, whose records take long to read."""
    if not status["rounds"] or len(status["nodes"]) > most:
        return None
    from ftslurm.report.accounting import sentence
    from ftslurm.report.pipeline import make_report

    return sentence(make_report(directory)) or None


def locate_run(options: argparse.Namespace, ask: Callable[[str], JobFacts | None] | None) -> Path:
    """Return the run directory that the options `run`, `latest` and `shared_dir` name.

    Raises:
        NotFound: there is none.
    """
    from ftslurm.sharedfs.locate import NotFound, locate

    if options.latest and options.run is not None:
        raise NotFound(f"expected --latest or a run, found both: --latest and {options.run}")
    return locate(
        options.run,
        environ=os.environ,
        cwd=Path.cwd(),
        shared_dir=options.shared_dir,
        job_facts=ask or job_facts,
    )


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_run, add_shared_dir

    parser = CommandParser(
        prog="ftslurm status",
        description="Print the current status of a run from its run directory: round, nodes and ranks; and from Slurm: "
        "time left, a hold, drained nodes.",
        epilog="The silence of a node is measured by the file server's clock and is a lower bound. "
        "For the cause of a failure use ftslurm report.",
    )
    add_run(parser)
    parser.add_argument(
        "--json", action="store_true", help="print everything as JSON; with --watch as one line each time"
    )
    parser.add_argument("--all", action="store_true", help="one line per node, all rounds, all conspicuous ranks")
    parser.add_argument(
        "--prometheus",
        metavar="FILE",
        help="write metrics into a file of the textfile collector (*.prom) instead of printing; see docs/metrics.md",
    )
    parser.add_argument("--watch", type=_watch_interval, metavar="SECONDS", help="repeat until the run has ended")
    parser.add_argument("--offline", action="store_true", help="do not query Slurm for time left, holds, drained nodes")
    add_shared_dir(parser)
    return parser


def _watch_interval(text: str) -> float:
    import argparse

    from ftslurm.text import duration_s

    seconds = duration_s(text)
    if seconds is None or not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"expected a time from 1 s to 1d (such as 5 or 2m), found {text!r}")
    return seconds


def _put(status: dict[str, Any], options: argparse.Namespace) -> bool:
    """Print the status, or write its metrics; False: the reader of the output has gone.

    Raises:
        NotFound: the file of the metrics cannot be written; one line.
    """
    if options.prometheus is None:
        return show(_output(status, options))
    from ftslurm.sharedfs.locate import NotFound
    from ftslurm.status.prometheus import exposition, write_file

    try:
        write_file(options.prometheus, exposition(status))
    except OSError as error:
        raise NotFound(f"--prometheus {options.prometheus}: {error.strerror}") from None
    return True


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

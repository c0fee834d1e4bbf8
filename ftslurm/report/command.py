"""``ftslurm report``: find the run directory, read it, analyse it, print the report."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.report.pipeline import (
    FORMATS,
    format_of,
    make_report,
    publish,
    rendered,
    report_of_job,
    report_of_logs,
    report_of_output,
    save,
)
from ftslurm.report.wording import those_ranks
from ftslurm.slurm.bounded import job_facts
from ftslurm.terminal import is_terminal, print_error, show, wants_colour
from ftslurm.text import ranges

if TYPE_CHECKING:
    import argparse

    from ftslurm.sharedfs.locate import NotFound
    from ftslurm.slurm.facts import JobFacts

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
INTERVAL_S = 2.0
# Reading a large run takes a while: the agents need most of the filesystem's capacity.
SHARE = 0.1
OVER = ("succeeded", "failed", "stopped")
_MOVING = ("made_ns", "alive", "duration_s", "summary", "accounting")


class CannotWrite(Exception):
    """The report cannot be written to the requested place; the text is for the user."""


def main(argv: Sequence[str], *, ask: Callable[[str], JobFacts | None] | None = None) -> int:
    """Run ``ftslurm report`` and return its exit status.

    Args:
        argv: the arguments after ``report``.
        ask: returns the facts of a job; called only if a job id is given, and either the run was not found by other
            means or the job took no part in it. Default: query Slurm.

    Returns:
        0; with ``--exit-code`` the job's own exit status (1 if no end was recorded), for ``--logs`` 0 without a
        failure and 1 with one; 2 on wrong usage and when there is no such run, round or rank; 130 after Ctrl-C.
    """
    from ftslurm.sharedfs.locate import NotFound

    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    wrong = _contradiction(options)
    if wrong:
        return _complain(wrong)
    # A large run is a million live objects: garbage collection would take a tenth of the time and free nothing.
    collecting = gc.isenabled() and not options.follow
    if collecting:
        gc.disable()
    try:
        if options.output is not None and str(options.output) == "-":
            options.output = None
        return _report(options, cache(ask or job_facts))
    except (NotFound, CannotWrite) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"cannot read {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        if collecting:
            gc.enable()


def _report(options: argparse.Namespace, ask: Callable[[str], JobFacts | None]) -> int:
    from ftslurm.runs.array_tasks import shown_task
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.sharedfs.locate import NotFound, locate, place_of

    patient = False
    if options.job is not None:
        return _of_any_job(options, ask)
    if options.logs is not None:
        stdin = options.logs == "-"
        directory = Path("-") if stdin else Path.cwd() / options.logs

        def make() -> dict[str, Any]:
            nonlocal patient
            from ftslurm.report.logs.reading import is_stream

            chosen = {"round_number": options.round, "rank": options.rank, "every": options.all}
            with nullcontext() if stdin else AnswerLimit("report", directory):
                # A pipe may wait for what writes to it.
                patient = stdin or is_stream(directory)
            with nullcontext() if patient else AnswerLimit("report", directory):
                return report_of_logs(directory, **chosen)
    else:
        where = {"environ": os.environ, "cwd": Path.cwd(), "shared_dir": options.shared_dir}
        try:
            with AnswerLimit("report", place_of(options.run, **where)) as limit:
                directory = locate(options.run, job_facts=None if options.offline else limit.paused(ask), **where)
                directory = shown_task("report", options.run, directory)
                _list_runs(options.run, directory)
        except NotFound as error:
            return _of_job(options, ask, f"it has no run directory in {error.looked}", error)

        def make() -> dict[str, Any]:
            nonlocal patient
            chosen = {"round_number": options.round, "rank": options.rank, "every": options.all}
            with AnswerLimit("report", directory, patient=patient):
                report = make_report(directory, offline=options.offline or options.follow, **chosen)
            patient = options.follow
            return report

    if options.follow:
        report = _follow(options, make, directory)
    else:
        report = make()
        if note := _took_no_part(report, directory, options.run):
            return _of_job(options, ask, note, NotFound(f"job {options.run}: {note}"))
    if options.save:
        # Saved before printing: writing to a pipe may fail.
        save(report, directory)
    if not options.follow:
        _put(_checked(report, options, directory), options)
    if options.exit_code and options.logs is not None:
        return found_failure(report)
    return _exit_code(report) if options.exit_code else 0


def found_failure(report: dict[str, Any]) -> int:
    """Return 1 if the logs contain a failure, or an end that Slurm caused; else 0."""
    return int(report["status"] != "unfinished")


def _of_any_job(options: argparse.Namespace, ask: Callable[[str], JobFacts | None]) -> int:
    """Report a job of Slurm by its output, whatever launcher it had.

    Raises:
        NotFound: Slurm has no such job, or no output of it can be read.
    """
    from ftslurm.sharedfs.locate import NotFound

    facts = ask(options.job)
    if facts is None:
        raise NotFound(f"Slurm has no job {options.job}, or does not answer; with its output: --logs FILE")
    report = report_of_output(facts)
    _put(report, options)
    return _exit_code(report) if options.exit_code else 0


def _list_runs(argument: str | None, printed: Path) -> None:
    """List the runs of a requested job that has several; on stderr, because the report may be JSON."""
    from ftslurm.sharedfs.locate import is_job_id, runs_of_job

    if argument is None or not is_job_id(argument):
        return
    runs = runs_of_job(printed)
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs)
        print_error(
            f"ftslurm report: job {argument} has {len(runs)} runs: {names}; {printed.name} is reported, "
            f"as the newest; for another one: ftslurm report {runs[0] if runs[0] != printed else runs[-1]}"
        )


def _of_job(options: argparse.Namespace, ask: Callable[[str], JobFacts | None], note: str, otherwise: NotFound) -> int:
    """Report Slurm's facts about a job that has no run.

    Raises:
        NotFound: `otherwise`, if no job was requested, Slurm has no such job, or the query is disabled.
    """
    from ftslurm.sharedfs.locate import slurm_job

    job = slurm_job(options.run) if options.run and not options.offline else None
    facts = ask(job) if job is not None else None
    if facts is None:
        raise otherwise
    report = _with_output(facts, note) or report_of_job(facts, note)
    _put(report, options)
    return _exit_code(report) if options.exit_code else 0


def _with_output(facts: JobFacts, note: str) -> dict[str, Any] | None:
    """Return the report on a job's output if that contains a failure; None: Slurm's data are all there is."""
    from ftslurm.sharedfs.locate import NotFound

    if facts.state == "PENDING":
        # What is in its output is of an earlier job of the same run, which it will continue.
        return None
    try:
        report = report_of_output(facts, note)
    except (NotFound, OSError):
        return None
    return report if report["cause"] is not None else None


def _took_no_part(report: dict[str, Any], directory: Path, argument: str | None) -> str:
    """Return a note if the requested job started no agent, or if another job held the run; else ""."""
    from ftslurm.sharedfs.locate import is_job_id

    owners = report["run"]["attempts"]
    attempts = directory / "attempts"
    names = {path.name for path in attempts.iterdir()} if attempts.is_dir() else set()
    if argument is not None and is_job_id(argument) and not names and not owners:
        return f"none of its agents has started: {directory}"
    own = {name for name in names if name.split(".")[0] == argument}
    if not own or not owners or own & set(owners):
        return ""
    return f"it took no part in its run, which attempt {owners[-1]} held: {directory}"


def _exit_code(report: dict[str, Any]) -> int:
    code: int | None = report["exit_code"]
    return 1 if code is None else code


def _follow(options: argparse.Namespace, make: Callable[[], dict[str, Any]], directory: Path) -> dict[str, Any]:
    from ftslurm.sharedfs.next_attempt import next_attempt

    printed = 0

    def emit(report: dict[str, Any]) -> bool:
        nonlocal printed
        plain = options.output is None and _form(options) == "text"
        if is_terminal() and plain:
            # Cursor home, then clear to the end: only the newest report is on the screen.
            sys.stdout.write("\x1b[H\x1b[J")
        elif printed and plain:
            sys.stdout.write(f"\n--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n\n")
        printed += 1
        return _put(report, options)

    def update() -> dict[str, Any]:
        # The round or rank may appear later: only the first report checks the options.
        report = make()
        return _checked(report, options, directory) if not printed else report

    def goes_on(report: dict[str, Any]) -> bool:
        ended_ns = report["ended_ns"] if report["status"] in OVER else report["step"]["ended_ns"]
        return next_attempt(directory, report["run"]["attempts"], ended_ns or 0, time.time_ns()) is not None

    return follow(update, emit, sleep=time.sleep, clock=time.monotonic, goes_on=goes_on)


def _checked(report: dict[str, Any], options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    from ftslurm.sharedfs.locate import NotFound

    known = [entry["round"] for entry in report["rounds"]]
    if options.round is not None and report["focus"] != options.round:
        span = f"rounds {known[0]}-{known[-1]} are" if known else "no round is"
        raise NotFound(f"round {options.round} is not recorded in {directory}; {span}")
    if options.rank is not None and report["rank"] is None:
        number = report["focus"] or (known[-1] if known else None)
        entry = next((e for e in report["rounds"] if e["round"] == number), None)
        size = entry["world_size"] if entry is not None else None
        ranks = f" (it had {those_ranks(ranges(range(size)))})" if size else ""
        where = f"round {number}{ranks}" if number else "any round"
        raise NotFound(f"nothing is recorded of rank {options.rank} in {where} of {directory}; choose another --round?")
    return report


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_run, add_shared_dir

    parser = CommandParser(
        prog="ftslurm report",
        description="Report why a run ended, or its state: the first failure over all nodes, and its consequences.",
    )
    add_run(parser)
    parser.add_argument(
        "--format", choices=FORMATS, help="default: text, or according to the suffix of -o FILE (.json, .md, .html)"
    )
    parser.add_argument("--json", action="store_const", dest="format", const="json", help="same as --format json")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the report to FILE instead of printing it"
    )
    parser.add_argument("--round", type=_round, metavar="N", help="show the evidence of this round")
    parser.add_argument("--rank", type=_rank, metavar="R", help="report all facts about this rank in that round")
    parser.add_argument("--all", action="store_true", help="show all failed ranks in full, instead of groups")
    parser.add_argument(
        "--follow", action="store_true", help="print the report again at each change, until the run ends"
    )
    parser.add_argument(
        "--logs",
        metavar="PATH",
        help="the logs of a job that ftslurm did not run: slurm-*.out, also .gz, torchrun's --log-dir, a directory of "
        "output files (all of the newest job's), or - for standard input",
    )
    parser.add_argument(
        "--job", type=_job, metavar="ID", help="any job of Slurm, of any launcher: its output, and what Slurm knows"
    )
    add_shared_dir(parser)
    parser.add_argument("--offline", action="store_true", help="do not query Slurm for the job's end")
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with the job's own status; 1 if it has none; with --logs: 0 no failure found, 1 failure found",
    )
    parser.add_argument(
        "--save", action="store_true", help="also write report.txt, .json and .html into the run directory"
    )
    return parser


def _contradiction(options: argparse.Namespace) -> str:
    """Return an error text for incompatible options, or an empty one."""
    if options.latest and options.run is not None:
        return f"--latest chooses the run, but {options.run!r} is given too; omit one of them"
    if options.job is not None:
        others = (("logs", options.logs), ("RUN_DIR", options.run), ("latest", options.latest or None))
        wrong = next((name for name, value in others if value is not None), None)
        wrong = wrong or next((name for name in ("follow", "save", "offline") if getattr(options, name)), None)
        name = wrong if wrong is None or wrong.isupper() else f"--{wrong}"
        return f"--job reads the output of a job that Slurm names; it cannot be combined with {name}" if wrong else ""
    if options.logs is None:
        return ""
    if options.run is not None or options.latest or options.shared_dir is not None:
        return "--logs reads logs of a job that ftslurm did not run; it cannot be combined with a run or --shared-dir"
    for name in ("follow", "save"):
        if getattr(options, name):
            return f"--{name} needs a run directory of ftslurm; it cannot be combined with --logs"
    return ""


def _job(text: str) -> str:
    import argparse

    from ftslurm.slurm.facts import check_job_id

    try:
        return check_job_id(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _rank(text: str) -> int:
    import argparse

    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"expected a rank (0, 1, ...), found {text!r}")
    return int(text)


def _round(text: str) -> int:
    import argparse

    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**6):
        raise argparse.ArgumentTypeError(f"expected a round's number (1, 2, ...), found {text!r}")
    return int(text)


def _form(options: argparse.Namespace) -> str:
    return options.format or format_of(options.output)


def _put(report: dict[str, Any], options: argparse.Namespace) -> bool:
    """Print the report, or write it to the requested file; return False if the reader has closed the pipe."""
    output: Path | None = options.output
    form = _form(options)
    if output is None:
        return show(rendered(report, form, colour=wants_colour()))
    if form == "html":
        # The page's links must work from the directory of the page.
        report = report | {"run": report["run"] | {"directory": os.path.abspath(report["run"]["directory"])}}
    text = rendered(report, form, page_directory=os.path.abspath(output.parent))
    try:
        if output.exists() and not output.is_file():
            # A device or a pipe cannot be replaced by rename.
            output.write_text(text, encoding="utf-8", errors="backslashreplace")
        else:
            publish(output, text, mode=0o666)
    except OSError as error:
        raise CannotWrite(f"cannot write {output}: {error.strerror or error}") from None
    return True


def _complain(message: str) -> int:
    print_error(f"ftslurm report: {message}")
    return EXIT_USAGE


def follow(
    make: Callable[[], dict[str, Any]],
    show: Callable[[dict[str, Any]], bool],
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    interval_s: float = INTERVAL_S,
    goes_on: Callable[[dict[str, Any]], bool] = lambda report: False,
) -> dict[str, Any]:
    """Make reports until the run has ended: its state is closed, or its agents ended; return the last one.

    Args:
        make: reads and analyses the run.
        show: prints a report; called for the first one and for each with a change other than of time. False: the
            output is closed.
        sleep: waits for a number of seconds.
        clock: monotonic seconds.
        interval_s: the least time between two reads; longer where reading takes long.
        goes_on: whether a run whose report has an end goes on: another attempt begins.
    """
    previous: dict[str, Any] | None = None
    while True:
        before = clock()
        report = make()
        took = clock() - before
        now = essence(report)
        if now != previous and not show(report):
            return report
        previous = now
        if (report["status"] in OVER or report["step"] is not None) and not goes_on(report):
            return report
        sleep(max(interval_s, took * (1 - SHARE) / SHARE))


def essence(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the values that change with time alone."""
    rounds = [{k: v for k, v in entry.items() if k not in _MOVING} for entry in report["rounds"]]
    return {**{k: v for k, v in report.items() if k not in _MOVING}, "rounds": rounds}

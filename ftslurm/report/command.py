"""``ftslurm report``: find the run directory, read it, analyse it, print the report."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.report.formats import FORMATS, format_of, rendered
from ftslurm.slurm.lookup import job_facts
from ftslurm.terminal import is_terminal, print_error, show, wants_colour

if TYPE_CHECKING:
    import argparse

    from ftslurm.report.facts import StepEnd
    from ftslurm.report.locating import NotFound
    from ftslurm.slurm.facts import JobFacts

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
STALE_S = 3600.0


class CannotWrite(Exception):
    """The report cannot be written to the requested place; the text is for the user."""


def main(argv: Sequence[str], *, ask: Callable[[str], JobFacts | None] | None = None) -> int:
    """Run ``ftslurm report`` and return its exit status.

    Args:
        argv: the arguments after ``report``.
        ask: returns the facts of a job; called only if a job id is given, and either the run was not found by other
            means or the job took no part in it. Default: query Slurm.

    Returns:
        0; with ``--exit-code`` the job's own exit status (1 if no end was recorded); 2 on wrong usage and
        when there is no such run, round or rank; 130 after Ctrl-C.
    """
    from ftslurm.report.locating import NotFound

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
    from ftslurm.report.locating import NotFound, locate

    if options.logs is not None:
        directory = Path.cwd() / options.logs

        def make() -> dict[str, Any]:
            return report_of_logs(directory, round_number=options.round, rank=options.rank, every=options.all)
    else:
        where = {"environ": os.environ, "cwd": Path.cwd(), "shared_dir": options.shared_dir}
        try:
            directory = locate(options.run, job_facts=None if options.offline else ask, **where)
        except NotFound as error:
            return _of_job(options, ask, f"it has no run directory in {error.looked}", error)

        _list_runs(options.run, directory)

        def make() -> dict[str, Any]:
            chosen = {"round_number": options.round, "rank": options.rank, "every": options.all}
            return make_report(directory, offline=options.offline or options.follow, **chosen)

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
    return _exit_code(report) if options.exit_code else 0


def _list_runs(argument: str | None, printed: Path) -> None:
    """List the runs of a requested job that has several; on stderr, because the report may be JSON."""
    from ftslurm.report.locating import is_job_id, runs_of_job

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
    from ftslurm.report.locating import is_job_id

    facts = ask(options.run) if options.run and is_job_id(options.run) and not options.offline else None
    if facts is None:
        raise otherwise
    from ftslurm.report.job_only import report_of_job

    report = report_of_job(facts, note)
    _put(report, options)
    return _exit_code(report) if options.exit_code else 0


def _took_no_part(report: dict[str, Any], directory: Path, argument: str | None) -> str:
    """Return a note if the requested job started no agent, or if another job held the run; else ""."""
    from ftslurm.report.locating import is_job_id

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
    from ftslurm.report.follow import follow

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

    return follow(update, emit, sleep=time.sleep, clock=time.monotonic)


def _checked(report: dict[str, Any], options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    from ftslurm.report.locating import NotFound

    known = [entry["round"] for entry in report["rounds"]]
    if options.round is not None and report["focus"] != options.round:
        span = f"rounds {known[0]}-{known[-1]} are" if known else "no round is"
        raise NotFound(f"round {options.round} is not recorded in {directory}; {span}")
    if options.rank is not None and report["rank"] is None:
        number = report["focus"] or (known[-1] if known else None)
        entry = next((e for e in report["rounds"] if e["round"] == number), None)
        size = entry["world_size"] if entry is not None else None
        ranks = f" (it had ranks 0-{size - 1})" if size else ""
        where = f"round {number}{ranks}" if number else "any round"
        raise NotFound(f"nothing is recorded of rank {options.rank} in {where} of {directory}; choose another --round?")
    return report


def make_report(
    directory: Path,
    *,
    round_number: int | None = None,
    now_ns: int | None = None,
    rank: int | None = None,
    every: bool = False,
    offline: bool = True,
    ended: StepEnd | None = None,
) -> dict[str, Any]:
    """Read and analyse a run directory.

    Args:
        directory: the run directory.
        round_number: the round to show evidence for; None lets the report choose.
        now_ns: the time of the report, nanoseconds since the epoch; None is now.
        rank: a rank of that round to report in full.
        every: whether to report all failed ranks of that round in full.
        offline: if false, query Slurm for the end of a job that recorded none (at most two seconds).
        ended: the end of an attempt that could not be recorded in the run directory.

    Raises:
        OSError: the directory does not exist or cannot be entered.
    """
    from ftslurm.dataclasses import replace
    from ftslurm.report.analysis import analyse
    from ftslurm.report.gathering import gather
    from ftslurm.report.scheduler_query import scheduler_query

    now_ns = time.time_ns() if now_ns is None else now_ns
    if round_number is None and (rank is not None or every):
        # The report must choose a round before that round's output can be read.
        first = analyse(gather(directory, now_ns=now_ns))
        round_number = first["focus"] or (first["rounds"][-1]["round"] if first["rounds"] else None)
    snapshot = gather(directory, now_ns=now_ns, round_number=round_number, rank=rank, every=every)
    if ended is not None:
        snapshot = replace(snapshot, steps=(*snapshot.steps, ended))
    report = analyse(snapshot, round_number=round_number, rank=rank, every=every)
    more = None if offline else scheduler_query(snapshot, report)
    return report if more is None else analyse(more, round_number=round_number, rank=rank, every=every)


def report_of_logs(
    directory: Path, *, round_number: int | None = None, rank: int | None = None, every: bool = False
) -> dict[str, Any]:
    """Read and analyse the logs of a job that ftslurm did not run; see `ftslurm.report.torchrun_logs`.

    Args:
        directory: torchrun's --log-dir, a directory in it, or a job's output file.
        round_number: the attempt to show, counted from 1; None lets the report choose.
        rank: a rank of it to report in full.
        every: whether to report all its failed ranks in full.

    Raises:
        OSError: it does not exist or cannot be read.
        NotFound: it contains no such logs.
    """
    from ftslurm.report.analysis import analyse
    from ftslurm.report.torchrun_logs import gather_logs

    snapshot = gather_logs(directory, now_ns=time.time_ns())
    return analyse(snapshot, round_number=round_number, rank=rank, every=every)


def save(report: dict[str, Any], directory: Path) -> bool:
    """Publish ``report.json``, ``report.txt`` and ``report.html`` in the run directory, each complete or not at all.

    A full or read-only filesystem only causes a note on stderr. Leftovers of a killed earlier process are removed.

    Returns:
        Whether all were written.
    """
    _sweep(directory)
    try:
        for suffix, form in (("json", "json"), ("txt", "text"), ("html", "html")):
            _publish(directory / f"report.{suffix}", rendered(report, form, page_directory=str(directory)))
    except OSError as error:
        print_error(f"ftslurm report: not saved in {directory}: {error.strerror or error}")
        return False
    return True


def to_json(report: dict[str, Any]) -> str:
    """Return the report as JSON text, ASCII only, so that nothing in it can act on a terminal."""
    return rendered(report, "json")


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(
        prog="ftslurm report",
        allow_abbrev=False,
        description="Report why a run ended, or its state: the first failure over all nodes, and its consequences.",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN_DIR|JOB_ID", help="default: the newest run in the shared directory"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="default: text, or according to the suffix of -o FILE (.json, .md, .html)"
    )
    parser.add_argument("--json", action="store_const", dest="format", const="json", help="same as --format json")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the report to FILE instead of printing it"
    )
    parser.add_argument("--latest", action="store_true", help="the newest run in the shared directory (the default)")
    parser.add_argument("--round", type=_round, metavar="N", help="show the evidence of this round")
    parser.add_argument("--rank", type=_rank, metavar="R", help="report all facts about this rank in that round")
    parser.add_argument("--all", action="store_true", help="show all failed ranks in full, instead of groups")
    parser.add_argument(
        "--follow", action="store_true", help="print the report again at each change, until the run ends"
    )
    parser.add_argument(
        "--logs", metavar="DIR", help="the logs of a job that ftslurm did not run: torchrun's --log-dir, or slurm-*.out"
    )
    parser.add_argument(
        "--shared-dir", metavar="DIR", help="directory of the runs (default: $FTSLURM_SHARED_DIR, ./ftslurm-runs)"
    )
    parser.add_argument("--offline", action="store_true", help="do not query Slurm for the job's end")
    parser.add_argument("--exit-code", action="store_true", help="exit with the job's own status; 1 if it has none")
    parser.add_argument(
        "--save", action="store_true", help="also write report.txt, .json and .html into the run directory"
    )
    return parser


def _contradiction(options: argparse.Namespace) -> str:
    """Return an error text for incompatible options, or an empty one."""
    if options.latest and options.run is not None:
        return f"--latest chooses the run, but {options.run!r} is given too; omit one of them"
    if options.logs is None:
        return ""
    if options.run is not None or options.latest or options.shared_dir is not None:
        return "--logs reads logs of a job that ftslurm did not run; it cannot be combined with a run or --shared-dir"
    for name in ("follow", "save"):
        if getattr(options, name):
            return f"--{name} needs a run directory of ftslurm; it cannot be combined with --logs"
    return ""


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
            _publish(output, text, mode=0o666)
    except OSError as error:
        raise CannotWrite(f"cannot write {output}: {error.strerror or error}") from None
    return True


def _publish(path: Path, text: str, mode: int = 0o600) -> None:
    # Not named by the pid: in a container it repeats, and so would the leftovers of a killed process.
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _sweep(directory: Path) -> None:
    """Remove old temporary files that `_publish` left in a run directory when its process was killed."""
    try:
        for stale in directory.glob(".report.*.tmp"):
            if time.time() - stale.lstat().st_mtime > STALE_S:
                stale.unlink()
    except OSError:
        # A leftover hidden file is harmless.
        pass


def _complain(message: str) -> int:
    print_error(f"ftslurm report: {message}")
    return EXIT_USAGE

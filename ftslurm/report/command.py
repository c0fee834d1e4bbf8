"""``ftslurm report``: find the run, read it, judge it, print it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

EXIT_USAGE = 2
SLURM_TIMEOUT_S = 10.0


def main(argv: Sequence[str], *, job_workdir: Callable[[str], str | None] | None = None) -> int:
    """Run ``ftslurm report`` and return its exit status.

    Args:
        argv: the arguments after ``report``.
        job_workdir: asks for a job's working directory; used only when a job id is given and the run was
            not found by other means. Default: Slurm is asked.

    Returns:
        0; with ``--exit-code`` the job's own exit status (1 if no end was recorded); 2 on wrong usage and
        when there is no such run or round.
    """
    from ftslurm.report.locate import NotFound, locate

    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    try:
        directory = locate(
            options.run,
            environ=os.environ,
            cwd=Path.cwd(),
            shared_dir=options.shared_dir,
            job_workdir=job_workdir or _job_workdir,
        )
        report = make_report(directory, round_number=options.round)
    except NotFound as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"cannot read {error.filename}: {error.strerror}")
    if options.round is not None and report["focus"] != options.round:
        known = [entry["round"] for entry in report["rounds"]]
        span = f"rounds {known[0]}-{known[-1]} are" if known else "no round is"
        return _complain(f"round {options.round} is not recorded in {directory}; {span}")
    _print(report, as_json=options.json)
    if options.save:
        save(report, directory)
    if options.exit_code:
        code: int | None = report["exit_code"]
        return 1 if code is None else code
    return 0


def make_report(directory: Path, *, round_number: int | None = None, now_ns: int | None = None) -> dict[str, Any]:
    """Read and judge a run directory.

    Args:
        directory: the run directory.
        round_number: the round to show evidence for; None lets the report choose.
        now_ns: the time to speak from, nanoseconds since the epoch; None is now.

    Raises:
        OSError: the directory is not there or may not be entered.
    """
    from ftslurm.report.analyse import analyse
    from ftslurm.report.gather import gather

    snapshot = gather(directory, now_ns=time.time_ns() if now_ns is None else now_ns, round_number=round_number)
    return analyse(snapshot, round_number=round_number)


def save(report: dict[str, Any], directory: Path) -> bool:
    """Publish ``report.json`` and ``report.txt`` in the run directory, each complete or not at all.

    A full or read-only filesystem costs only a note on stderr: the report has been printed already.

    Returns:
        Whether both were written.
    """
    from ftslurm.report.text import render

    try:
        _publish(directory / "report.json", to_json(report))
        _publish(directory / "report.txt", render(report))
    except OSError as error:
        print(f"ftslurm report: not saved in {directory}: {error.strerror or error}", file=sys.stderr)
        return False
    return True


def to_json(report: dict[str, Any]) -> str:
    """Return the report as JSON text, ASCII only, so that nothing in it can act on a terminal."""
    import json

    return json.dumps(report, indent=2) + "\n"


def _job_workdir(job_id: str) -> str | None:
    from ftslurm.slurm.control import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    try:
        facts = CommandSlurm(timeout_s=SLURM_TIMEOUT_S).job(job_id)
    except (SlurmError, ValueError):
        return None
    return facts.work_dir if facts is not None else None


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(
        prog="ftslurm report",
        allow_abbrev=False,
        description="Say why a run ended, or how it is doing: the first failure over all nodes, and what followed.",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN_DIR|JOB_ID", help="default: the newest run in the shared directory"
    )
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.add_argument("--round", type=_round, metavar="N", help="show the evidence of this round")
    parser.add_argument(
        "--shared-dir", metavar="DIR", help="where runs are (default: $FTSLURM_SHARED_DIR, ./ftslurm-runs)"
    )
    parser.add_argument("--exit-code", action="store_true", help="exit with the job's own status; 1 if it has none")
    parser.add_argument(
        "--save", action="store_true", help="also write report.json and report.txt into the run directory"
    )
    return parser


def _round(text: str) -> int:
    import argparse

    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**6):
        raise argparse.ArgumentTypeError(f"expected a round's number (1, 2, ...), found {text!r}")
    return int(text)


def _print(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        text = to_json(report)
    else:
        from ftslurm.report.text import render

        text = render(report, colour=_wants_colour())
    encoding = sys.stdout.encoding or "ascii"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError:
        # The reader (head, less) has enough, the terminal is gone, the disk is full: the job's exit code matters more,
        # and the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _wants_colour() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return not plain and sys.stdout.isatty()


def _publish(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _complain(message: str) -> int:
    print(f"ftslurm report: {message}", file=sys.stderr)
    return EXIT_USAGE

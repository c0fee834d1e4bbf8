"""Reports: of a run directory, of any job's logs, of a job without a run; and their files.

All reports are made in the same steps: read, analyse, render. Each renderer is loaded on first use.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.terminal import print_error

if TYPE_CHECKING:
    from ftslurm.report.facts import Snapshot, StepEnd
    from ftslurm.slurm.control import SlurmControl
    from ftslurm.slurm.facts import JobFacts
    from ftslurm.slurm.job_now import JobNow

FORMATS = ("text", "json", "markdown", "html")
_SUFFIXES = {".json": "json", ".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html"}
SOURCE = "Slurm"
TAIL_LIMIT, LINES_SHOWN = 16 * 1024, 5
BOUND_S = 2.0
STALE_S = 3600.0


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

    now_ns = time.time_ns() if now_ns is None else now_ns
    if round_number is None and (rank is not None or every):
        # The report must choose a round before that round's output can be read.
        first = analyse(gather(directory, now_ns=now_ns))
        round_number = first["focus"] or (first["rounds"][-1]["round"] if first["rounds"] else None)
    snapshot = gather(directory, now_ns=now_ns, round_number=round_number, rank=rank, every=every)
    if ended is not None:
        snapshot = replace(snapshot, steps=(*snapshot.steps, ended))
    report = analyse(snapshot, round_number=round_number, rank=rank, every=every)
    more = None if offline else scheduler_query(snapshot, report) or running_job(snapshot, report)
    return report if more is None else analyse(more, round_number=round_number, rank=rank, every=every)


def report_of_logs(
    directory: Path, *, round_number: int | None = None, rank: int | None = None, every: bool = False
) -> dict[str, Any]:
    """Read and analyse the logs of a job that ftslurm did not run; see `ftslurm.report.logs`.

    Args:
        directory: torchrun's --log-dir, a directory in it, or a job's output file; "-": standard input.
        round_number: the attempt to show, counted from 1; None lets the report choose.
        rank: a rank of it to report in full.
        every: whether to report all its failed ranks in full.

    Raises:
        OSError: it does not exist or cannot be read.
        NotFound: it contains no such logs.
    """
    from ftslurm.report.analysis import analyse
    from ftslurm.report.logs.gathering import gather_logs

    snapshot = gather_logs(directory, now_ns=time.time_ns())
    return analyse(snapshot, round_number=round_number, rank=rank, every=every)


def snapshot_of_job(job: JobFacts, note: str, now_ns: int) -> Snapshot:
    """Return the facts of a job that has no run directory, or whose attempts took no part in the run.

    Args:
        job: Slurm's view of it.
        note: why there is no run, in one line.
        now_ns: the time, nanoseconds since the epoch.
    """
    from ftslurm.report.facts import Attempt, Job, Run, Snapshot
    from ftslurm.slurm.account import view_of

    name = f"{job.job_id}.{job.restarts or 0}"
    scheduler = view_of(job, name, job.scontrol_id, now_ns)
    return Snapshot(
        directory=job.work_dir or "",
        now_ns=now_ns,
        run=Run(f"job-{job.scontrol_id}", job.submit_ns),
        attempts=(Attempt(name, job.start_ns, job_id=job.job_id, cwd=job.work_dir),),
        scheduler=(scheduler,),
        source=SOURCE,
        job=Job(note, job.std_out, _last_lines(job.std_out)),
    )


def _last_lines(path: str | None) -> tuple[str, ...]:
    if path is None:
        return ()
    from ftslurm.sharedfs.bounded_read import Malformed, read_tail

    try:
        # Whoever owns it: Slurm names the path.
        found = read_tail(Path(path), TAIL_LIMIT, frozenset((os.stat(path).st_uid,)))
    except (OSError, Malformed, ValueError):
        return ()
    lines = [text for text in (found[0] if found else "").splitlines() if text.strip()]
    return tuple(lines[-LINES_SHOWN:])


def report_of_job(job: JobFacts, note: str) -> dict[str, Any]:
    """Return the report of such a job; its keys are those of a run's, see `ftslurm.report.analysis`."""
    from ftslurm.report.analysis import analyse

    return analyse(snapshot_of_job(job, note, time.time_ns())) | {"exit_code": exit_code_of(job)}


def report_of_output(job: JobFacts, note: str = "") -> dict[str, Any]:
    """Return the report on any job's output, with what Slurm knows of its end.

    Raises:
        NotFound: it has no output that can be read.
    """
    from ftslurm.report.analysis import analyse
    from ftslurm.report.logs.of_job import snapshot_of_output

    return analyse(snapshot_of_output(job, time.time_ns(), note)) | {"exit_code": exit_code_of(job)}


def exit_code_of(job: JobFacts) -> int | None:
    """Return the exit code of a job, as a shell does; None before its end."""
    code, signal = job.exit_code or (0, 0)
    if not job.ended:
        return None
    # Slurm reports 0:0 for a job that was cancelled while pending.
    return (128 + signal if signal else code) or int(job.state != "COMPLETED")


def scheduler_query(snapshot: Snapshot, report: dict[str, Any], slurm: SlurmControl | None = None) -> Snapshot | None:
    """Return the snapshot with Slurm's view of its newest attempt; None if no query is needed.

    Args:
        snapshot: the run directory.
        report: the report without Slurm's view.
        slurm: the interface to query; None: Slurm's commands, for at most two seconds in all.
    """
    from ftslurm.dataclasses import replace
    from ftslurm.report.scheduler import attempt_to_query

    attempt = attempt_to_query(snapshot, report["status"], report["cause"])
    if attempt is None or attempt.job_id is None:
        return None
    # Rarely needed, and a tenth of a small report's time.
    from ftslurm.slurm.account import account, bounded_slurm

    if slurm is None:
        slurm = bounded_slurm(os.environ, BOUND_S, time.monotonic)
    lost = sorted({lost.node for lost in snapshot.state.lost}) if snapshot.state else []
    view = account(slurm, attempt.attempt, attempt.job_id, lost, snapshot.now_ns)
    if view.state is None and any(each.attempt == view.attempt for each in snapshot.scheduler):
        return None
    others = tuple(each for each in snapshot.scheduler if each.attempt != view.attempt)
    return replace(snapshot, scheduler=(*others, view))


def running_job(
    snapshot: Snapshot, report: Mapping[str, Any], ask: Callable[[str], JobNow] | None = None
) -> Snapshot | None:
    """Return the snapshot of a run that goes on with what Slurm has on its job now; None without a job or an answer.

    Args:
        ask: queries a job; None: Slurm's commands, if there are any, for at most two seconds in all.
    """
    newest = snapshot.attempt
    if report["status"] != "running" or newest is None or not (newest.job_id or "").isdecimal():
        return None
    from ftslurm.slurm.job_now import ask as ask_slurm
    from ftslurm.slurm.run_command import has_program

    if ask is None and not has_program("scontrol", os.environ):
        return None
    assert newest.job_id is not None
    now = (ask or ask_slurm)(newest.job_id)
    if now.facts is None:
        return None
    from ftslurm.dataclasses import replace
    from ftslurm.slurm.account import view_of

    was_s = newest.time_limit_s if newest.time_limit_s != now.time_limit_s else None
    view = view_of(now.facts, newest.attempt, newest.job_id, now.asked_ns)
    view = replace(view, nodes=now.nodes_out, held=now.held, limit_was_s=was_s)
    others = tuple(each for each in snapshot.scheduler if each.attempt != view.attempt)
    return replace(snapshot, scheduler=(*others, view))


def format_of(path: Path | None) -> str:
    """Return the format for a file's suffix; text if there is none."""
    return _SUFFIXES.get(path.suffix.lower(), "text") if path is not None else "text"


def rendered(report: Mapping[str, Any], form: str, *, colour: bool = False, page_directory: str | None = None) -> str:
    """Return a report in one of the `FORMATS`.

    Args:
        report: what `ftslurm.report.analysis.analyse` returned.
        form: the format's name.
        colour: whether text gets ANSI colours.
        page_directory: the directory of the HTML page; links to files below it are relative.

    Raises:
        ValueError: there is no such format.
    """
    if form == "json":
        # ASCII only, so that nothing in it can act on a terminal.
        return json.dumps(report, indent=2) + "\n"
    if form == "text":
        from ftslurm.report import text

        return text.render(report, colour=colour)
    if form == "markdown":
        from ftslurm.report import markdown

        return markdown.render(report)
    if form == "html":
        from ftslurm.report import html

        return html.render(report, page_directory=page_directory)
    raise ValueError(f"expected a format of {', '.join(FORMATS)}, found {form!r}")


def save(report: dict[str, Any], directory: Path) -> bool:
    """Publish ``report.json``, ``report.txt`` and ``report.html`` in the run directory, each complete or not at all.

    A full or read-only filesystem only causes a note on stderr. Leftovers of a killed earlier process are removed.

    Returns:
        Whether all were written.
    """
    from ftslurm.host_lock import CommandLock, LockHeld

    try:
        # Else the three files could come from two reports, and an older one replace a newer one.
        with CommandLock("report", str(directory)):
            _sweep(directory)
            for suffix, form in (("json", "json"), ("txt", "text"), ("html", "html")):
                publish(directory / f"report.{suffix}", rendered(report, form, page_directory=str(directory)))
    except LockHeld as holder:
        print_error(f"ftslurm report: not saved in {directory}: {holder} is saving it; try again when that has ended")
        return False
    except OSError as error:
        print_error(f"ftslurm report: not saved in {directory}: {error.strerror or error}")
        return False
    return True


def publish(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file, complete or not at all; raises OSError."""
    # Not named by the pid: in a container it repeats, and so would the leftovers of a killed process.
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
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
    """Remove old temporary files that `publish` left in a run directory when its process was killed."""
    try:
        for stale in directory.glob(".report.*.tmp"):
            if time.time() - stale.lstat().st_mtime > STALE_S:
                stale.unlink()
    except OSError:
        # A leftover hidden file is harmless.
        pass

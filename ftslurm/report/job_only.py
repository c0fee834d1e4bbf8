"""The report of a job that has no run: Slurm's view of it, and the end of its output."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ftslurm.report.decode import Malformed
from ftslurm.report.facts import Attempt, Job, Run, Scheduler, Snapshot
from ftslurm.report.reading import read_tail
from ftslurm.report.scheduler import line, of_attempt
from ftslurm.slurm.facts import JobFacts

SOURCE = "Slurm"
TAIL_LIMIT, LINES_SHOWN = 16 * 1024, 5

Dict = dict[str, Any]


def snapshot_of_job(job: JobFacts, note: str, now_ns: int) -> Snapshot:
    """Return the facts of a job that has no run directory, or whose attempts took no part in the run.

    Args:
        job: Slurm's view of it.
        note: why there is no run, in one line.
        now_ns: the time, nanoseconds since the epoch.
    """
    name = f"{job.job_id}.{job.restarts or 0}"
    code, signal = job.exit_code or (None, None)
    scheduler = Scheduler(
        attempt=name,
        asked_ns=now_ns,
        job_id=job.scontrol_id,
        problem=None,
        state=job.state,
        reason=job.reason,
        exit_code=code,
        signal=signal,
        restarts=job.restarts,
        start_ns=job.start_ns,
        end_ns=job.end_ns,
        time_limit_s=job.time_limit_s,
        failed_node=job.failed_node,
        cancelled_by=job.cancelled_by,
        preempted_ns=job.preempted_ns,
        source=job.source,
    )
    return Snapshot(
        directory=job.work_dir or "",
        now_ns=now_ns,
        run=Run(f"job-{job.scontrol_id}", None, job.submit_ns, None),
        attempts=(Attempt(name, job.job_id, job.start_ns, job.work_dir, (), None),),
        scheduler=(scheduler,),
        source=SOURCE,
        job=Job(note, job.std_out, _last_lines(job.std_out)),
    )


def _last_lines(path: str | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        # Whoever owns it: Slurm names the path.
        found = read_tail(Path(path), TAIL_LIMIT, frozenset((os.stat(path).st_uid,)))
    except (OSError, Malformed, ValueError):
        return ()
    lines = [text for text in (found[0] if found else "").splitlines() if text.strip()]
    return tuple(lines[-LINES_SHOWN:])


def job_report(snapshot: Snapshot) -> Dict | None:
    """Return the report's ``job``; None for a run."""
    if snapshot.job is None:
        return None
    scheduler = of_attempt(snapshot, snapshot.attempts[0].attempt)
    return {
        "note": snapshot.job.note,
        "line": line(scheduler) if scheduler is not None else "",
        "output": snapshot.job.output,
        "last_lines": list(snapshot.job.last_lines),
    }


def report_of_job(job: JobFacts, note: str) -> Dict:
    """Return the report of such a job; its keys are those of a run's, see `ftslurm.report.analysis`."""
    from ftslurm.report.analysis import analyse

    return analyse(snapshot_of_job(job, note, time.time_ns())) | {"exit_code": exit_code_of(job)}


def exit_code_of(job: JobFacts) -> int | None:
    """Return the exit code of a job, as a shell does; None before its end."""
    code, signal = job.exit_code or (0, 0)
    if not job.ended:
        return None
    # Slurm reports 0:0 for a job that was cancelled while pending.
    return (128 + signal if signal else code) or int(job.state != "COMPLETED")

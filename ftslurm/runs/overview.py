"""One run in a list: its state, round, step, last failure and time left, from few files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from ftslurm.dataclasses import dataclass, replace
from ftslurm.records.state import FAILED, NODE_LOST, STOPPED, SUCCEEDED, RoundHistory, State
from ftslurm.sharedfs.job_runs import first_run
from ftslurm.slurm.environment import job_of
from ftslurm.slurm.queue import PENDING, RUNNING, QueuedJob
from ftslurm.slurm.sbatch import run_of_comment
from ftslurm.status.snapshot import Snapshot, read
from ftslurm.status.stopping import INTERRUPTED, outcome
from ftslurm.status.summary import summarise
from ftslurm.text import duration

STARTING, UNSTARTED, STARTING_S = "starting", "unstarted", 3600.0
"""States of a run without a state, by the seconds since something in its directory changed: agents that live write each
few seconds, and a job whose nodes are awaited is in Slurm's queue."""
OUTCOMES = (SUCCEEDED, FAILED, STOPPED, INTERRUPTED)
SUSPENDED = ("SUSPENDED", "STOPPED", "REQUEUE_HOLD", "REQUEUED", "SPECIAL_EXIT")


@dataclass(frozen=True)
class Overview:
    """What `ftslurm list` prints of a run; None: unknown.

    Attributes:
        run: its name.
        state: "running", "forming", "hanging", "ending", "silent", "ended" or "unknown" as in `ftslurm status`; of a
            closed run its outcome ("succeeded", "failed", "interrupted": all ranks left because they were to stop,
            "stopped": they were ended); of one without a state "starting" or "unstarted"; of a run whose job waits in
            Slurm's queue "pending", or "suspended".
        why: of a pending job Slurm's reason; of a run that was stopped what was saved; of an unknown run the file
            that cannot be used.
        round: the newest formed round; 0 for none.
        step: the last training step that is recorded.
        nodes, ranks: of that round.
        job: id of the newest attempt's job.
        begun_ns: when the first recorded round formed.
        ended_ns: when the run was closed.
        left_s: seconds until the job's time limit.
        failure: the last failure; with `failure_round`.
    """

    run: str
    directory: str
    state: str
    why: str | None = None
    round: int | None = None
    step: int | None = None
    nodes: int | None = None
    ranks: int | None = None
    restarts_used: int | None = None
    max_restarts: int | None = None
    job: str | None = None
    begun_ns: int | None = None
    ended_ns: int | None = None
    left_s: int | None = None
    failure: str | None = None
    failure_round: int | None = None


def overview(path: str) -> Overview:
    """Read one run; a damaged one is "unknown", with the reason.

    The node records are read only while the run has not ended, as far as that is known.
    """
    directory = Path(path)
    try:
        snapshot = _read(directory, nodes=False)
        if (snapshot.state is None or snapshot.state.closed is None) and snapshot.ended_ns is None:
            snapshot = _read(directory, nodes=True)
    except OSError as error:
        return Overview(os.path.basename(path), path, "unknown", f"cannot be read: {error.strerror}")
    run = of_snapshot(snapshot)
    if snapshot.state is None or run.state not in (*OUTCOMES, "ended"):
        return run
    # The state has only the steps of failures.
    from ftslurm.runs.history_reading import saved_entry

    entry = saved_entry(path, snapshot.state, snapshot.ended_ns is not None)
    return run if entry is None or entry.last_step is None else replace(run, step=entry.last_step)


def _read(directory: Path, nodes: bool) -> Snapshot:
    return read(directory, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns, nodes=nodes)


def of_snapshot(snapshot: Snapshot) -> Overview:
    """Return what is known of a run (pure)."""
    name = os.path.basename(snapshot.directory.rstrip("/"))
    state = snapshot.state
    if state is None and snapshot.newest_token == 0 and not snapshot.problems:
        return _without_state(name, snapshot)
    if state is None:
        problem = next(iter(snapshot.problems), None)
        why = f"{problem.file}: {problem.reason}" if problem else "no usable state"
        return Overview(name, snapshot.directory, "unknown", why)
    status = summarise(snapshot)
    ended, saved = outcome(state) if state.closed else (None, None)
    last = _last_failure(state)
    step = status["steps"]["last"]
    return Overview(
        run=name,
        directory=snapshot.directory,
        state=ended or status["status"],
        why=saved,
        round=state.round,
        step=step if step is not None else _last_step(state),
        nodes=len(state.participants),
        ranks=state.world_size,
        restarts_used=state.restarts_used,
        max_restarts=state.max_restarts,
        job=job_of(state.attempt),
        begun_ns=state.history[0].formed_ns if state.history else None,
        ended_ns=state.closed.time_ns if state.closed else None,
        failure=(last.reason or last.outcome) if last else None,
        failure_round=last.round if last else None,
    )


def _without_state(name: str, snapshot: Snapshot) -> Overview:
    """Return what is known of a run whose agents have written no state: by its age it begins, or never began."""
    age_s = (snapshot.now_ns - (snapshot.server_ns or snapshot.now_ns)) / 1e9
    job = first_run(name).removeprefix("job-") if name.startswith("job-") else None
    found = Overview(name, snapshot.directory, STARTING, "no agent has written a state yet", job=job)
    return found if age_s < STARTING_S else replace(found, state=UNSTARTED, why=f"unchanged for {duration(age_s)}")


def in_queue(run: Overview, queue: Mapping[str, QueuedJob]) -> Overview:
    """Add what Slurm's queue has of the run's job (pure)."""
    job = queue.get(run.job) if run.job else None
    if job is None:
        return run
    if job.state == PENDING:
        return replace(run, state="pending", why=job.reason)
    if job.state in SUSPENDED:
        return replace(run, state="suspended", why=job.reason, left_s=job.left_s)
    return replace(run, left_s=job.left_s) if job.state == RUNNING else run


def job_in_queue(run: Overview, queue: Mapping[str, QueuedJob]) -> QueuedJob | None:
    """Return the job of the run that is pending, running or ending, if any: its last one, or one that continues it."""
    by_comment = (job for job in queue.values() if job.comment and run_of_comment(job.comment) == run.run)
    return queue.get(run.job or "") or queue.get(run.run.removeprefix("job-")) or next(by_comment, None)


def _last_failure(state: State) -> RoundHistory | None:
    failed = (past for past in reversed(state.history) if past.failure is not None or past.outcome == NODE_LOST)
    return next(failed, None)


def _last_step(state: State) -> int | None:
    steps = [past.failure.step for past in state.history if past.failure and past.failure.step is not None]
    return max(steps, default=None)

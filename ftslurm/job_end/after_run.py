"""An agent's tasks for its Slurm job after it has left the run."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from ftslurm.agent.guardian import STOPPING
from ftslurm.job_end.attempts import StepEnd, publish_end
from ftslurm.job_end.batch_host import BATCH_HOST, BATCH_STARTED, Survivor, await_loss, end_job
from ftslurm.job_end.departures import Departures
from ftslurm.rendezvous.state import STOPPED, State
from ftslurm.sharedfs.filesystem import FileSystem, PosixFileSystem
from ftslurm.sharedfs.publish import BadFile, encode, publish
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.environment import SlurmJob

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl

QUERY_S = 3.0
"""Time-out of the coordinator's scheduler query, in seconds; the job may be about to be killed."""


def after_run(
    job: SlurmJob, state: State, node: str, incarnation: str, run: RunDirectory, node_timeout_s: float
) -> list[str]:
    """Complete the job end of a run that this agent has followed to its last `state`.

    Args:
        node, incarnation: this agent.
        node_timeout_s: see `Survivor`.

    Returns:
        The problems, one line each.
    """
    coordinating = state.coordinator.incarnation == incarnation
    if coordinating and needs_scheduler_query(state):
        save_scheduler_record(job, state, run)
    batch_host, started_ns = os.environ.get(BATCH_HOST), os.environ.get(BATCH_STARTED, "")
    # A batch host outside the step (FTSRUN_SRUN_ARGS) has no agent whose silence could indicate its loss.
    if batch_host not in job.node_list or batch_host == node or state.closed is None or not started_ns.isdecimal():
        return []
    survivor = Survivor(job, node, batch_host, int(started_ns), coordinating, node_timeout_s)
    return _outlast(survivor, state, run)


def needs_scheduler_query(state: State) -> bool:
    """Return whether Slurm may have the cause of the end: the run was stopped from outside, or lost a node."""
    return state.closed is not None and (state.closed.outcome == STOPPED or bool(state.lost))


def save_scheduler_record(job: SlurmJob, state: State, run: RunDirectory) -> None:
    """Write Slurm's data on the job to the attempt's directory; best effort."""
    from ftslurm.slurm.account import account, bounded_slurm

    slurm = bounded_slurm(os.environ, QUERY_S, time.monotonic)
    lost = sorted({node.node for node in state.lost})
    record = account(slurm, state.attempt, job.scontrol_id, lost, time.time_ns())
    try:
        publish(PosixFileSystem(owner=os.geteuid()), run.scheduler_file(state.attempt), encode(record))
    except OSError:
        # ftsrun's report repeats the query.
        pass


def _outlast(survivor: Survivor, state: State, run: RunDirectory) -> list[str]:
    assert state.closed is not None
    code, stopped = state.closed.exit_code, state.closed.outcome == STOPPED
    for number in STOPPING:
        # The agent has left the run, and a signal now ends the job. In a stopped run it is the same signal, which Slurm
        # repeats, and some seconds are left until KillWait is over.
        signal.signal(number, signal.SIG_IGN if stopped else lambda *_: os._exit(code))
    fs = PosixFileSystem(owner=os.geteuid())
    departures = Departures(fs, run, state.attempt, survivor.node_timeout_s / 2, time.monotonic)
    job = await_loss(survivor, departures, _slurm, time.monotonic, time.sleep)
    if job is None:
        return []
    claim, report = partial(_claim, fs, run, state.attempt), partial(_report, run)
    return end_job(survivor, state, job, _slurm(), claim, report, time.sleep)


def _slurm() -> SlurmControl:
    from ftslurm.slurm.control import CommandSlurm

    return CommandSlurm()


def _claim(fs: FileSystem, run: RunDirectory, attempt: str) -> bool:
    try:
        return publish_end(fs, run, StepEnd(attempt, time.time_ns(), None, None))
    except (OSError, BadFile):
        # A duplicate report is better than none.
        return True


def _report(run: RunDirectory) -> str:
    """Return the report as ftsrun prints it, and save it in the run directory."""
    # pathlib takes 0.7 MB of memory, which each agent would hold while its workers run.
    from pathlib import Path

    from ftslurm.report.command import make_report, save
    from ftslurm.report.text import render

    report = make_report(Path(run.root))
    save(report, Path(run.root))
    return render(report)

"""What an agent does after it has left the run: its tasks for its Slurm job, or a report of a run that has vanished."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from ftslurm import __version__
from ftslurm.dataclasses import replace
from ftslurm.job_end.attempts import publish_end
from ftslurm.job_end.batch_host import BATCH_HOST, BATCH_STARTED, CLAIMED_S, Survivor, await_loss, end_job
from ftslurm.job_end.departures import Departures
from ftslurm.kernel import STOPPING
from ftslurm.records.attempt import Run, SchedulerView, StepEnd
from ftslurm.records.codec import BadFile, write_record
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import LEFT, STOPPED, State
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import FileSystem, PosixFileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.environment import SlurmJob
from ftslurm.terminal import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl
    from ftslurm.slurm.facts import JobFacts

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
    problems = []
    if coordinating:
        view = save_scheduler_record(job, state, run) if needs_scheduler_query(state) else None
        problems = publish_verdict(state, run, view, node)
    batch_host, started_ns = os.environ.get(BATCH_HOST), os.environ.get(BATCH_STARTED, "")
    # A batch host outside the step (FTSRUN_SRUN_ARGS) has no agent whose silence could indicate its loss.
    if batch_host not in job.node_list or batch_host == node or state.closed is None or not started_ns.isdecimal():
        return problems
    survivor = Survivor(job, node, batch_host, int(started_ns), coordinating, node_timeout_s)
    return [*problems, *_outlast(survivor, state, run)]


def needs_scheduler_query(state: State) -> bool:
    """Return whether Slurm may have the cause of the end: the run was stopped from outside, or lost a node."""
    return state.closed is not None and (state.closed.outcome == STOPPED or bool(state.lost))


def publish_verdict(state: State, run: RunDirectory, view: SchedulerView | None, node: str) -> list[str]:
    """Decide whether the job starts again, for ftsrun to do so; return the problems, one line each.

    Args:
        view: Slurm's data on the job, if they were queried.
        node: of this agent.
    """
    if state.closed is None:
        return []
    from ftslurm.job_end.settle import settle

    try:
        settle(PosixFileSystem(owner=os.geteuid()), run, state, view, node, time.time_ns())
    except (OSError, BadFile) as error:
        # ftsrun decides in that case.
        return [f"whether the job starts again cannot be recorded: {error}"]
    return []


def save_scheduler_record(job: SlurmJob, state: State, run: RunDirectory) -> SchedulerView:
    """Write Slurm's data on the job to the attempt's directory, best effort; return them."""
    from ftslurm.slurm.account import account, bounded_slurm

    slurm = bounded_slurm(os.environ, QUERY_S, time.monotonic)
    lost = sorted({node.node for node in state.lost})
    record = account(slurm, state.attempt, job.scontrol_id, lost, time.time_ns())
    try:
        publish(PosixFileSystem(owner=os.geteuid()), run.scheduler_file(state.attempt), write_record(record))
    except OSError:
        # ftsrun's report repeats the query.
        pass
    return record


def _outlast(survivor: Survivor, state: State, run: RunDirectory) -> list[str]:
    assert state.closed is not None
    code, stopped = state.closed.exit_code, state.closed.outcome == STOPPED
    for number in STOPPING:
        # The agent has left the run, and a signal now ends the job. In a stopped run it is the same signal, which Slurm
        # repeats, and some seconds are left until KillWait is over.
        signal.signal(number, signal.SIG_IGN if stopped else lambda *_: os._exit(code))
    # By ftsrun, which is alive and needs no one else.
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(code))
    fs = PosixFileSystem(owner=os.geteuid())
    departures = Departures(fs, run, state.attempt, survivor.node_timeout_s / 2, time.monotonic)
    job = await_loss(survivor, departures, _slurm, time.monotonic, time.sleep)
    if job is None:
        return []
    claim, report = partial(_claim, fs, run, state.attempt), partial(_report, run, state.attempt)
    again = partial(_start_again, fs, run, state, survivor)
    return end_job(survivor, state, job, _slurm(), claim, report, time.sleep, again)


def _start_again(fs: FileSystem, run: RunDirectory, state: State, survivor: Survivor, facts: JobFacts) -> bool:
    """Carry out the verdict in place of a dead ftsrun; return whether the same job starts again."""
    from ftslurm.job_end.carry_out import carry_out
    from ftslurm.job_end.settle import settle
    from ftslurm.records.verdict import BY_SLURM, REQUEUE, REQUEUED
    from ftslurm.slurm.account import view_of

    now_ns = time.time_ns()
    try:
        view = view_of(facts, state.attempt, survivor.job.scontrol_id, now_ns)
        verdict = settle(fs, run, state, view, survivor.node, now_ns)
    except (OSError, BadFile) as error:
        complain(f"whether the job starts again cannot be recorded: {error}")
        return False
    done, lines = carry_out(fs, run, verdict, survivor.job, survivor.node)
    for line in lines:
        complain(line)
    if verdict.action != REQUEUE:
        return False
    if done is None:
        # Another process has the right to act: one that has died meanwhile, if the job still runs after this time.
        time.sleep(CLAIMED_S)
        return False
    return done.outcome in (REQUEUED, BY_SLURM)


def _slurm() -> SlurmControl:
    from ftslurm.slurm.commands import CommandSlurm

    return CommandSlurm()


def _claim(fs: FileSystem, run: RunDirectory, attempt: str) -> bool:
    try:
        return publish_end(fs, run, StepEnd(attempt, time.time_ns(), None, None))
    except (OSError, BadFile):
        # A duplicate report is better than none.
        return True


def _report(run: RunDirectory, attempt: str) -> str:
    """Return the report as ftsrun prints it, and save it in the run directory."""
    # pathlib takes 0.7 MB of memory, which each agent would hold while its workers run.
    from pathlib import Path

    from ftslurm.hooks.at_end import follow_last_events
    from ftslurm.report.pipeline import make_report, save
    from ftslurm.report.text import render

    report = make_report(Path(run.root))
    save(report, Path(run.root))
    follow_last_events(run.root, attempt)
    return render(report)


def last_report(directory: str, state: State, record: NodeRecord) -> str | None:
    """Return the report of a run whose directory has vanished, from this node's own data; None if it cannot be made.

    Args:
        directory: contains the node's records of the newest round, with the layout of a run directory; the other files
            that the report needs are added.
        state: the newest state that the agent has read.
        record: its node record.
    """
    from pathlib import Path

    from ftslurm.report.pipeline import make_report
    from ftslurm.report.text import render

    run, fs = RunDirectory(directory), PosixFileSystem(owner=os.geteuid())
    gone = replace(record, status=LEFT, reason="the run directory has vanished", time_ns=time.time_ns())
    try:
        for folder in (run.state, run.nodes):
            fs.makedirs(folder)
        FencedCell(fs, run.state).set(state.encode(), None)
        publish(fs, run.node_file(record.node), gone.encode())
        publish(fs, run.run_file, write_record(Run(state.run_id, ftslurm=__version__)))
        return render(make_report(Path(directory)))
    except (OSError, BadFile):
        return None

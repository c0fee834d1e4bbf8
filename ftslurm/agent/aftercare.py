"""After the run: its report, and the end of a Slurm job whose batch script is gone.

When the batch script's node is lost, nobody ends the job any more: the agents that are left do. Slurm keeps such a job
RUNNING until its time limit, with no batch script and no srun (measured with 22.05 and 24.11, both with --no-kill). So
they put the report where ftsrun would have printed it, and cancel the job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ftslurm.rendezvous.state import State
from ftslurm.slurm.environment import SlurmJob
from ftslurm.slurm.errors import SlurmError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl

ASK_S = 3.0
"""How long the coordinator waits for Slurm's account of the job, in seconds; the job may be about to be killed."""
REPORT_FIRST_S = 3.0
"""How long the other agents leave to the coordinator for the report, in seconds, before they cancel the job."""


def print_report(run_dir: str) -> int:
    """Print the report of the run, keep it in the run directory, and return the job's verdict as an exit code."""
    from ftslurm.report.command import main as report

    return report([run_dir, "--save", "--exit-code"])


def care(job: SlurmJob, state: State, incarnation: str, run_dir: str) -> list[str]:
    """Do what is left to do for a job whose run this agent has followed to its last `state`.

    Returns:
        What went wrong, a line each.
    """
    coordinating = state.coordinator.incarnation == incarnation
    if coordinating and worth_asking(state):
        keep_account(job, state, run_dir)
    if not batch_host_lost(state, job):
        return []
    from ftslurm.slurm.control import CommandSlurm

    return end_job(job, CommandSlurm(), coordinating, lambda: _report(run_dir), time.sleep)


def worth_asking(state: State) -> bool:
    """Tell whether Slurm may know why the run ended: it was stopped from outside, or lost a node."""
    return state.closed is not None and (state.closed.outcome == "stopped" or bool(state.lost))


def keep_account(job: SlurmJob, state: State, run_dir: str) -> None:
    """Write what Slurm says of the job beside what this attempt asked for; a failure costs only the knowledge."""
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import encode, publish
    from ftslurm.sharedfs.rundir import RunDirectory
    from ftslurm.slurm.account import account, bounded_slurm

    slurm = bounded_slurm(os.environ, ASK_S, time.monotonic)
    lost = sorted({node.node for node in state.lost})
    said = account(slurm, state.attempt, job.scontrol_id, lost, time.time_ns())
    try:
        path = RunDirectory(run_dir).scheduler_file(state.attempt)
        publish(PosixFileSystem(owner=os.geteuid()), path, encode(said))
    except OSError:
        # ftsrun's report asks again.
        pass


def _report(run_dir: str) -> str:
    """Return the report as ftsrun prints it, and keep it in the run directory."""
    # pathlib brings 0.7 MB, which each agent would hold while its workers run.
    from pathlib import Path

    from ftslurm.report.command import make_report, save
    from ftslurm.report.text import render

    report = make_report(Path(run_dir))
    save(report, Path(run_dir))
    return render(report)


def batch_host_lost(state: State, job: SlurmJob) -> bool:
    """Tell whether the run is closed and the node of the batch script, the first of the job's, was lost on the way."""
    return state.closed is not None and any(lost.node in job.node_list[:1] for lost in state.lost)


def end_job(
    job: SlurmJob,
    slurm: SlurmControl,
    coordinating: bool,
    report: Callable[[], str],
    sleep: Callable[[float], None],
) -> list[str]:
    """Print the report at the end of the job's output file and cancel the job.

    Args:
        coordinating: this is the one agent that prints.
        report: makes the report's text.

    Returns:
        What went wrong, a line each.
    """
    problems = []
    if coordinating:
        try:
            facts = slurm.job(job.scontrol_id)
            if facts is not None and facts.std_out:
                _append(facts.std_out, report())
        except (SlurmError, OSError) as error:
            problems.append(f"the report is only in the run directory: {error}")
    else:
        sleep(REPORT_FIRST_S)
    try:
        slurm.cancel(job.scontrol_id)
    except SlurmError as error:
        problems.append(f"the batch script died with its node, and the job cannot be cancelled from here: {error}")
    return problems


def _append(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)

"""Start the job again after an attempt, if its verdict is to requeue, and keep excluded nodes out of it."""

from __future__ import annotations

import os
import time

from ftslurm.job_end.requeue import ends_chain
from ftslurm.job_end.settle import chain_of
from ftslurm.job_end.start_again import JobAccess, start_again
from ftslurm.records.attempt import Attempt
from ftslurm.records.codec import BadFile
from ftslurm.records.verdict import FAILED, RESUBMITTED, AttemptVerdict, Requeued
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.job_runs import first_run
from ftslurm.sharedfs.publish import read_published
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.commands import CommandSlurm
from ftslurm.slurm.control import SlurmControl
from ftslurm.slurm.environment import SlurmJob
from ftslurm.slurm.errors import SlurmError
from ftslurm.slurm.resubmission import Resubmission
from ftslurm.text import safe


def carry_out(
    fs: FileSystem, run: RunDirectory, verdict: AttemptVerdict, job: SlurmJob, by: str
) -> tuple[Requeued | None, list[str]]:
    """Carry out a verdict; return what came of it (None: nothing to do here), and lines for the user.

    Args:
        by: "ftsrun", or an agent's node.
    """
    slurm = CommandSlurm()
    if ends_chain(verdict.cause, verdict.action, verdict.exit_code):
        return None, _end_chain(fs, run, slurm)
    run_id = first_run(os.path.basename(run.root))
    access = JobAccess(by, job, run_id, slurm, Resubmission(os.environ), time.time_ns, time.sleep)
    try:
        done = start_again(fs, run, verdict, access)
    except (OSError, BadFile) as error:
        return None, [f"the job is not requeued, since that cannot be recorded: {error}"]
    if done is None:
        return None, []
    if done.outcome == FAILED:
        return done, [f"the job could not be requeued: {done.problem}"]
    lines = []
    if done.outcome == RESUBMITTED:
        lines = [f"submitted again as job {done.job_id}, instead of a requeue: {done.problem}"]
    note = _exclude(fs, run, verdict, slurm, done.job_id if done.outcome == RESUBMITTED else job.scontrol_id)
    return done, [*lines, *([note] if note else [])]


def _end_chain(fs: FileSystem, run: RunDirectory, slurm: SlurmControl) -> list[str]:
    """Cancel the other jobs of the chain that the job belongs to, if any; return lines for the user."""
    try:
        chain = chain_of(fs, run)
        if chain is not None:
            slurm.cancel_pending(chain.job_name)
    except (OSError, SlurmError) as error:
        return [f"the rest of the chain could not be cancelled: {error}"]
    return [] if chain is None else [f"the pending jobs of the chain {safe(chain.job_name)} are cancelled"]


def _exclude(
    fs: FileSystem, run: RunDirectory, verdict: AttemptVerdict, slurm: CommandSlurm, job_id: str | None
) -> str:
    """Exclude from the next start the nodes that are excluded by now; return a line for the user, empty for none."""
    from ftslurm.nodes import table
    from ftslurm.nodes.exclude import Exclusions, folder
    from ftslurm.nodes.pass_on import pass_on

    try:
        chosen = read_published(fs, run.attempt_file(verdict.attempt), Attempt).option("exclude_dir")
        files = Exclusions(fs, folder(run.root, chosen if isinstance(chosen, str) else None))
        excluded, _ = table.names(files.read().values(), time.time_ns())
        return pass_on(slurm, job_id or "", excluded)
    except (OSError, BadFile, SlurmError, ValueError) as error:
        return f"excluded nodes are not passed on: {error}"

"""What `ftslurm prepare` records of the job before the agents start: a link to its run, its chain, its batch script."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from ftslurm.records.codec import write_record
from ftslurm.records.submission import Chain, Submission
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.job_runs import first_run, leave_pointer
from ftslurm.sharedfs.publish import publish, publish_once
from ftslurm.sharedfs.rundir import RUNS_FOLDER, RunDirectory
from ftslurm.slurm.environment import SlurmJob
from ftslurm.slurm.errors import SlurmError
from ftslurm.slurm.facts import JobFacts
from ftslurm.slurm.resubmission import Resubmission
from ftslurm.slurm.sbatch import is_chained
from ftslurm.terminal import complain


def point_to(run_dir: str, job: JobFacts) -> None:
    """Leave a link beside the job's output to a run directory that `ftslurm report JOB` would not find."""
    work_dir = Path(job.work_dir or os.getcwd())
    if os.path.realpath(os.path.dirname(run_dir)) == os.path.realpath(work_dir / RUNS_FOLDER):
        return
    # Not into /dev, where --output=/dev/null is; and salloc has no output.
    beside = Path(job.std_out).parent if job.std_out and os.path.isfile(job.std_out) else work_dir
    leave_pointer(beside, job.scontrol_id, run_dir)


def note_chain(run: RunDirectory, facts: JobFacts) -> None:
    """Note in the run directory that the job belongs to a chain; without that note, the rest of it is not cancelled."""
    name = os.environ.get("SLURM_JOB_NAME")
    if not is_chained(facts.comment) or not name:
        return
    try:
        chain = Chain(os.path.basename(run.root), name)
        publish_once(PosixFileSystem(owner=os.geteuid()), run.chain_file, write_record(chain))
    except OSError as error:
        complain(f"{run.chain_file}: {error.strerror}; the rest of the chain will not be cancelled")


def _export(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return sbatch's --export, which Slurm prints of no job, but leaves in its environment."""
    value = environ.get("SLURM_EXPORT_ENV")
    return (f"--export={value}",) if value else ()


def record_submission(run: RunDirectory, job_id: str, job: SlurmJob | None) -> None:
    """Record the job's batch script for `ftslurm restart`; a job without one, as salloc's, has none to record."""
    try:
        script = Resubmission(os.environ).script_of(job_id, first_run(os.path.basename(run.root)))
        cwd = job.submit_dir if job is not None else None
        options = (*script.options, *_export(os.environ))
        record = Submission(job_id, time.time_ns(), script.text, options, script.arguments, cwd)
        publish(PosixFileSystem(owner=os.geteuid()), run.submission_file, write_record(record))
    except (SlurmError, OSError):
        # The run can do without.
        pass

"""What `ftslurm restart` does with a run, and why it refuses (pure).

A run starts again as a new job, with the same script and options and the run's name in its comment
(`ftslurm.slurm.resubmission`). Not by `scontrol requeue` of the ended job, which its owner may do while slurmctld still
has it (22.05): it is refused after --no-requeue, pends for two minutes, truncates the output unless that is opened for
appending, and is not possible any more a few minutes later.
"""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.runs.overview import OUTCOMES, Overview
from ftslurm.slurm.queue import PENDING, RUNNING, QueuedJob
from ftslurm.text import safe

GOES_ON = ("running", "forming", "hanging", "ending")
COMPLETING = "COMPLETING"


def may_start_again(run: Overview) -> bool:
    """Return whether a run has work left and does not go on, as far as its own records say."""
    return run.state not in ("succeeded", "unknown", *GOES_ON)


def is_just_ending(run: Overview, job: QueuedJob) -> bool:
    """Return whether a run has ended, and its job is about to: ftsrun prints the report, Slurm ends the processes."""
    return run.state in (*OUTCOMES, "ended") and job.state in (RUNNING, COMPLETING)


def refusal(run: Overview, job: QueuedJob | None) -> str | None:
    """Return why a run is not started again; None: it may be."""
    name = safe(run.run)
    if job is not None and job.state == PENDING:
        why = f" ({safe(job.reason)})" if job.reason else ""
        held = f"; release it: scontrol release {job.job_id}" if job.reason and "held" in job.reason.lower() else ""
        return f"{name} starts again anyway: its job {job.job_id} is pending{why}{held}"
    if job is not None:
        if job.state == COMPLETING:
            advice = "try again when it has ended"
        elif is_just_ending(run, job):
            advice = f"the run has ended, the batch script goes on: wait for its end, or scancel {job.job_id}"
        else:
            advice = f"stop it first: ftslurm stop {name}"
        return f"{name} has a job: {job.job_id} is {safe(job.state.lower())}; {advice}"
    if run.state == "unknown":
        return f"{name} cannot be judged: {safe(run.why or 'it has no state')}"
    if run.job is None:
        again = f"ftslurm run --rdzv-id {name} ..."
        return f"{name} was started without Slurm; start it again in the same way, by its name: {again}"
    if run.state in GOES_ON:
        # Its job is not in the queue: Slurm lost it a moment ago, or the queue is another cluster's.
        return (
            f"{name} is {run.state}: its agents wrote a moment ago, but Slurm has no job of it; try again in a minute"
        )
    return None


def exclude_option(options: Iterable[str], nodes: Iterable[str]) -> tuple[str, ...]:
    """Return sbatch's option that excludes nodes in addition to those that the options exclude."""
    before = [option.partition("=")[2] for option in options if option.startswith("--exclude=")]
    wanted = [*before, *nodes]
    return (f"--exclude={','.join(wanted)}",) if nodes else ()

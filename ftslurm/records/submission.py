"""The batch script of a run as it was submitted: ``submission.json``, so that the run can be started again later."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class Submission:
    """The newest job's script; slurmctld forgets it some minutes after the job's end.

    Attributes:
        job_id: of that job, a number.
        time_ns: when it was recorded, by the batch host's clock.
        script: its text.
        options: of sbatch, for a job like it.
        arguments: of the script.
        cwd: where it was submitted.
    """

    job_id: str
    time_ns: int
    script: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    cwd: str | None = None

    SCHEMA, VERSION = "ftslurm/submission", 1

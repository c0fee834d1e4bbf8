"""How a run was submitted: its batch script, to start it again (``submission.json``), its chain (``chain.json``)."""

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


@dataclass(frozen=True)
class Chain:
    """A run whose jobs were submitted by `ftslurm chain`; written by the first job's ftsrun.

    Attributes:
        job_name: common to the jobs, and theirs alone: Slurm runs one of them at a time (singleton).
    """

    run_id: str
    job_name: str

    SCHEMA, VERSION = "ftslurm/chain", 1

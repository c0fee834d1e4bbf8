"""The record of a chain of jobs in its run directory: ``chain.json``, written by the first job's ftsrun."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class Chain:
    """A run whose jobs were submitted by `ftslurm chain`.

    Attributes:
        job_name: common to the jobs, and theirs alone: Slurm runs one of them at a time (singleton).
    """

    run_id: str
    job_name: str

    SCHEMA, VERSION = "ftslurm/chain", 1

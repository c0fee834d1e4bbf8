"""Submission of a job by sbatch: its environment and options, and the comment by which the job names its run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ftslurm.slurm.errors import SlurmOutputError
from ftslurm.slurm.run_command import TIMEOUT_S, Runner, failure, run_command

CHAIN_MARK = "ftslurm-chain"
"""In the comment of each job of a chain (`ftslurm chain`)."""
_RUN = re.compile(r"(?:^|\s)ftslurm-run=([A-Za-z0-9._+=@-]{1,128})(?=\s|$)")


def run_of_comment(comment: str | None) -> str | None:
    """Return the run that a job continues, according to its comment; None: one of its own."""
    found = _RUN.search(comment or "")
    return found[1] if found else None


def comment_of_run(comment: str | None, run_id: str) -> str:
    """Return a job's comment with its run."""
    return " ".join([*_RUN.sub(" ", comment or "").split(), f"ftslurm-run={run_id}"])


def is_chained(comment: str | None) -> bool:
    """Return whether a job belongs to a chain, according to its comment."""
    return CHAIN_MARK in (comment or "").split()


def submit(words: Sequence[str], env: Mapping[str, str], run: Runner = run_command) -> str:
    """Submit a job; return its id.

    Args:
        words: sbatch's options, the script's path and its arguments.
        env: of sbatch, and thereby of the job: see `submit_environment`.
        run: runs a command (replaced in tests).

    Raises:
        SlurmError: Slurm did not answer, or refused.
    """
    command = ("sbatch", "--parsable", *words)
    answer = run(command, env, TIMEOUT_S)
    if answer.status != 0:
        raise failure(command, answer)
    job_id = answer.stdout.strip().partition(";")[0]
    if not job_id.isdecimal():
        raise SlurmOutputError(f"cannot read what `sbatch --parsable` printed: {job_id!a:.80}")
    return job_id


def submit_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for sbatch inside a job: without that job's variables, which the new one would inherit."""
    # FTSLURM_SUPERVISOR marks the leftovers of a dead guardian: the new job must not have an agent's.
    ours = ("FTSLURM__", "FTSLURM_RDZV_ID", "FTSLURM_KILL_WAIT", "FTSLURM_SUPERVISOR", "FTSLURM_HEALTH_BUSY")
    return {
        name: value
        for name, value in env.items()
        if (not name.startswith(("SLURM_", "SLURMD_")) or name == "SLURM_CONF") and not name.startswith(ours)
    }


def requeue_option(env: Mapping[str, str], run: Runner = run_command) -> str:
    """Return sbatch's option for a job that may be requeued: at once where this Slurm can do that (25.05)."""
    answer = run(("sbatch", "--help"), env, TIMEOUT_S)
    return "--requeue=expedite" if "expedite" in answer.stdout else "--requeue"

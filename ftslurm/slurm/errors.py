"""Errors of Slurm's commands."""

from __future__ import annotations

__all__ = [
    "SlurmCommandMissing",
    "SlurmError",
    "SlurmOutputError",
    "SlurmRefused",
    "SlurmTimeout",
    "SlurmUnknownJob",
    "SlurmUnreachable",
]


class SlurmError(Exception):
    """Slurm gave no usable answer; the text is one line: the command, the error and the remedy."""


class SlurmCommandMissing(SlurmError):
    """scontrol or sacct is missing or cannot be started, as inside most containers."""


class SlurmTimeout(SlurmError):
    """The command did not end in time and was killed; whether Slurm executed it is unknown."""


class SlurmUnreachable(SlurmError):
    """slurmctld or slurmdbd does not answer, or the command found no configuration."""


class SlurmRefused(SlurmError):
    """Slurm refused the operation: no permission, or not possible in this state."""


class SlurmUnknownJob(SlurmRefused):
    """Slurm has no record of the job, or no longer."""


class SlurmOutputError(SlurmError):
    """The command succeeded, but its output has an unexpected format."""

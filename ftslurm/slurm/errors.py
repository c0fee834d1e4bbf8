"""What can go wrong between ftslurm and Slurm's commands."""

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
    """Slurm gave no usable answer; the text is one line: which command, what was wrong, what to do."""


class SlurmCommandMissing(SlurmError):
    """scontrol or sacct is not there or cannot be started, as inside most containers."""


class SlurmTimeout(SlurmError):
    """The command did not end in time and was killed; whether Slurm did what was asked is not known."""


class SlurmUnreachable(SlurmError):
    """slurmctld or slurmdbd does not answer, or the command found no configuration."""


class SlurmRefused(SlurmError):
    """Slurm understood and said no: no permission, not possible in this state."""


class SlurmUnknownJob(SlurmRefused):
    """Slurm knows no such job (any more)."""


class SlurmOutputError(SlurmError):
    """The command succeeded, but what it printed is not what it prints."""

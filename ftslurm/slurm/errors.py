"""Errors of Slurm's commands."""

from __future__ import annotations

from ftslurm.text import one_line

SHORT = 100


class SlurmError(Exception):
    """Slurm gave no usable answer; the text is one line: the command, the error and the remedy.

    Args:
        text: that line.
        short: the command and the error alone; default: the text.
    """

    def __init__(self, text: str, short: str | None = None) -> None:
        super().__init__(text)
        self.short = short or text


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


def in_short(error: Exception) -> str:
    """Return ``Slurm is not reachable (squeue: ...)``, for lines beside others that need no Slurm (pure)."""
    silent = isinstance(error, SlurmUnreachable | SlurmTimeout | SlurmCommandMissing)
    what = "is not reachable" if silent else "gives no usable answer"
    return f"Slurm {what} ({one_line(error.short if isinstance(error, SlurmError) else str(error), SHORT)})"

"""Drain a node in Slurm, within a bounded time; errors are returned, never raised."""

from __future__ import annotations

from ftslurm.slurm.control import CommandSlurm, SlurmControl
from ftslurm.slurm.errors import SlurmError

LIMIT_S = 10.0
"""Time-out of each of the two commands, in seconds."""


def drain(node: str, reason: str, slurm: SlurmControl | None = None) -> str | None:
    """Drain a node; one that is already drained or down keeps its state and reason.

    Args:
        node: its name in Slurm.
        reason: for administrators, one line.
        slurm: default: Slurm's commands, with this process's environment.

    Returns:
        None: it is drained. Otherwise why it is not, one line.
    """
    try:
        (slurm or CommandSlurm(timeout_s=LIMIT_S)).drain(node, reason)
    except (SlurmError, ValueError) as error:
        return str(error)
    return None

"""Ask Slurm to drain a node, within a bounded time, and say what came of it; never fatal."""

from __future__ import annotations

from ftslurm.slurm.control import CommandSlurm, SlurmControl
from ftslurm.slurm.errors import SlurmError

LIMIT_S = 10.0
"""Seconds that each of the two commands may take."""


def drain(node: str, reason: str, slurm: SlurmControl | None = None) -> str | None:
    """Drain a node; one that is drained or down already stays as it is, with its reason.

    Args:
        node: Slurm's name of it.
        reason: for administrators, one line.
        slurm: whom to ask; default: Slurm's own commands, with this process's environment.

    Returns:
        None: it is drained, now or before. Otherwise why it is not, one line.
    """
    try:
        (slurm or CommandSlurm(timeout_s=LIMIT_S)).drain(node, reason)
    except (SlurmError, ValueError) as error:
        return str(error)
    return None

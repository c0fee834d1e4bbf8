"""One query or change in Slurm within a bounded time, for commands that go on without it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl
    from ftslurm.slurm.facts import JobFacts

LIMIT_S = 10.0
"""Time-out of each of Slurm's commands, in seconds."""


def job_facts(job_id: str) -> JobFacts | None:
    """Return Slurm's data on a job; None if Slurm has no such job, or does not answer within `LIMIT_S` seconds."""
    # Imported on demand: most commands locate their run without Slurm.
    from ftslurm.slurm.commands import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    try:
        return CommandSlurm(timeout_s=LIMIT_S).job(job_id)
    except (SlurmError, ValueError):
        return None


def drain(node: str, reason: str, slurm: SlurmControl | None = None) -> str | None:
    """Drain a node; one that is already drained or down keeps its state and reason.

    Args:
        node: its name in Slurm.
        reason: for administrators, one line.
        slurm: default: Slurm's commands, with this process's environment.

    Returns:
        None: it is drained. Otherwise why it is not, one line.
    """
    from ftslurm.slurm.commands import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    try:
        (slurm or CommandSlurm(timeout_s=LIMIT_S)).drain(node, reason)
    except (SlurmError, ValueError) as error:
        return str(error)
    return None

"""Fault-tolerant multi-node PyTorch on Slurm: keeps the job alive and explains the failure."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.monitor.progress import progress as progress


def __getattr__(name: str) -> object:
    """Load ``progress`` when it is first asked for, so that ``import ftslurm`` costs nothing (PEP 562)."""
    if name == "progress":
        from ftslurm.monitor.progress import progress

        globals()[name] = progress
        return progress
    raise AttributeError(f"module 'ftslurm' has no attribute {name!r}")

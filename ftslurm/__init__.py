"""Fault-tolerant multi-node PyTorch on Slurm: keeps the job alive and explains the failure."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.fence import RoundIsOver as RoundIsOver
    from ftslurm.fence import commit as commit
    from ftslurm.fence import fence as fence
    from ftslurm.monitor.progress import progress as progress

_HOMES = {
    "RoundIsOver": "ftslurm.fence",
    "commit": "ftslurm.fence",
    "fence": "ftslurm.fence",
    "progress": "ftslurm.monitor.progress",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for, so that ``import ftslurm`` costs nothing (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ftslurm' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value

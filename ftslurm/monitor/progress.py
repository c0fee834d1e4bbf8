"""The steps that a rank has reported, read from its mark (see `mark`); who reports them is `client.progress`.

Read also while an interpreter goes down after a failure, so it imports no more than it must.
"""

from __future__ import annotations

import os

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.heartbeat_page import Progress

__all__ = ["Progress", "read"]


def read(directory: str | os.PathLike[str]) -> Progress | None:
    """What the mark in ``directory`` says; None for no mark, no step yet, not a mark, not readable."""
    found = heartbeat_page.read(directory)
    return found.progress if found is not None else None

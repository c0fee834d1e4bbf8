"""The steps that a rank has reported, read from its mark (see `mark`); who reports them is `client.progress`.

Read also while an interpreter goes down after a failure, so it imports no more than it must.
"""

from __future__ import annotations

import os

from ftslurm.monitor import mark
from ftslurm.monitor.mark import Progress

__all__ = ["Progress", "read"]


def read(directory: str | os.PathLike[str]) -> Progress | None:
    """What the mark in ``directory`` says; None for no mark, no step yet, not a mark, not readable."""
    found = mark.read(directory)
    return found.progress if found is not None else None

"""The training steps that a rank has reported by `client.progress`, read from its heartbeat page.

Also used while an interpreter shuts down after a failure, so it imports as little as possible.
"""

from __future__ import annotations

import os

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.heartbeat_page import Progress

__all__ = ["Progress", "read"]


def read(directory: str | os.PathLike[str]) -> Progress | None:
    """Return the progress in ``directory``; None if the page is missing, invalid or unreadable, or without a step."""
    found = heartbeat_page.read(directory)
    return found.progress if found is not None else None

"""The exhausted memory behind the kernel's kill of a process: that of a cgroup limit, or the host's (pure)."""

from __future__ import annotations

LIMIT, HOST = "limit", "host"
LOW = 0.02  # of the host's memory: with no more than this available, it is exhausted


def ran_out(at_limit: bool | None, total: int | None, least_available: int | None) -> str | None:
    """Return LIMIT, HOST, or None if unknown.

    Args:
        at_limit: whether a cgroup of the process was at its limit when processes were killed; None: unknown.
        total: the host's memory, bytes.
        least_available: the minimum of available memory in the seconds before, bytes (MemAvailable, proc(5)).
    """
    if at_limit:
        return LIMIT
    return HOST if total and least_available is not None and least_available <= LOW * total else None

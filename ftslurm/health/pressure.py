"""Pressure: whether the whole node stalled for memory or storage, so that a time-out is no evidence about a device.

Source: the kernel's Documentation/accounting/psi.rst; "full": no process made progress. A kernel without pressure
information (RHEL's, unless started with `psi=1`) counts as one without pressure.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.2
"""Of the time of the checks; a node in normal use stalls for less than a hundredth."""
KINDS = {"memory": "memory", "io": "storage"}
"""Not "cpu": the time that each process waited for a CPU is known exactly (`device_time`)."""


def stalled_s(root: str = "") -> dict[str, float]:
    """Return the seconds for which the node has stalled since it booted, by kind."""
    found: dict[str, float] = {}
    for kind in KINDS:
        try:
            with open(f"{root}/proc/pressure/{kind}") as file:
                lines = [line.split() for line in file]
            totals = [word for words in lines if words[:1] == ["full"] for word in words if word.startswith("total=")]
            found[kind] = int(totals[0].removeprefix("total=")) / 1e6
        except (OSError, ValueError, IndexError):
            continue
    return found


def stalled_for(before: Mapping[str, float], after: Mapping[str, float], passed_s: float) -> str | None:
    """Return as text the node's stall between two readings `passed_s` seconds apart; None: it did not stall."""
    for kind, words in KINDS.items():
        stalled = after.get(kind, 0.0) - before.get(kind, 0.0)
        if passed_s > 0 and stalled / passed_s >= SHARE:
            return f"the node stalled for {words} {stalled / passed_s:.0%} of the time"
    return None

"""Whether the whole node stands still for want of memory or storage, so that its lateness says nothing of a device.

Source: the kernel's Documentation/accounting/psi.rst; "full": no process could go on. Where the kernel has no pressure
information (RHEL before `psi=1`), nothing is known, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.2
"""Of the time that a look waited; a node that works stands still for less than a hundredth."""
KINDS = ("memory", "io")
"""Not "cpu": of that the kernel says more precisely, of each process, how long it waited (`device_time`)."""


def stalled_s(root: str = "") -> dict[str, float]:
    """Return for how long the node has stood still since it booted, in seconds, by what it waited for."""
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


def standstill(before: Mapping[str, float], after: Mapping[str, float], passed_s: float) -> str | None:
    """Return what the node stood still for during `passed_s` seconds, in words; None: it did not."""
    for kind, words in (("memory", "memory"), ("io", "storage")):
        stalled = after.get(kind, 0.0) - before.get(kind, 0.0)
        if passed_s > 0 and stalled / passed_s >= SHARE:
            return f"the node stood still for {words} {stalled / passed_s:.0%} of the time"
    return None

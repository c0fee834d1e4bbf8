"""Print the newest state of things again and again, until the run has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

INTERVAL_S = 2.0
# A large run takes a while to read: most of the time must be left to those who write there.
SHARE = 0.1
OVER = ("succeeded", "failed", "stopped")
_MOVING = ("made_ns", "alive", "duration_s", "summary", "accounting")

Report = dict[str, Any]


def follow(
    make: Callable[[], Report],
    show: Callable[[Report], bool],
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    interval_s: float = INTERVAL_S,
) -> Report:
    """Make reports until one says that the run has ended; return that one.

    Args:
        make: reads and judges the run.
        show: prints a report; called for the first one and whenever something but time has changed. False: nobody
            reads any more.
        sleep: waits so many seconds.
        clock: monotonic seconds.
        interval_s: the least time between two reads; more where reading takes long.
    """
    seen: Report | None = None
    while True:
        before = clock()
        report = make()
        took = clock() - before
        now = essence(report)
        if now != seen and not show(report):
            return report
        seen = now
        if report["status"] in OVER:
            return report
        sleep(max(interval_s, took * (1 - SHARE) / SHARE))


def essence(report: Report) -> Report:
    """Return a report without what changes only because time goes on."""
    rounds = [{k: v for k, v in entry.items() if k not in _MOVING} for entry in report["rounds"]]
    return {**{k: v for k, v in report.items() if k not in _MOVING}, "rounds": rounds}


__all__ = ["essence", "follow"]

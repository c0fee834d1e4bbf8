"""Print an updated report at each change, until the run has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

INTERVAL_S = 2.0
# Reading a large run takes a while: the agents need most of the filesystem's capacity.
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
    """Make reports until the run has ended; return the last one.

    Args:
        make: reads and analyses the run.
        show: prints a report; called for the first one and for each with a change other than of time. False: the
            output is closed.
        sleep: waits for a number of seconds.
        clock: monotonic seconds.
        interval_s: the least time between two reads; longer where reading takes long.
    """
    previous: Report | None = None
    while True:
        before = clock()
        report = make()
        took = clock() - before
        now = essence(report)
        if now != previous and not show(report):
            return report
        previous = now
        if report["status"] in OVER:
            return report
        sleep(max(interval_s, took * (1 - SHARE) / SHARE))


def essence(report: Report) -> Report:
    """Return a report without the values that change with time alone."""
    rounds = [{k: v for k, v in entry.items() if k not in _MOVING} for entry in report["rounds"]]
    return {**{k: v for k, v in report.items() if k not in _MOVING}, "rounds": rounds}


__all__ = ["essence", "follow"]

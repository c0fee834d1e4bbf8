"""The worker of all launchers' benchmarks: says in one shared file when it starts, fails and ends; no torch.

    worker.py EVENTS restart     the last rank fails once, all run once more, then end well
    worker.py EVENTS hold        all stay until the file EVENTS.stop is there

A line of EVENTS: monotonic nanoseconds, what happened, rank, process id. The monotonic clock is the
machine's, so the lines of all processes compare.
"""

from __future__ import annotations

import os
import sys
import time

FIRST_LINE_NS = time.monotonic_ns()
SETTLE_S = 0.4  # the launcher gets into its steady state; also spreads the failure over its poll's phases
PATIENCE_S = 60.0
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def note(events: str, what: str, time_ns: int) -> None:
    """Append one line with one write, so that lines of several ranks never mix."""
    descriptor = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{time_ns} {what} {RANK} {os.getpid()}\n".encode())
    os.close(descriptor)


def seen(events: str) -> list[str]:
    """Return what has happened so far, without the details, oldest first."""
    if not os.path.exists(events):
        return []
    with open(events, encoding="ascii") as file:
        return [line.split()[1] for line in file]


def wait_until_all_started(events: str, after: int) -> None:
    """Wait for every rank's line that follows the first ``after`` lines."""
    deadline = time.monotonic() + PATIENCE_S
    while seen(events)[after:].count("start") < WORLD_SIZE:
        if time.monotonic() > deadline:
            sys.exit(f"rank {RANK} waited {PATIENCE_S:.0f} s in vain for the other ranks to start")
        time.sleep(0.01)
    time.sleep(SETTLE_S)


def fail_once(events: str) -> None:
    """Play one rank's part in a job that fails once."""
    before = seen(events)
    note(events, "start", FIRST_LINE_NS)
    if "fail" in before:
        wait_until_all_started(events, before.index("fail"))
        note(events, "done", time.monotonic_ns())
    elif RANK == WORLD_SIZE - 1:
        wait_until_all_started(events, 0)
        note(events, "fail", time.monotonic_ns())
        sys.exit(1)
    else:
        time.sleep(PATIENCE_S)


def hold(events: str) -> None:
    """Stay until the file that ends it is there."""
    note(events, "start", FIRST_LINE_NS)
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(events + ".stop") and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    {"restart": fail_once, "hold": hold}[sys.argv[2]](sys.argv[1])

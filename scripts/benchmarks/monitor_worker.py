"""A rank that ftslurm watches, for ``bench monitor``: says in one shared file what it does and what happens to it.

    monitor_worker.py EVENTS calls          measures the calls; the ``what`` of a line is NAME=SECONDS
    monitor_worker.py EVENTS hang PHASE     beats once, after PHASE seconds, and waits for the time-out
    monitor_worker.py EVENTS crowd          all ranks sleep; once all do so, one of them hangs
    monitor_worker.py EVENTS beat           beats 100 times a second until the file EVENTS.stop is there
    monitor_worker.py EVENTS idle           sleeps so long

A line of EVENTS: monotonic nanoseconds, what happened, rank, process id.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import ftslurm

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT_S = 1.0
CALLS, REPEATS = 20_000, 7
PATIENCE_S = 60.0
LOOK_S = 0.0005  # between looks for the stacks; on average half of it is measured too


def note(what: str, time_ns: int) -> None:
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{time_ns} {what} {RANK} {os.getpid()}\n".encode())
    os.close(descriptor)


def best(call: Callable[[], None]) -> float:
    """Return the seconds that one call takes, in the fastest of some series: what disturbs only adds."""
    call()
    series = []
    for _ in range(REPEATS):
        began_ns = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        series.append((time.perf_counter_ns() - began_ns) / CALLS / 1e9)
    return min(series)


def one_section() -> None:
    with ftslurm.section("step"):
        pass


def calls() -> None:
    note(f"heartbeat={best(ftslurm.heartbeat)!r}", time.monotonic_ns())
    note(f"section={best(one_section)!r}", time.monotonic_ns())


def hang() -> None:
    """Note when the time-out passed, when the dump signal's handler wrote, and when SIGTERM came."""
    signal.signal(signal.SIGTERM, terminated)
    ftslurm.set_timeouts(heartbeat=TIMEOUT_S)
    stacks = os.path.join(os.environ["FTSLURM_RECORD_DIR"], "hang.txt")
    time.sleep(float(sys.argv[3]))
    ftslurm.heartbeat()
    note("deadline", time.monotonic_ns() + int(TIMEOUT_S * 1e9))
    while not os.stat(stacks).st_size:
        time.sleep(LOOK_S)
    note("signalled", time.monotonic_ns())
    time.sleep(PATIENCE_S)


def terminated(*_: object) -> None:
    note("terminated", time.monotonic_ns())
    sys.exit(1)


def crowd() -> None:
    note("start", time.monotonic_ns())
    if RANK == WORLD_SIZE // 4 + 1:  # on the second of the nodes
        ftslurm.set_timeouts(heartbeat=TIMEOUT_S)
        deadline = time.monotonic() + PATIENCE_S
        while count_lines() < WORLD_SIZE and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)
        ftslurm.heartbeat()
        note("deadline", time.monotonic_ns() + int(TIMEOUT_S * 1e9))
    time.sleep(PATIENCE_S)


def count_lines() -> int:
    with open(sys.argv[1], "rb") as file:
        return file.read().count(b"\n")


def wait_for_the_end(beats: bool) -> None:
    note("start", time.monotonic_ns())
    while not os.path.exists(sys.argv[1] + ".stop"):
        for _ in range(100):
            if beats:
                ftslurm.heartbeat()
            time.sleep(0.01)


def main() -> None:
    mode = sys.argv[2]
    if mode in ("beat", "idle"):
        wait_for_the_end(mode == "beat")
    else:
        {"calls": calls, "hang": hang, "crowd": crowd}[mode]()


if __name__ == "__main__":
    main()

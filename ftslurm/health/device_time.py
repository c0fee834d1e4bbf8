"""The time that a process spent waiting for something else than a CPU: what a time-out for a device may count.

A process that gets no CPU, on a node with a load of 40 or in a cgroup limited to a twentieth of a core, is as late as
one whose driver hangs. The kernel tells them apart: one waits in a run queue, the other sleeps in the driver.

Sources: the kernel's Documentation/scheduler/sched-stats.rst (schedstat), proc_pid_stat(5) (state).
"""

from __future__ import annotations

import time

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class Scheduling:
    """What the kernel's scheduler says of one process; times in seconds since it began.

    Attributes:
        state: "R" runs or waits for a CPU, "S" and "D" sleep, "T" is stopped, "Z" has ended.
        ran_s: on a CPU.
        queued_s: waited for a CPU, up to the last time that it got one; None: this kernel does not say.
    """

    state: str
    ran_s: float
    queued_s: float | None


@dataclass(frozen=True)
class Reading:
    """One reading of a process's clocks.

    Attributes:
        attentive_s: the reader's own time without what it missed itself, see `rendezvous.liveness.Attention`.
        scheduling: None: the process is gone.
    """

    attentive_s: float
    scheduling: Scheduling | None


def waited_s(began: Reading, now: Reading) -> float:
    """Return for how long the process has waited for something else than a CPU, or has computed.

    One that is in the run queue or stopped has nothing to wait for: only what it ran counts until it sleeps.
    """
    passed_s = now.attentive_s - began.attentive_s
    then, here = began.scheduling, now.scheduling
    if then is None or here is None:
        return passed_s
    if here.state in "RTt":
        return min(passed_s, here.ran_s - then.ran_s)
    if here.queued_s is None or then.queued_s is None:
        return passed_s
    return passed_s - (here.queued_s - then.queued_s)


def own_clock() -> float:
    """Return monotonic seconds without those in which this thread has waited for a CPU: a clock for what it calls."""
    now_s = time.monotonic()
    return now_s - (_schedstat("/proc/thread-self") or (0.0, 0.0))[1]


def scheduling(pid: int, proc: str = "/proc") -> Scheduling | None:
    """Read what the scheduler says of a process's first thread; None: it is gone, or may not be read."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            line = file.read()
        # The command's name is in parentheses and may hold anything.
        state = line[line.rindex(b")") + 2 :].split(None, 1)[0].decode()
    except (OSError, ValueError, IndexError):
        return None
    ran_s, queued_s = _schedstat(f"{proc}/{pid}") or (0.0, None)
    return Scheduling(state, ran_s, queued_s)


def _schedstat(directory: str) -> tuple[float, float] | None:
    """Return for how long it ran and was queued, in seconds; None on a kernel without CONFIG_SCHED_INFO."""
    try:
        with open(f"{directory}/schedstat", "rb") as file:
            ran, queued, _ = file.read().split()
        return int(ran) / 1e9, int(queued) / 1e9
    except (OSError, ValueError):
        return None

"""Device time: the time in which a process waited for something else than a CPU, which alone counts for a time-out.

A process that gets no CPU, on a node with a load of 40 or in a cgroup limited to a twentieth of a core, is as late as
one whose driver hangs. The kernel's accounting distinguishes them: one waits in a run queue, the other sleeps in the
driver.

While the whole node stalls for memory or storage, by the kernel's pressure information, a time-out is no evidence about
a device either. A kernel without that information (RHEL's, unless started with `psi=1`) counts as one without pressure.

Sources: the kernel's Documentation/scheduler/sched-stats.rst (schedstat), proc_pid_stat(5) (state), the kernel's
Documentation/accounting/psi.rst ("full": no process made progress).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.kernel import schedstat

STALL_SHARE = 0.2
"""Of the time of the checks; a node in normal use stalls for less than a hundredth."""
STALLS = {"memory": "memory", "io": "storage"}
"""Not "cpu": the time that each process waited for a CPU is known exactly."""


@dataclass(frozen=True)
class Scheduling:
    """The kernel's accounting of one process; times in seconds since the process began.

    Attributes:
        state: "R": it runs or waits for a CPU; "S" and "D": it sleeps; "T": it is stopped; "Z": it has ended.
        ran_s: time on a CPU.
        queued_s: time in a run queue, up to the last time that it got a CPU; None: this kernel does not account it.
    """

    state: str
    ran_s: float
    queued_s: float | None


@dataclass(frozen=True)
class Reading:
    """A sample of the time and of one process's accounting.

    Attributes:
        attentive_s: the observer's time without the intervals in which it did not run itself, see
            `rendezvous.liveness.ObservedTime`.
        scheduling: None: the process is gone.
    """

    attentive_s: float
    scheduling: Scheduling | None


def waited_s(began: Reading, now: Reading) -> float:
    """Return the seconds between two samples in which the process slept or computed, but did not wait for a CPU.

    While it is in a run queue, or stopped, its accounting is not up to date: then only its time on a CPU counts.
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
    """Return monotonic seconds without the time in which this thread waited for a CPU."""
    now_s = time.monotonic()
    return now_s - (schedstat("/proc/thread-self") or (0.0, 0.0))[1]


def scheduling(pid: int, proc: str = "/proc") -> Scheduling | None:
    """Read the accounting of a process's first thread; None: the process is gone, or may not be read."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            line = file.read()
        # The command's name is in parentheses and may hold anything.
        state = line[line.rindex(b")") + 2 :].split(None, 1)[0].decode()
    except (OSError, ValueError, IndexError):
        return None
    ran_s, queued_s = schedstat(f"{proc}/{pid}") or (0.0, None)
    return Scheduling(state, ran_s, queued_s)


def stalled_s(root: str = "") -> dict[str, float]:
    """Return the seconds for which the node has stalled since it booted, by kind."""
    found: dict[str, float] = {}
    for kind in STALLS:
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
    for kind, words in STALLS.items():
        stalled = after.get(kind, 0.0) - before.get(kind, 0.0)
        if passed_s > 0 and stalled / passed_s >= STALL_SHARE:
            return f"the node stalled for {words} {stalled / passed_s:.0%} of the time"
    return None

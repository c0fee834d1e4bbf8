"""The faults of the simulation: weights and effects."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.testing.memoryfs import AFTER, BEFORE, DURING, Crash, Operation
from simulation.agent import VirtualAgent
from simulation.host import NEVER, VirtualWorker

SMALL_S = 2.0
"""Limit of a slow call, in seconds: a longer one may make a node lost."""

DAY_NS = 86_400 * 10**9

WRITES = ("create", "link", "rename", "unlink", "makedirs")
"""The calls that a full or read-only filesystem refuses; others succeed."""


@dataclass(frozen=True)
class Outage:
    """A time in which the filesystem refuses calls instead of hanging.

    Attributes:
        until: true time of its end, seconds.
        number: the error.
        calls: which calls it refuses; empty: all of them.
    """

    until: float
    number: int
    calls: tuple[str, ...]

    def refuses(self, now: float, operation: Operation) -> bool:
        """Return whether that call fails at `now`."""
        return now < self.until and (not self.calls or operation.name in self.calls)


@dataclass
class Armed:
    """A fault that waits for one of an agent's filesystem calls.

    Attributes:
        kind: for the count.
        calls: the affected calls, empty for all.
        when: before, during or after the call.
        skip: number of such calls before the affected one.
        strike: its effect; exceptions propagate to the caller.
        waits: whether it makes the call block.
    """

    kind: str
    calls: tuple[str, ...]
    when: str
    skip: int
    strike: Callable[[VirtualAgent, Operation], None]
    waits: bool = False


def pick_armed(armed: Sequence[Armed], when: str, operation: Operation) -> Armed | None:
    """Return the fault that affects this call, None without one."""
    for fault in armed:
        if fault.when == when and (not fault.calls or operation.name in fault.calls):
            if fault.skip == 0:
                return fault
            fault.skip -= 1
    return None


def lost_reply(rng: random.Random, name: str) -> Armed:
    """Execute the call and report an error, as a repeated request whose first reply was lost."""
    repeated = {"link": errno.EEXIST, "create": errno.EEXIST, "rename": errno.ENOENT, "unlink": errno.ENOENT}
    number = rng.choice([repeated[name], errno.EIO, errno.ETIMEDOUT])
    return Armed(f"lost reply: {name}", (name,), AFTER, 0, lambda _, operation: fail(number, operation))


def refusal(rng: random.Random) -> Armed:
    """Refuse a call."""
    number = rng.choice([errno.EIO, errno.ENOSPC, errno.ETIMEDOUT, errno.EDQUOT])
    calls = () if number in (errno.EIO, errno.ETIMEDOUT) else ("create",)
    when = rng.choice([BEFORE, DURING]) if calls else BEFORE
    return Armed("call refused", calls, when, rng.randrange(12), lambda _, operation: fail(number, operation))


def outage(rng: random.Random, now: float) -> Outage:
    """Return an outage: the filesystem is full or read-only for some time, or missing (renamed, unmounted)."""
    until = now + rng.choice([rng.uniform(1.0, 6.0), rng.uniform(6.0, 40.0)])
    if rng.random() < 0.2:
        return Outage(until, errno.ENOENT, ())
    number = rng.choice([errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
    return Outage(until, number, ("create",) if number in (errno.ENOSPC, errno.EDQUOT) else WRITES)


def stale_handle(rng: random.Random) -> Armed:
    """Let a read fail because the file was renamed over meanwhile."""
    number = rng.choice([errno.ESTALE, errno.ENOENT])

    def strike(_: VirtualAgent, operation: Operation) -> None:
        # A generation is never replaced, so its readers never get this error.
        if number == errno.ESTALE or not operation.path.endswith(".json") or "/nodes/" in operation.path:
            fail(number, operation)

    kind = "reader meets ESTALE" if number == errno.ESTALE else "reader meets ENOENT"
    return Armed(kind, ("read",), BEFORE, rng.randrange(8), strike)


def slow_call(rng: random.Random) -> Armed:
    """Let one call take up to `SMALL_S`."""
    seconds = rng.uniform(0.01, SMALL_S)
    return waiting(rng, "slow call", lambda agent, _: agent.wait_until(agent.host.now() + seconds))


def waiting(rng: random.Random, kind: str, strike: Callable[[VirtualAgent, Operation], None]) -> Armed:
    """Arm a blocking fault at a random call."""
    return Armed(kind, (), rng.choice([BEFORE, AFTER]), rng.randrange(10), strike, waits=True)


def crash_at_call(rng: random.Random, kind: str, strike: Callable[[VirtualAgent, Operation], None]) -> Armed:
    """Arm a crash of the process at a random call, possibly with half a file written."""
    if rng.random() < 0.2:
        return Armed(kind, ("create",), DURING, 0, strike)
    return Armed(kind, (), rng.choice([BEFORE, AFTER]), rng.randrange(16), strike)


def fail(number: int, operation: Operation) -> None:
    """Raise the error for that call."""
    raise OSError(number, os.strerror(number), operation.path)


def die(agent: VirtualAgent, operation: Operation) -> None:
    """Crash the process at this call."""
    raise Crash


# Workers


def fault_worker(rng: random.Random, kind: str, agent: VirtualAgent, worker: VirtualWorker) -> None:
    """Apply a fault to a running worker."""
    if kind == "rank exits":
        agent.end_worker(worker, 0.0, 1, None)
    elif kind == "rank killed":
        agent.end_worker(worker, 0.0, -1, rng.choice(["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"]))
    elif kind == "rank hangs":
        agent.hang_worker(worker)
    elif kind == "rank ignores SIGTERM":
        worker.term_s = NEVER
    else:
        worker.term_s, worker.kill_s = NEVER, rng.uniform(5.0, 60.0)


STOP_SIGNALS = (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

WEIGHTS = {
    "lost reply: link": 8,
    "lost reply: rename": 6,
    "lost reply: create": 5,
    "lost reply: unlink": 4,
    "call refused": 8,
    "stale handle": 8,
    "slow call": 8,
    "slow node": 3,
    "node stalls": 4,
    "all stall": 4,
    "node refused": 3,
    "all refused": 4,
    "network cut": 3,
    "datagrams blocked": 3,
    "node pauses": 3,
    "agent frozen": 6,
    "agent killed": 5,
    "node dies": 4,
    "node returns": 10,
    "clock jumps": 4,
    "node unhealthy": 4,
    "rank exits": 5,
    "rank killed": 3,
    "rank hangs": 3,
    "rank ignores SIGTERM": 2,
    "rank survives SIGKILL for a while": 1,
    "rank requests no restart": 0.3,
    "rank cannot be started": 2,
    "agent stopped": 1,
    "job stopped": 0.5,
    "stop requested": 0.7,
    "rank asks for a stop": 0.7,
    "requeue": 1.5,
    "another job": 2,
    "other options": 2,
}
"""Relative frequency of each kind."""

"""The failures that a simulation can make, how often, and what each does when it strikes."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.testing.memoryfs import AFTER, BEFORE, DURING, Crash, Operation
from ftslurm.testing.simulation.agent import NEVER, VirtualAgent, VirtualWorker

SMALL_S = 2.0
"""A call that takes longer than this many seconds may cost a node its place."""

DAY_NS = 86_400 * 10**9

WRITES = ("create", "link", "rename", "unlink", "makedirs")
"""The calls that a full or read-only filesystem refuses; it still answers the others."""


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
        """Tell whether that call fails at `now`."""
        return now < self.until and (not self.calls or operation.name in self.calls)


@dataclass
class Armed:
    """A failure that waits for one of an agent's filesystem calls.

    Attributes:
        kind: for the count.
        calls: which calls it strikes, empty for all.
        when: before, during or after the call.
        skip: how many such calls it lets pass.
        strike: what it does; what it raises reaches the caller.
        waits: whether it makes the call take time.
    """

    kind: str
    calls: tuple[str, ...]
    when: str
    skip: int
    strike: Callable[[VirtualAgent, Operation], None]
    waits: bool = False


def pick_armed(armed: Sequence[Armed], when: str, operation: Operation) -> Armed | None:
    """Return the failure that strikes now, None when there is none."""
    for fault in armed:
        if fault.when == when and (not fault.calls or operation.name in fault.calls):
            if fault.skip == 0:
                return fault
            fault.skip -= 1
    return None


def lost_reply(rng: random.Random, name: str) -> Armed:
    """Do the call and report a failure, as a repeated request whose first reply was lost."""
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
    """Return a filesystem that is full or read-only for a while, or not there at all (renamed away, unmounted)."""
    until = now + rng.choice([rng.uniform(1.0, 6.0), rng.uniform(6.0, 40.0)])
    if rng.random() < 0.2:
        return Outage(until, errno.ENOENT, ())
    number = rng.choice([errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
    return Outage(until, number, ("create",) if number in (errno.ENOSPC, errno.EDQUOT) else WRITES)


def stale_handle(rng: random.Random) -> Armed:
    """Let a reader meet a file that was renamed over meanwhile."""
    number = rng.choice([errno.ESTALE, errno.ENOENT])

    def strike(_: VirtualAgent, operation: Operation) -> None:
        # A generation is never replaced, so its readers never meet this.
        if number == errno.ESTALE or not operation.path.endswith(".json") or "/nodes/" in operation.path:
            fail(number, operation)

    kind = "reader meets ESTALE" if number == errno.ESTALE else "reader meets ENOENT"
    return Armed(kind, ("read",), BEFORE, rng.randrange(8), strike)


def slow_call(rng: random.Random) -> Armed:
    """Let one call take up to `SMALL_S`."""
    seconds = rng.uniform(0.01, SMALL_S)
    return waiting(rng, "slow call", lambda agent, _: agent.wait_until(agent.host.now() + seconds))


def waiting(rng: random.Random, kind: str, strike: Callable[[VirtualAgent, Operation], None]) -> Armed:
    """Arm something that takes time at a random call."""
    return Armed(kind, (), rng.choice([BEFORE, AFTER]), rng.randrange(10), strike, waits=True)


def crash_at_call(rng: random.Random, kind: str, strike: Callable[[VirtualAgent, Operation], None]) -> Armed:
    """Arm the end of the process at a random call, perhaps with half a file written."""
    if rng.random() < 0.2:
        return Armed(kind, ("create",), DURING, 0, strike)
    return Armed(kind, (), rng.choice([BEFORE, AFTER]), rng.randrange(16), strike)


def fail(number: int, operation: Operation) -> None:
    """Raise that error of that call."""
    raise OSError(number, os.strerror(number), operation.path)


def die(agent: VirtualAgent, operation: Operation) -> None:
    """End the process at this call."""
    raise Crash


# Workers


def hurt_worker(rng: random.Random, kind: str, agent: VirtualAgent, worker: VirtualWorker) -> None:
    """Change the fate of a running worker."""
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
    "rank says: do not restart": 0.3,
    "rank cannot be started": 2,
    "told to stop": 1,
    "job told to stop": 0.5,
    "requeue": 1.5,
    "another job": 2,
    "other options": 2,
}
"""How often each kind is chosen."""

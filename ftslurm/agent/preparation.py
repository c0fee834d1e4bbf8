"""What comes before a round's workers are started here: their directories, and whether rank 0 can be reached.

Workers that cannot reach the master wait for it for half an hour and then say so in many words; a connection tried
ahead says it at once, and by the node's name. Nobody listens there yet: to be refused is to have reached the machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ftslurm.agent.actions import Assignment, Prepared
from ftslurm.rendezvous.state import Master

MAKE_AGAIN_S = 0.5
REACH = "network-reach"
"""The check that this counts as for `--health-skip`."""
REACH_S = 3.5
"""Two lost packets may be chance: the kernel sends the first one again after 1 s, and after 3 s."""
ASK_AGAIN_S = 6.0
"""A name server that is asked by all nodes at once may say for a moment that it cannot answer."""
PATIENCE_S = 20.0
"""For the name's resolution and the connection together. A resolver waits 5 s for the first name server and then asks
the next one, for each of its search domains: that is slow, but ranks would get there."""


@dataclass(frozen=True)
class Tried:
    """What came of the connection in that round: a problem, or None."""

    round: int
    problem: str | None


@dataclass
class _Awaited:
    assignment: Assignment
    since_s: float
    directories: bool = True
    reach: bool = True
    problem: str | None = None
    unreachable: str | None = None


class Preparation:
    """Prepares one round at a time.

    Args:
        make: has the directories made; its outcome is told to `made`.
        bring: brings a `Tried` to the loop, from a thread.
        monotonic: clock, seconds.
        patience_s: for so long directories that cannot be made are tried again: a full disk may be over in seconds.
        reach: tries to connect; returns a problem, or None. None: nobody tries.
        tell: is told that the master cannot be reached, and the round begins all the same; None: it does not.
    """

    def __init__(
        self,
        make: Callable[[Assignment], None],
        bring: Callable[[Tried], None],
        monotonic: Callable[[], float],
        patience_s: float,
        reach: Callable[[Master], str | None] | None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._make = make
        self._bring = bring
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._reach = reach
        self._tell = tell
        self._awaited: _Awaited | None = None
        self._reach_by: float | None = None
        self._make_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `on_time` wants to be called."""
        return min((at for at in (self._reach_by, self._make_at) if at is not None), default=None)

    def begin(self, assignment: Assignment) -> None:
        """Begin; what was begun before is dropped."""
        self.drop()
        now = self._monotonic()
        awaited = self._awaited = _Awaited(assignment, now)
        self._make(assignment)
        if assignment.group_rank == 0 or self._reach is None:
            awaited.reach = False
            return
        self._reach_by = now + PATIENCE_S
        threading.Thread(target=self._try, args=(assignment, self._reach), name="reach", daemon=True).start()

    def drop(self) -> None:
        """Give up what was begun."""
        self._awaited = self._reach_by = self._make_at = None

    def made(self, round_: int, result: object) -> Prepared | None:
        """Take the outcome of making the directories; return what came of it all when all is known."""
        awaited = self._awaited
        if awaited is None or awaited.assignment.round != round_:
            return None
        if isinstance(result, OSError) and self._monotonic() - awaited.since_s < self._patience_s:
            self._make_at = self._monotonic() + MAKE_AGAIN_S
            return None
        awaited.directories = False
        if isinstance(result, Exception):
            awaited.problem = f"cannot make the round's directories: {result}"
        return self._done(awaited)

    def reached(self, news: Tried) -> Prepared | None:
        """Take the outcome of the connection; return as `made` does."""
        awaited = self._awaited
        if awaited is None or awaited.assignment.round != news.round or not awaited.reach:
            return None
        awaited.reach = False
        self._reach_by = None
        if news.problem is not None and self._tell is not None:
            self._tell(news.problem)
        else:
            awaited.unreachable = news.problem
        return self._done(awaited)

    def on_time(self) -> Prepared | None:
        """Its deadline may have passed; return as `made` does."""
        awaited, now = self._awaited, self._monotonic()
        if awaited is None:
            return None
        if self._make_at is not None and now >= self._make_at:
            self._make_at = None
            self._make(awaited.assignment)
        if self._reach_by is None or now < self._reach_by:
            return None
        problem = f"{_name(awaited.assignment.master)}: no answer from the name server within {PATIENCE_S:.0f} s"
        return self.reached(Tried(awaited.assignment.round, problem))

    def _done(self, awaited: _Awaited) -> Prepared | None:
        """Return what is known when that is enough: one problem is."""
        problem = awaited.problem or awaited.unreachable
        if problem is None and (awaited.directories or awaited.reach):
            return None
        self.drop()
        return Prepared(awaited.assignment.round, problem, unreachable=awaited.problem is None and problem is not None)

    def _try(self, assignment: Assignment, reach: Callable[[Master], str | None]) -> None:
        try:
            problem = reach(assignment.master)
        except Exception:
            # What cannot be tried is no proof of anything.
            problem = None
        self._bring(Tried(assignment.round, problem))


def _name(master: Master) -> str:
    return f"the master of the round ({master.address}:{master.port}) cannot be reached from {os.uname().nodename}"


def reach_master(master: Master) -> str | None:
    """Try to connect to the round's master; return what is wrong, None if it can be reached."""
    from ftslurm.health.reach import SILENT, reach

    try:
        found = _addresses(master)
    except OSError as error:
        return f"{_name(master)}: its name does not resolve ({error.strerror or error})"
    # An address that is good on one link alone cannot be tried as a number.
    targets = [(address, master.port) for address in found if "%" not in address]
    # As for a rank, which tries all of a name's addresses in turn.
    came = reach(targets, REACH_S, one_is_enough=True)
    if not came or any(one.there for one in came):
        return None
    if all(one.outcome == SILENT for one in came):
        return f"{_name(master)}: no answer within {REACH_S:g} s; look at the firewall and the route between them"
    return f"{_name(master)}: {next(one.text for one in came if one.outcome != SILENT)}"


def _addresses(master: Master) -> list[str]:
    import socket

    end = time.monotonic() + ASK_AGAIN_S
    while True:
        try:
            found = socket.getaddrinfo(master.address, master.port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(one[4][0]) for one in found))
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN or time.monotonic() >= end:
                raise
        time.sleep(0.5)

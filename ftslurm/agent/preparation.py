"""What comes before a round's workers are started here: their directories, and whether rank 0 can be reached.

Workers that cannot reach the master wait for it for half an hour and then say so in many words; a connection tried
ahead says it at once, and by the node's name. Nobody listens there yet: to be refused is to have reached the machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ftslurm.agent.actions import Assignment
from ftslurm.dataclasses import dataclass
from ftslurm.rendezvous.state import Master

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
    directories: bool = True
    reach: bool = True
    problem: str | None = None


class Preparation:
    """Prepares one round at a time.

    Args:
        make: has the directories made; its outcome is told to `made`.
        bring: brings a `Tried` to the loop, from a thread.
        monotonic: clock, seconds.
        reach: tries to connect; returns a problem, or None. None: nobody tries.
        tell: is told that the master cannot be reached, and the round begins all the same; None: it does not.
    """

    def __init__(
        self,
        make: Callable[[Assignment], None],
        bring: Callable[[Tried], None],
        monotonic: Callable[[], float],
        reach: Callable[[Master], str | None] | None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._make = make
        self._bring = bring
        self._monotonic = monotonic
        self._reach = reach
        self._tell = tell
        self._awaited: _Awaited | None = None
        self.deadline: float | None = None

    def begin(self, assignment: Assignment) -> None:
        """Begin; what was begun before is of no interest any more."""
        awaited = self._awaited = _Awaited(assignment)
        self.deadline = None
        self._make(assignment)
        if assignment.group_rank == 0 or self._reach is None:
            awaited.reach = False
            return
        self.deadline = self._monotonic() + PATIENCE_S
        threading.Thread(target=self._try, args=(assignment, self._reach), name="reach", daemon=True).start()

    def made(self, round_: int, result: object) -> tuple[int, str | None] | None:
        """Take the outcome of making the directories; return the round and its problem when all is known."""
        if self._awaited is None or self._awaited.assignment.round != round_:
            return None
        self._awaited.directories = False
        if isinstance(result, Exception):
            self._awaited.problem = f"cannot make the round's directories: {result}"
        return self._done()

    def reached(self, news: Tried) -> tuple[int, str | None] | None:
        """Take the outcome of the connection; return as `made` does."""
        if self._awaited is None or self._awaited.assignment.round != news.round:
            return None
        self._awaited.reach = False
        self.deadline = None
        if news.problem is not None and self._tell is not None:
            self._tell(news.problem)
        else:
            self._awaited.problem = self._awaited.problem or news.problem
        return self._done()

    def on_time(self) -> tuple[int, str | None] | None:
        """Its deadline may have passed; return as `made` does."""
        if self._awaited is None or self.deadline is None or self._monotonic() < self.deadline:
            return None
        assignment = self._awaited.assignment
        problem = f"{_name(assignment.master)}: no answer from the name server within {PATIENCE_S:.0f} s"
        return self.reached(Tried(assignment.round, problem))

    def _done(self) -> tuple[int, str | None] | None:
        awaited = self._awaited
        assert awaited is not None
        if awaited.directories or (awaited.reach and awaited.problem is None):
            return None
        self._awaited = None
        self.deadline = None
        return awaited.assignment.round, awaited.problem

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

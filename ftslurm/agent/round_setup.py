"""What comes before a round's workers are started here: directories, the way to rank 0, commits of past rounds.

Workers that cannot reach the master wait for it for half an hour and then say so in many words; a connection tried
ahead says it at once, and by the node's name. Nobody listens there yet: to be refused is to have reached the machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ftslurm.agent.actions import Assignment, Prepared
from ftslurm.dataclasses import dataclass
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


DIRECTORIES, CONNECTION, COMMITS = "directories", "connection", "commits"


@dataclass(frozen=True)
class StepDone:
    """What came of one step of preparing that round, on a thread: a problem, or None."""

    round: int
    step: str
    problem: str | None


@dataclass
class _Awaited:
    assignment: Assignment
    since_s: float
    steps: set[str]
    until: dict[str, float]
    problem: str | None = None
    unreachable: str | None = None


class RoundSetup:
    """Prepares one round at a time: directories, the way to the master, and no commit of a past round left.

    Args:
        make: has the directories made; its outcome, the number of registered commits of past rounds, is for `made`.
        revoke: revokes these commits on a thread, and reports a problem, or None.
        bring: brings a `StepDone` to the loop, from a thread.
        monotonic: clock, seconds.
        patience_s: for so long directories that cannot be made are tried again, and the revocation is waited for: a
            full disk may be over in seconds.
        reach: tries to connect; returns a problem, or None. None: nobody tries.
        tell: is told that the master cannot be reached, and the round begins all the same; None: it does not.
    """

    def __init__(
        self,
        make: Callable[[Assignment], None],
        revoke: Callable[[Assignment, Callable[[str | None], None]], None],
        bring: Callable[[StepDone], None],
        monotonic: Callable[[], float],
        patience_s: float,
        probe_all: Callable[[Master], str | None] | None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._make = make
        self._revoke = revoke
        self._bring = bring
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._reach = probe_all
        self._tell = tell
        self._awaited: _Awaited | None = None
        self._make_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `on_time` wants to be called."""
        moments = [*self._awaited.until.values()] if self._awaited is not None else []
        return min([*moments, *([self._make_at] if self._make_at is not None else [])], default=None)

    def begin(self, assignment: Assignment) -> None:
        """Begin; what was begun before is dropped."""
        self.drop()
        now = self._monotonic()
        awaited = self._awaited = _Awaited(assignment, now, {DIRECTORIES}, {})
        self._make(assignment)
        if assignment.group_rank == 0 or self._reach is None:
            return
        awaited.steps.add(CONNECTION)
        awaited.until[CONNECTION] = now + PATIENCE_S
        threading.Thread(target=self._try, args=(assignment, self._reach), name="reach", daemon=True).start()

    def drop(self) -> None:
        """Give up what was begun."""
        self._awaited = self._make_at = None

    def made(self, round_: int, result: object) -> Prepared | None:
        """Take the outcome of making the directories; return what came of it all when all is known."""
        awaited, now = self._awaited, self._monotonic()
        if awaited is None or awaited.assignment.round != round_:
            return None
        if isinstance(result, OSError) and now - awaited.since_s < self._patience_s:
            self._make_at = now + MAKE_AGAIN_S
            return None
        awaited.steps.discard(DIRECTORIES)
        if isinstance(result, Exception):
            awaited.problem = f"cannot make the round's directories: {result}"
        elif result:
            awaited.steps.add(COMMITS)
            awaited.until[COMMITS] = now + self._patience_s
            self._revoke(awaited.assignment, lambda problem: self._bring(StepDone(round_, COMMITS, problem)))
        return self._done(awaited)

    def step_done(self, done: StepDone) -> Prepared | None:
        """Take the outcome of a step on a thread; return as `made` does."""
        awaited = self._awaited
        if awaited is None or awaited.assignment.round != done.round or done.step not in awaited.steps:
            return None
        awaited.steps.discard(done.step)
        awaited.until.pop(done.step, None)
        if done.step == COMMITS:
            awaited.problem = awaited.problem or done.problem
        elif done.problem is not None and self._tell is not None:
            self._tell(done.problem)
        else:
            awaited.unreachable = done.problem
        return self._done(awaited)

    def on_time(self) -> Prepared | None:
        """Its deadline may have passed; return as `made` does."""
        awaited, now = self._awaited, self._monotonic()
        if awaited is None:
            return None
        if self._make_at is not None and now >= self._make_at:
            self._make_at = None
            self._make(awaited.assignment)
        late = next((step for step, until in awaited.until.items() if now >= until), None)
        if late is None:
            return None
        problem = f"{_name(awaited.assignment.master)}: no answer from the name server within {PATIENCE_S:.0f} s"
        if late == COMMITS:
            problem = (
                f"unfinished commits of past rounds: their directory has not answered for {self._patience_s:.0f} s"
            )
        return self.step_done(StepDone(awaited.assignment.round, late, problem))

    def _done(self, awaited: _Awaited) -> Prepared | None:
        """Return what is known when that is enough: one problem is."""
        problem = awaited.problem or awaited.unreachable
        if problem is None and awaited.steps:
            return None
        self.drop()
        return Prepared(awaited.assignment.round, problem, unreachable=awaited.problem is None and problem is not None)

    def _try(self, assignment: Assignment, probe_all: Callable[[Master], str | None]) -> None:
        try:
            problem = probe_all(assignment.master)
        except Exception:
            # What cannot be tried is no proof of anything.
            problem = None
        self._bring(StepDone(assignment.round, CONNECTION, problem))


def _name(master: Master) -> str:
    return f"the master of the round ({master.address}:{master.port}) cannot be reached from {os.uname().nodename}"


def reach_master(master: Master) -> str | None:
    """Try to connect to the round's master; return what is wrong, None if it can be reached."""
    from ftslurm.health.tcp_probe import SILENT, probe_all

    try:
        found = _addresses(master)
    except OSError as error:
        return f"{_name(master)}: its name does not resolve ({error.strerror or error})"
    # An address that is good on one link alone cannot be tried as a number.
    targets = [(address, master.port) for address in found if "%" not in address]
    # As for a rank, which tries all of a name's addresses in turn.
    came = probe_all(targets, REACH_S, one_is_enough=True)
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

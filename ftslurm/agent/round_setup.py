"""Set-up of a round before its workers start: directories, the connection to rank 0, commits of past rounds.

Workers that cannot reach the master wait for half an hour before they fail with a long traceback; a connection test
fails at once, and names the node. The master does not listen yet: a refused connection proves that its host is
reachable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ftslurm.agent.actions import Assignment, Prepared
from ftslurm.dataclasses import dataclass
from ftslurm.records.state import Master
from ftslurm.text import duration

MAKE_AGAIN_S = 0.5
REACH = "network-reach"
"""The check that this counts as for `--health-skip`."""
REACH_S = 3.5
"""Tolerates two lost packets: the kernel resends the first one after 1 s, and after 3 s."""
ASK_AGAIN_S = 6.0
"""A name server that all nodes query at once may fail temporarily."""
PATIENCE_S = 20.0
"""For the name's resolution and the connection together. A resolver waits 5 s for the first name server and then asks
the next one, for each of its search domains: that is slow, but ranks would succeed."""


DIRECTORIES, CONNECTION, COMMITS = "directories", "connection", "commits"

Report = Callable[[str | None], None]
"""Receives the result of a step: a problem, or None."""


@dataclass(frozen=True)
class StepDone:
    """Result of one set-up step of that round on a thread: a problem, or None."""

    round: int
    step: str
    problem: str | None


@dataclass
class _Pending:
    assignment: Assignment
    since_s: float
    steps: set[str]
    until: dict[str, float]
    problem: str | None = None
    unreachable: str | None = None


class RoundSetup:
    """Sets up one round at a time: directories, connection to the master, revocation of commits of past rounds.

    Args:
        make: makes the directories; its result, the number of registered commits of past rounds, is for `made`.
        revoke: revokes these commits on a thread, and reports a problem, or None.
        connect: tests the connection to the master on a thread, and reports likewise. None: no connection test.
        post: posts a `StepDone` to the loop, from a thread.
        monotonic: clock, seconds.
        patience_s: seconds of retries for directories that cannot be made, and of waiting for the revocation: a
            full disk may be freed in seconds.
        log: logs that the master cannot be reached, and the round begins anyway; None: it does not begin.
    """

    def __init__(
        self,
        make: Callable[[Assignment], None],
        revoke: Callable[[Assignment, Report], None],
        connect: Callable[[Assignment, Report], None] | None,
        post: Callable[[StepDone], None],
        monotonic: Callable[[], float],
        patience_s: float,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._make = make
        self._revoke = revoke
        self._post = post
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._connect = connect
        self._log = log
        self._pending: _Pending | None = None
        self._make_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `on_time` is due."""
        moments = [*self._pending.until.values()] if self._pending is not None else []
        return min([*moments, *([self._make_at] if self._make_at is not None else [])], default=None)

    def begin(self, assignment: Assignment) -> None:
        """Begin; drop an earlier set-up."""
        self.drop()
        now = self._monotonic()
        pending = self._pending = _Pending(assignment, now, {DIRECTORIES}, {})
        self._make(assignment)
        if assignment.group_rank == 0 or self._connect is None:
            return
        pending.steps.add(CONNECTION)
        pending.until[CONNECTION] = now + PATIENCE_S
        round_ = assignment.round
        self._connect(assignment, lambda problem: self._post(StepDone(round_, CONNECTION, problem)))

    def drop(self) -> None:
        """Drop the set-up."""
        self._pending = self._make_at = None

    def made(self, round_: int, result: object) -> Prepared | None:
        """Handle the result of making the directories; return the result of the set-up if it is complete."""
        pending, now = self._pending, self._monotonic()
        if pending is None or pending.assignment.round != round_:
            return None
        if isinstance(result, OSError) and now - pending.since_s < self._patience_s:
            self._make_at = now + MAKE_AGAIN_S
            return None
        pending.steps.discard(DIRECTORIES)
        if isinstance(result, Exception):
            pending.problem = f"cannot make the round's directories: {result}"
        elif result:
            pending.steps.add(COMMITS)
            pending.until[COMMITS] = now + self._patience_s
            self._revoke(pending.assignment, lambda problem: self._post(StepDone(round_, COMMITS, problem)))
        return self._done(pending)

    def step_done(self, done: StepDone) -> Prepared | None:
        """Handle the result of a step on a thread; return as `made` does."""
        pending = self._pending
        if pending is None or pending.assignment.round != done.round or done.step not in pending.steps:
            return None
        pending.steps.discard(done.step)
        pending.until.pop(done.step, None)
        if done.step == COMMITS:
            pending.problem = pending.problem or done.problem
        elif done.problem is not None and self._log is not None:
            self._log(done.problem)
        else:
            pending.unreachable = done.problem
        return self._done(pending)

    def on_time(self) -> Prepared | None:
        """Its deadline may have passed; return as `made` does."""
        pending, now = self._pending, self._monotonic()
        if pending is None:
            return None
        if self._make_at is not None and now >= self._make_at:
            self._make_at = None
            self._make(pending.assignment)
        late = next((step for step, until in pending.until.items() if now >= until), None)
        if late is None:
            return None
        problem = (
            f"{_unreachable(pending.assignment.master)}: no response from the name server within {duration(PATIENCE_S)}"
        )
        if late == COMMITS:
            problem = (
                f"unfinished commits of past rounds: their directory has not responded for {duration(self._patience_s)}"
            )
        return self.step_done(StepDone(pending.assignment.round, late, problem))

    def _done(self, pending: _Pending) -> Prepared | None:
        """Return the result once it is final: at the first problem, or after all steps."""
        problem = pending.problem or pending.unreachable
        if problem is None and pending.steps:
            return None
        self.drop()
        return Prepared(pending.assignment.round, problem, unreachable=pending.problem is None and problem is not None)


def _unreachable(master: Master) -> str:
    return f"the master of the round ({master.address}:{master.port}) cannot be reached from {os.uname().nodename}"


def reach_master(master: Master) -> str | None:
    """Try to connect to the round's master; return the problem, None if it can be reached."""
    from ftslurm.health.tcp_probe import SILENT, probe_all

    try:
        found = _addresses(master)
    except OSError as error:
        return f"{_unreachable(master)}: its name does not resolve ({error.strerror or error})"
    # A link-local address with a scope cannot be tested as a number.
    targets = [(address, master.port) for address in found if "%" not in address]
    # As for a rank, which tries all of a name's addresses in turn.
    results = probe_all(targets, REACH_S, one_is_enough=True)
    if not results or any(one.there for one in results):
        return None
    if all(one.outcome == SILENT for one in results):
        why = f"no response within {duration(REACH_S)}; check the firewall and the route between them"
        return f"{_unreachable(master)}: {why}"
    return f"{_unreachable(master)}: {next(one.text for one in results if one.outcome != SILENT)}"


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

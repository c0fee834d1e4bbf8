"""The watchdog of all ranks of this node: what has expired, and when to check next (pure).

Frequent data are in the heartbeat page, which is read only when a time-out could have expired (see `expiry`). Rare
messages come through the pipe. The clock, the pages and the processes' parentage are arguments.

The agent's loop takes the time, receives every line in the pipe, and calls `due` for that time: so a timer's release
that was written in time is received before the timer expires, however late the agent wakes up.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable

from ftslurm.dataclasses import dataclass, replace
from ftslurm.monitor import expiry as expiries
from ftslurm.monitor.deadlines import Deadlines
from ftslurm.monitor.expiry import Life
from ftslurm.monitor.heartbeat_page import HeartbeatPage
from ftslurm.monitor.message import FINISHED, MISUSE, ClientMessage, MalformedMessage, Timer, parse, shown
from ftslurm.monitor.timeouts import Longest, Spans, Timeouts, merge
from ftslurm.text import duration

TIMER = "timer"
MAX_TIMERS = 1024  # of one rank at once; a script that arms scopes without end must not fill the agent's memory
MAX_NOTES = 100  # of one round
BLIND_S = 10.0  # until the next try to read a page that was readable before


@dataclass(frozen=True)
class Expiry:
    """A rank that took too long.

    Attributes:
        local_rank: which.
        what: description.
        kind: "initial", "heartbeat", "section", "out-of-section", "timer" or "silence".
        name: the section or the timer's scope.
        since_s: the last progress, monotonic seconds.
        allowed_s: the time-out.
        signal: ends the rank: SIGTERM, or the signal of the timer's client; 0: only report.
    """

    local_rank: int
    what: str
    kind: str
    name: str | None
    since_s: float
    allowed_s: float
    signal: int


@dataclass(frozen=True)
class Note:
    """A line for the user, once; `local_rank` None: unknown."""

    local_rank: int | None
    text: str


@dataclass
class _Rank:
    life: Life
    page: HeartbeatPage | None = None  # the last that could be read
    blind: bool = False
    expiry: Expiry | None = None  # what ended it
    dropped: int = 0


@dataclass(frozen=True)
class _Armed:
    local_rank: int
    since_s: float
    deadline_s: float
    signal: int


_TimerKey = tuple[int, str]


class Watchdog:
    """Watches the registered workers of this node, for one agent's life.

    Args:
        timeouts: for all ranks; a rank's own, in its page, override them.
        read_page: reads the page of a local rank; None if it cannot.
        owner: the local rank that a process belongs to (the worker or below it); None for a stranger or a pid that is
            gone.

    Attributes:
        counts: how often, since the agent's start: "garbage" lines, lines of a "stranger" or for a rank that is not
            watched ("late"), "misuse" of the client, messages "dropped" by clients, "timers" too many, timers of a
            process that is "gone", marks that became "unreadable".
    """

    def __init__(
        self,
        timeouts: Timeouts,
        read_page: Callable[[int], HeartbeatPage | None],
        owner: Callable[[int], int | None],
    ) -> None:
        self._timeouts = timeouts
        self._read_page = read_page
        self._owner = owner
        self._ranks: dict[int, _Rank] = {}
        self._timers: dict[_TimerKey, _Armed] = {}
        self._deadlines = Deadlines()
        self._ended: list[Longest] = []
        self._noted: set[object] = set()
        self.counts: Counter[str] = Counter()

    def begin(self, local_rank: int, now_s: float) -> None:
        """A registered worker has started; nothing of one before it with the same local rank counts."""
        self._forget(local_rank)
        self._ranks[local_rank] = _Rank(Life(began_s=now_s, floor_s=now_s, sign_s=now_s))
        self._deadlines.set(local_rank, now_s)

    def end(self, local_rank: int) -> None:
        """The worker has ended: stop watching it and its timers."""
        if local_rank in self._ranks:
            self._ended.append(self._longest(local_rank))
        self._forget(local_rank)

    def clear(self) -> None:
        """The round is over: drop all of its data."""
        for local_rank in list(self._ranks):
            self._forget(local_rank)
        self._ended.clear()
        self._noted.clear()

    def update(self, timeouts: Timeouts) -> None:
        """Apply other time-outs from now on, also to running watches."""
        self._timeouts = timeouts
        for local_rank in self._ranks:
            self._check_soon(local_rank)

    def forgive(self, now_s: float) -> None:
        """Count nothing before `now_s`: the agent was not running, so the ranks perhaps were not either.

        For the agent's loop when it finds itself woken up long after its time: the job was suspended, or the machine.
        """
        for local_rank, rank in self._ranks.items():
            rank.life = replace(rank.life, floor_s=now_s)
            self._check_soon(local_rank)
        for key, armed in self._timers.items():
            allowed_s = armed.deadline_s - armed.since_s
            self._timers[key] = _Armed(armed.local_rank, now_s, now_s + allowed_s, armed.signal)
            self._deadlines.set(key, now_s + allowed_s)

    def sign_of_life(self, local_rank: int, now_s: float) -> None:
        """The rank made progress that is not in its page: its output grew, it armed a timer."""
        rank = self._ranks.get(local_rank)
        if rank is not None:
            rank.life = replace(rank.life, sign_s=now_s)

    def quiet_s(self, local_rank: int, now_s: float) -> float | None:
        """Return the seconds since the rank's last sign of life; None: it is not watched."""
        rank = self._ranks.get(local_rank)
        return None if rank is None else expiries.quiet_s(self._read_page(local_rank), rank.life, now_s)

    @property
    def deadline(self) -> float | None:
        """When to ask `due` again, monotonic seconds; None: only after something else has happened."""
        return self._deadlines.next

    @property
    def timeouts(self) -> Timeouts:
        """What holds for all ranks."""
        return self._timeouts

    def receive(self, line: bytes, now_s: float, wall_s: float) -> Note | None:
        """Process one line of the pipe.

        Args:
            line: without its newline.
            now_s: monotonic seconds.
            wall_s: seconds since the epoch, at the same moment: torch's timers name a time of that clock. They are
                turned into a delay at once, so that a step of that clock between arming and expiry does no harm.
        """
        message = parse(line)
        if isinstance(message, MalformedMessage):
            self.counts["garbage"] += 1
            return self._note("garbage", None, f"no message: {message.reason}; more such lines are only counted")
        local_rank = self._owner(message.pid)
        if local_rank is None or (isinstance(message, ClientMessage) and message.rank != local_rank):
            self.counts["stranger"] += 1
            text = f"process {message.pid} is no worker of this agent: its messages are ignored, and only counted"
            return self._note("stranger", None, text)
        rank = self._ranks.get(local_rank)
        if rank is None or rank.expiry:
            self.counts["late"] += 1
            return None
        self.sign_of_life(local_rank, now_s)
        if isinstance(message, Timer):
            return self._receive_timer(local_rank, message, now_s, wall_s)
        if message.kind == MISUSE:
            self.counts["misuse"] += 1
            text = f"{message.what}: {shown(message.name)}" if message.name else message.what
            return self._note((local_rank, message.what, message.name), local_rank, text)
        self._check_soon(local_rank)
        return self._note((local_rank, FINISHED), local_rank, "has finished") if message.kind == FINISHED else None

    def _receive_timer(self, local_rank: int, message: Timer, now_s: float, wall_s: float) -> Note | None:
        key = (message.pid, message.scope)
        if message.expiration_s is None:
            self._timers.pop(key, None)
            self._deadlines.drop(key)
            return None
        if key not in self._timers and self._timers_of(local_rank) >= MAX_TIMERS:
            self.counts["timers"] += 1
            text = f"has more than {MAX_TIMERS} timers armed at once: further ones are ignored"
            return self._note((local_rank, TIMER), local_rank, text)
        deadline_s = now_s + max(message.expiration_s - wall_s, 0.0)
        self._timers[key] = _Armed(local_rank, now_s, deadline_s, message.signal)
        self._deadlines.set(key, deadline_s)
        return None

    def _timers_of(self, local_rank: int) -> int:
        if len(self._timers) < MAX_TIMERS:
            return 0  # few enough in total
        return sum(armed.local_rank == local_rank for armed in self._timers.values())

    def due(self, now_s: float) -> list[Expiry]:
        """Return what has expired by now, the first first; each is given once.

        After an expiry that ends it, a rank is no longer watched; of several, the one that expired first is returned.
        """
        found: list[tuple[float, Expiry]] = []
        for key in self._deadlines.pop_due(now_s):
            if isinstance(key, int):
                found += self._check(key, now_s)
            else:
                found += self._expire_timer(key, now_s)
        found.sort(key=lambda item: item[0])
        expiries: list[Expiry] = []
        for _, expiry in found:
            rank = self._ranks[expiry.local_rank]
            if rank.expiry is not None:
                continue
            expiries.append(expiry)
            if expiry.signal:
                rank.expiry = expiry
                self._drop_deadlines(expiry.local_rank)
        return expiries

    def _check(self, local_rank: int, now_s: float) -> list[tuple[float, Expiry]]:
        rank = self._ranks[local_rank]
        page = self._read(local_rank)
        if page is None and rank.page is not None:
            # The page was removed. A rank without a page is not thereby hung: only its torch timers go on.
            if not rank.blind:
                self.counts["unreadable"] += 1
                rank.blind = True
            self._deadlines.set(local_rank, now_s + BLIND_S)
            return []
        rank.blind = False
        expired, again_s = expiries.next_expiry(page, self._timeouts, rank.life, now_s)
        if expired is None or expired.since_s is None:
            if again_s is not None:
                self._deadlines.set(local_rank, again_s)
            return []
        what = expiries.describe(expired, now_s, automatic=page is not None and page.automatic)
        sig = int(signal.SIGTERM)
        expiry = Expiry(local_rank, what, expired.kind, expired.name, expired.since_s, expired.allowed_s, sig)
        return [(expired.deadline_s, expiry)]

    def _expire_timer(self, key: _TimerKey, now_s: float) -> list[tuple[float, Expiry]]:
        armed = self._timers.pop(key)
        pid, scope = key
        if self._owner(pid) != armed.local_rank:
            # A data-loader process that ended inside its scope; its pid may be reused by now.
            self.counts["gone"] += 1
            return []
        allowed_s = armed.deadline_s - armed.since_s
        what = f"timer {shown(scope)} expired, {duration(now_s - armed.since_s)} after it was armed"
        expiry = Expiry(armed.local_rank, what, TIMER, scope, armed.since_s, allowed_s, armed.signal)
        return [(armed.deadline_s, expiry)]

    def longest(self) -> Longest:
        """Return the longest intervals of this round so far, over this node's ranks, ended ones included."""
        return merge([*self._ended, *(self._longest(local_rank) for local_rank in self._ranks)])

    def _longest(self, local_rank: int) -> Longest:
        self._read(local_rank)
        rank = self._ranks[local_rank]
        ended = rank.expiry
        cut = expiries.spans({(ended.kind, ended.name): ended.allowed_s}) if ended else Spans()
        return expiries.longest(rank.page, rank.life.began_s, cut)

    def _read(self, local_rank: int) -> HeartbeatPage | None:
        rank = self._ranks[local_rank]
        page = self._read_page(local_rank)
        if page is None:
            return None
        if page.dropped > rank.dropped:
            self.counts["dropped"] += page.dropped - rank.dropped
            rank.dropped = page.dropped
        rank.page = page
        return page

    def _check_soon(self, local_rank: int) -> None:
        rank = self._ranks[local_rank]
        if rank.expiry is None:
            self._deadlines.set(local_rank, rank.life.began_s)  # long past: at the next turn

    def _note(self, key: object, local_rank: int | None, text: str) -> Note | None:
        if key in self._noted or len(self._noted) >= MAX_NOTES:
            return None
        self._noted.add(key)
        return Note(local_rank, text)

    def _forget(self, local_rank: int) -> None:
        self._drop_deadlines(local_rank)
        self._ranks.pop(local_rank, None)

    def _drop_deadlines(self, local_rank: int) -> None:
        self._deadlines.drop(local_rank)
        for key in [key for key, armed in self._timers.items() if armed.local_rank == local_rank]:
            del self._timers[key]
            self._deadlines.drop(key)

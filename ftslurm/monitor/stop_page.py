"""The stop page of a rank: by it agent and rank agree on the step at which all ranks leave.

The agent makes this small file before the rank starts. Both map it: the rank stores where it is, the agent what is
proposed and decided. One word is written by one side only, and a call of `should_stop` costs some stores and one load.

The rank stores its step and then loads the proposal; the agent stores the proposal, waits `SETTLE_S`, and then loads
the step. So at least one of them sees the other: either the rank finds the proposal at that step, or the agent finds
that the rank has passed it. (A processor may delay a store behind a later load, but by far less than that time; and a
rank that is suspended in between has its stores written back by the kernel.) A proposal is committed only if no rank
has passed it; a rank that reaches a proposed step waits for the decision. Ranks therefore need not call at the same
time, nor with each single step: all leave at their first call with the committed step or a higher one.
"""

from __future__ import annotations

import os
import struct
import time

from ftslurm.dataclasses import dataclass
from ftslurm.records.stop import ANY_STEP, Stop, StopVote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ftslurm.monitor.mapping import Words

NAME, REASON = "stop", "stop-reason"
MAGIC = b"ftsstop1"
WORDS = 32
SIZE = WORDS * 8
SETTLE_S = 0.002

# Written by the rank.
PID, CALLS, STEP, STEPPED, FIRST_NS = 1, 2, 3, 4, 6
SIGNAL, WAITS, LEFT, LEFT_STEP, CATCHES_TERM, FIRST_STEP, LEFT_NS, LAST_NS = 7, 8, 9, 10, 11, 12, 13, 14
# Written by the agent.
REQUESTED, PROPOSAL, PROPOSED_STEP, COMMITTED, KILL_NS, JOB_END_NS = 16, 17, 18, 19, 20, 21

_PAGE = struct.Struct(f"<{WORDS}q")
WAIT_S, PAUSE_S = 600.0, 0.001
"""Longest wait of a rank for a decision, and the interval at which it reads the page meanwhile, in seconds.

It never takes more than half of the time until the rank is killed. When it is over, the shared directory has failed for
long: the rank leaves at the proposed step, as do the others that wait there."""

ON_STEPS, ON_PACE = 2, 0.5
"""A rank trains on, although `should_stop` has returned True, if it called it again with steps so much higher, and took
for them at least that part of the time that it took before. Loops that are nested leave one after the other: they call
it again, too, but without delay, or with the same step."""

NOT_GROWING = (
    "should_stop: the step must grow from call to call, over epochs, too; ranks may not leave at a common step"
)


@dataclass(frozen=True)
class StopPage:
    """The rank's part of the page.

    Attributes:
        calls: calls of `should_stop`, and registered callbacks: the rank takes notice of a stop.
        step: of the last call with a step; None: there was none.
        first_ns: when the first call with a step was, CLOCK_MONOTONIC; 0: there was none.
        signal: the number of a signal that asked this rank alone to stop; 0: none.
        waits: the proposal for whose decision it waits; 0: it does not.
        left: `should_stop` has returned True.
        left_step: with this step; None: it left without one.
        catches_term: SIGTERM only makes `should_stop` true.
        first_step: of the first call with a step; None: there was none.
        left_ns, last_ns: when `should_stop` returned True with a step for the first and the last time, CLOCK_MONOTONIC.
    """

    calls: int
    step: int | None
    first_ns: int
    signal: int
    waits: int
    left: bool
    left_step: int | None
    catches_term: bool
    first_step: int | None = None
    left_ns: int = 0
    last_ns: int = 0

    @property
    def trains_on(self) -> bool:
        """Whether it takes further steps, although `should_stop` has returned True."""
        if self.left_step is None or self.step is None or self.first_step is None:
            return False
        before, after = self.left_step - self.first_step, self.step - self.left_step
        if before < 1 or after < ON_STEPS:
            return False
        return self.last_ns - self.left_ns >= ON_PACE * after * (self.left_ns - self.first_ns) / before

    def step_s(self, now_ns: int) -> float | None:
        """Return the mean time between its calls with a step, seconds; None: unknown."""
        span_ns = now_ns - self.first_ns
        return span_ns / 1e9 / self.calls if self.first_ns > 0 and self.calls > 0 and span_ns > 0 else None

    def has_passed(self, proposal: int, step: int) -> bool:
        """Return whether it has called `should_stop` with that step or a higher one, and went on."""
        return self.step is not None and self.step >= step and self.waits != proposal and not self.left


def create(directory: str) -> None:
    """Make the page of a rank that is about to start; `OSError` if that is impossible."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(os.path.join(directory, NAME), flags, 0o600)
    try:
        # Written, not only truncated to size: a store into a hole of a full filesystem is a SIGBUS.
        os.write(fd, MAGIC.ljust(SIZE, b"\0"))
    finally:
        os.close(fd)


def read(directory: str) -> StopPage | None:
    """Return the rank's part of the page in `directory`; None if it is missing or invalid."""
    try:
        fd = os.open(os.path.join(directory, NAME), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.read(fd, SIZE)
    except OSError:
        return None
    finally:
        os.close(fd)
    return decode(data)


def decode(data: bytes) -> StopPage | None:
    """Decode the page `data`; None if it is no stop page."""
    if len(data) < SIZE or data[:8] != MAGIC:
        return None
    word = _PAGE.unpack_from(data)
    stepped = word[STEPPED]
    return StopPage(
        calls=max(word[CALLS], stepped, 0),
        step=word[STEP] if stepped > 0 else None,
        first_ns=max(word[FIRST_NS], 0),
        signal=word[SIGNAL],
        waits=word[WAITS],
        left=word[LEFT] != 0,
        left_step=word[LEFT_STEP] if word[LEFT] > 1 else None,
        catches_term=word[CATCHES_TERM] != 0,
        first_step=word[FIRST_STEP] if stepped > 0 else None,
        left_ns=word[LEFT_NS],
        last_ns=word[LAST_NS],
    )


class RankSide:
    """The rank's side of the page.

    Args:
        words: the page.
        clock: CLOCK_MONOTONIC, nanoseconds.
        sleep: waits some seconds.
        waiting: called before each such wait, with its length in seconds: that time is no hang.
        misused: called with a text when a step is not above the last one: no common step can be found then.

    Attributes:
        call: the function behind `should_stop(step)`.
    """

    def __init__(
        self,
        words: Words,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
        waiting: Callable[[float], None] = lambda seconds: None,
        misused: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.words = words
        self._clock = clock
        self._sleep = sleep
        self._waiting = waiting
        self._misused = misused
        self.call = self._caller()

    def _caller(self) -> Callable[[int], bool]:
        words, clock, agree, misused = self.words, self._clock, self._agree, self._misused
        count, last = words[STEPPED], words[STEP]

        def call(step: int) -> bool:
            nonlocal count, last
            if not count:
                words[FIRST_NS] = clock()
                words[FIRST_STEP] = step
            elif step <= last:
                misused(NOT_GROWING)
            words[STEP] = last = step
            count += 1
            words[STEPPED] = count
            # Behind the store of the step, see above.
            return words[PROPOSAL] != 0 and agree(step)

        return call

    def _agree(self, step: int) -> bool:
        """Wait until it is decided whether all ranks leave at this step."""
        words = self.words
        until: int | None = None
        while words[LEFT] == 0:
            proposal = words[PROPOSAL]
            # Written before the number of the proposal: it is this proposal's step, or that of a later one.
            if proposal == 0 or step < words[PROPOSED_STEP]:
                words[WAITS] = 0
                return False
            now = self._clock()
            until = until or now + self._longest_wait_ns(now)
            if words[COMMITTED] == proposal or now >= until:
                words[LEFT_STEP] = step
                words[LEFT_NS] = now
                words[LEFT] = 2
                break
            words[WAITS] = proposal
            self._waiting(1.0)
            self._sleep(PAUSE_S)
        words[LAST_NS] = self._clock()
        return True

    def _longest_wait_ns(self, now: int) -> int:
        longest_ns = int(WAIT_S * 1e9)
        kill_ns = self.words[KILL_NS]
        return longest_ns if kill_ns == 0 else min(longest_ns, max(0, kill_ns - now) // 2)

    def call_without_step(self) -> bool:
        """Return whether this rank should stop, regardless of the others."""
        words = self.words
        words[CALLS] += 1
        requested = words[REQUESTED] != 0 or words[SIGNAL] != 0
        if requested and words[LEFT] == 0:
            words[LEFT] = 1
        return requested

    @property
    def requested(self) -> bool:
        """Whether a stop is requested."""
        return self.words[REQUESTED] != 0 or self.words[SIGNAL] != 0

    def time_left_s(self) -> float | None:
        """Return the seconds until this rank is killed, or the job ends; None: unknown."""
        at = self.words[KILL_NS] or self.words[JOB_END_NS]
        return None if at == 0 else max(0.0, (at - self._clock()) / 1e9)


class AgentSide:
    """The agent's side of the page.

    Args:
        words: the page.
    """

    def __init__(self, words: Words) -> None:
        self._words = words

    def request(self, kill_ns: int | None) -> None:
        """Make `should_stop()` true; ``kill_ns``: when the rank is killed, CLOCK_MONOTONIC."""
        self._words[KILL_NS] = kill_ns or 0
        self._words[REQUESTED] = 1

    def propose(self, proposal: int, step: int) -> None:
        """Propose a step; wait `SETTLE_S` before the rank's part is read."""
        self._words[PROPOSED_STEP] = step
        self._words[PROPOSAL] = proposal

    def commit(self, proposal: int) -> None:
        """Decide for a proposal."""
        self._words[COMMITTED] = proposal

    def set_job_end(self, job_end_ns: int) -> None:
        """Store when the job ends, CLOCK_MONOTONIC."""
        self._words[JOB_END_NS] = job_end_ns


def vote(
    stop: Stop,
    ranks: Mapping[int, tuple[StopPage, bool]],
    now_ns: int,
    before: StopVote | None = None,
    saved: tuple[int, ...] = (),
) -> StopVote:
    """Return a node's answer to the newest proposal.

    Args:
        ranks: by rank, its page, and whether it is alive.
        now_ns: CLOCK_MONOTONIC.
        before: its last answer. A rank that has passed a proposed step may wait at a later one: it has passed it still.
        saved: see `StopVote`.
    """
    alive = [page for page, is_alive in ranks.values() if is_alive]
    steps = [page.step for page in alive if page.step is not None]
    left_steps = [page.left_step for page, _ in ranks.values() if page.left_step is not None]
    step = ANY_STEP if stop.step is None else stop.step
    passed = any(page.has_passed(stop.proposal, step) for page in alive)
    if before is not None and (before.round, before.proposal) == (stop.round, stop.proposal):
        passed = passed or before.passed
    return StopVote(
        stop.round,
        stop.proposal,
        polling=any(page.calls > 0 for page in alive),
        step=max(left_steps or steps, default=None),
        step_s=min((seconds for page in alive if (seconds := page.step_s(now_ns))), default=None),
        passed=bool(stop.proposal) and passed,
        left=tuple(rank for rank, (page, _) in ranks.items() if page.left and not page.trains_on),
        trained_on=tuple(rank for rank, (page, _) in ranks.items() if page.trains_on),
        saved=saved,
        unasked=tuple(rank for rank, (page, _) in ranks.items() if page.calls == 0),
    )

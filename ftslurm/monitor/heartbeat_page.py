"""The heartbeat page of a rank: one memory-mapped page with its last activity, readable even after SIGKILL.

A heartbeat, a section or a step costs a few stores of eight bytes: no system call, no lock, nothing that can block.
A store is in the page cache at once, so the agent can read it at any time, and after any kind of death but the
machine's. One process writes it; words are eight bytes and aligned, so that a reader never gets a half-written one.

Times are nanoseconds of CLOCK_MONOTONIC, which is the same for all processes of a machine, but for the stamps of steps:
of the first and the last one, for display, and of the newest ones, for comparison with torch's stamps of collectives.
Those are since the epoch.
"""

from __future__ import annotations

import os
import struct
import sys
import time

from ftslurm.dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ftslurm.monitor.mapping import Words


INF = float("inf")
"""A time-out that is off. Not `math.inf`: that module is 80 KB in each agent."""
NAME = "progress"
MAGIC = b"ftsprog2"
SIZE = 4096
SLOTS, NAME_BYTES, BUCKETS = 37, 40, 40
UNSET, OFF = 0, -1  # own time-outs: unset; not watched

# The page in words.
FIRST_STEP, FIRST_WALL, LAST_STEP, LAST_WALL, STEPS, STEP_NS = 1, 2, 3, 4, 5, 6
FINISHED, PID, PID_STARTED = 7, 8, 9
BEAT_FIRST, BEAT_LAST, BEATS, BEAT_LONGEST = 10, 11, 12, 13
SECTION_NS, OUT_LONGEST, UNLISTED, USED = 14, 15, 16, 17
OWN_INITIAL, OWN_HEARTBEAT, OWN_OUT = 18, 19, 20
MISUSED, DROPPED = 21, 22
PACE_SUM, PACE_COUNT, PACE_BUCKETS = 23, 24, 25
EXCUSED_NS, AUTOMATIC = 70, 71  # behind the words that `section` uses as spare ones
SLOT_0, SLOT_WORDS = 72, 10
OPENED, OPENS, LONGEST, OWN_TIMEOUT, SLOT_NAME = 0, 1, 2, 3, 5
ENDS, ENDS_KEPT = SLOT_0 + SLOTS * SLOT_WORDS, 64  # a power of two; up to word 506 of 512

_PAGE = struct.Struct("<512q")
_BUCKET_SHIFT = 19  # the histogram counts in 2**19 ns, about half a millisecond


@dataclass(frozen=True)
class Progress:
    """The steps of a rank, as its script or its optimizer counts them; times in nanoseconds since the epoch."""

    first_step: int
    first_ns: int
    last_step: int
    last_ns: int
    marks: int


@dataclass(frozen=True)
class Beats:
    """The heartbeats; `longest_ns` between two of them, those of the warm-up not counted."""

    first_ns: int
    last_ns: int
    number: int
    longest_ns: int


@dataclass(frozen=True)
class SectionSlot:
    """One section; `opened_ns` 0: closed; `timeout_s` None: none of its own, `math.inf`: not to be watched."""

    name: str
    opened_ns: int
    opens: int
    longest_ns: int
    timeout_s: float | None


@dataclass(frozen=True)
class StepIntervals:
    """The intervals between progress() calls: how many, their sum and histogram (see `EDGES_S`)."""

    intervals: int
    sum_ns: int
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class HeartbeatPage:
    """The decoded heartbeat page.

    Attributes:
        progress: steps that the script reports; None before the first.
        optimizer_steps: steps of its optimizer, where the script reports nothing (`optimizer_steps`); None otherwise.
        progress_ns: when the last step was reported or made.
        pid: the process that writes it.
        finished: workload_finished() was called.
        beats: heartbeats; where there are optimizer steps, these are.
        sections: every section that was ever opened or given a time-out.
        section_ns: when a section was last opened or closed; with none open, since when that is so. 0: never.
        unlisted: sections open now without a slot.
        out_longest_ns: longest time between two sections.
        initial_s, heartbeat_s, out_of_section_s: the rank's own time-outs; None: unset, `math.inf`: off.
        misused, dropped: wrong calls; messages that could not be written into the pipe.
        pace: intervals between steps.
        excused_ns: time before that does not count: this rank waited within ftslurm. 0: never.
        step_ends: when the newest steps were reported or made, nanoseconds since the epoch, ascending; at most
            `ENDS_KEPT`.
    """

    progress: Progress | None
    progress_ns: int
    pid: int
    finished: bool
    beats: Beats
    sections: tuple[SectionSlot, ...]
    section_ns: int
    unlisted: int
    out_longest_ns: int
    initial_s: float | None
    heartbeat_s: float | None
    out_of_section_s: float | None
    misused: int
    dropped: int
    pace: StepIntervals
    excused_ns: int = 0
    optimizer_steps: Progress | None = None
    step_ends: tuple[int, ...] = ()

    @property
    def automatic(self) -> bool:
        """Whether its heartbeats, if any, are steps of the optimizer: the script sends none."""
        return self.optimizer_steps is not None

    @property
    def opted_in(self) -> bool:
        """Whether the rank ever sent a heartbeat or opened a section."""
        return self.beats.number > 0 or self.section_ns > 0


def _edges() -> tuple[float, ...]:
    units = [(2 + (i + 1) % 2) << ((i + 1) // 2 - 1) for i in range(1, BUCKETS)]
    return (0.0, *(unit * (1 << _BUCKET_SHIFT) / 1e9 for unit in units))


EDGES_S = _edges()
"""Lower edge of each bucket of `StepIntervals.buckets`, in seconds: 0, 1.05 ms, and on by factors of 3/2 and 4/3; the
last bucket is open."""


def bucket(interval_ns: int) -> int:
    """Return the bucket of an interval."""
    units = interval_ns >> _BUCKET_SHIFT
    if units < 2:
        return 0
    bits = units.bit_length()
    return min(2 * bits - 3 + (units >> (bits - 2) & 1), BUCKETS - 1)


def open_writer(directory: str | os.PathLike[str]) -> Words | None:
    """Map the heartbeat page in `directory`, creating it if needed; return its words.

    A page of this rank's earlier program (one that replaced itself by exec, or the first of two in a shell script) is
    continued, its sections closed. None if a living process writes it: there is one writer.

    Raises:
        OSError: the file cannot be made, written or mapped (also: it is not a regular file).
        ImportError: this Python has no ctypes.
    """
    from ftslurm.monitor.mapping import map_shared

    path = os.path.join(os.fspath(directory), NAME)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        data = os.pread(fd, SIZE, 0)
        old = decode(data)
        if old is None:
            # Written, not only truncated to size: a store into a hole of a full filesystem is a SIGBUS.
            os.pwrite(fd, MAGIC.ljust(SIZE, b"\0"), 0)
        elif old.pid != os.getpid() and old.pid > 0 and _started(old.pid) == _PAGE.unpack(data)[PID_STARTED]:
            return None
        memory = map_shared(fd, SIZE, path)
    finally:
        os.close(fd)
    return claim(memory, os.getpid(), _started(os.getpid()))


def claim(memory: Any, pid: int, started: int) -> Words:
    """Return the words of the page `memory`, a writable buffer; they are `pid`'s from now on, no section is open."""
    words: Words = memoryview(memory).cast("B").cast("q")
    for at in range(SLOT_0, SLOT_0 + SLOTS * SLOT_WORDS, SLOT_WORDS):
        if words[at + OPENED]:
            words[at + OPENED] = 0
            words[SECTION_NS] = time.monotonic_ns()
    words[UNLISTED] = 0
    words[PID_STARTED], words[PID] = started, pid
    return words


def _started(pid: int) -> int:
    """Return when `pid` started, in the kernel's ticks; -1 if it runs no more (proc_pid_stat(5), field 22)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
        fields = line[line.rindex(b")") + 2 :].split()
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return -1


def read(directory: str | os.PathLike[str]) -> HeartbeatPage | None:
    """Return the heartbeat page in `directory`; None if missing, invalid or unreadable."""
    path = os.path.join(os.fspath(directory), NAME)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return decode(os.read(fd, SIZE))
    except OSError:
        return None
    finally:
        os.close(fd)


def read_progress(directory: str | os.PathLike[str]) -> Progress | None:
    """Return the steps reported by `client.progress`; None if the page in `directory` has none or cannot be read.

    Also used while an interpreter shuts down after a failure, so this module imports as little as possible.
    """
    page = read(directory)
    return page.progress if page is not None else None


def decode(data: bytes) -> HeartbeatPage | None:
    """Decode the page `data`; None if it is no heartbeat page. Impossible values become 0."""
    if len(data) < SIZE or data[:8] != MAGIC:
        return None
    raw = _PAGE.unpack_from(data)
    word = [value if value > 0 else 0 for value in raw[:SLOT_0]]
    buckets = tuple(word[PACE_BUCKETS : PACE_BUCKETS + BUCKETS])
    numbers = (raw[FIRST_STEP], word[FIRST_WALL], raw[LAST_STEP], word[LAST_WALL], word[STEPS])
    steps = Progress(*numbers) if word[STEPS] else None
    return HeartbeatPage(
        progress=None if word[AUTOMATIC] else steps,
        progress_ns=word[STEP_NS],
        pid=word[PID],
        finished=raw[FINISHED] != 0,
        beats=Beats(word[BEAT_FIRST], word[BEAT_LAST], word[BEATS], word[BEAT_LONGEST]),
        sections=_slots(data, raw),
        section_ns=word[SECTION_NS],
        unlisted=word[UNLISTED],
        out_longest_ns=word[OUT_LONGEST],
        initial_s=_seconds(raw[OWN_INITIAL]),
        heartbeat_s=_seconds(raw[OWN_HEARTBEAT]),
        out_of_section_s=_seconds(raw[OWN_OUT]),
        misused=word[MISUSED],
        dropped=word[DROPPED],
        pace=StepIntervals(word[PACE_COUNT], word[PACE_SUM], buckets),
        excused_ns=word[EXCUSED_NS],
        optimizer_steps=steps if word[AUTOMATIC] else None,
        step_ends=tuple(sorted(end for end in raw[ENDS : ENDS + ENDS_KEPT] if end > 0)),
    )


def _slots(data: bytes, raw: tuple[int, ...]) -> tuple[SectionSlot, ...]:
    found: dict[str, SectionSlot] = {}
    for number in range(min(max(raw[USED], 0), SLOTS)):
        at = SLOT_0 + number * SLOT_WORDS
        start = (at + SLOT_NAME) * 8
        name = data[start : start + NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace")
        if name and name not in found:
            opened, opens, longest = (max(raw[at + field], 0) for field in (OPENED, OPENS, LONGEST))
            found[name] = SectionSlot(name, opened, opens, longest, _seconds(raw[at + OWN_TIMEOUT]))
    return tuple(found.values())


def _seconds(own: int) -> float | None:
    if own == UNSET:
        return None
    return own / 1e9 if own > 0 else INF


def encode_timeout(seconds: float | None) -> int:
    """Return the word for a rank's own time-out; None and `math.inf`: off."""
    if seconds is None or seconds > 1e9:
        return OFF
    return max(int(seconds * 1e9), 1)


def new_slot(words: Words, name: str) -> int | None:
    """Give the section `name` (1 to 40 bytes) a slot; return its first word, None if all are taken.

    An earlier program of this rank may have given it one. Not for two threads at once.
    """
    encoded = name.encode().ljust(NAME_BYTES, b"\0")
    wanted = struct.unpack(f"{'<' if sys.byteorder == 'little' else '>'}5q", encoded)
    for number in range(SLOTS):
        at = SLOT_0 + number * SLOT_WORDS
        place = range(at + SLOT_NAME, at + SLOT_WORDS)
        if number >= words[USED]:
            words[USED] = number + 1
            for field in range(at, at + SLOT_NAME):
                words[field] = 0
            for field, value in zip(place, wanted, strict=True):
                words[field] = value
            return at
        if all(words[field] == value for field, value in zip(place, wanted, strict=True)):
            return at
    return None


def beater(words: Words, warmup_steps: int, clock: Callable[[], int] = time.monotonic_ns) -> Callable[[], None]:
    """Return a function that stores a heartbeat. With two concurrent threads, one may not be counted."""
    last, count, longest = words[BEAT_LAST], words[BEATS], words[BEAT_LONGEST]

    def beat() -> None:
        nonlocal last, count, longest
        now = clock()
        words[BEAT_LAST] = now
        count += 1
        words[BEATS] = count
        interval = now - last
        last = now
        if interval > longest:
            if count == 1:
                words[BEAT_FIRST] = now
            elif count - 1 > warmup_steps:
                words[BEAT_LONGEST] = longest = interval

    return beat


def stepper(
    words: Words,
    clock: Callable[[], int] = time.monotonic_ns,
    wall: Callable[[], int] = time.time_ns,
) -> Callable[[int], None]:
    """Return a function that stores a reached training step. With two concurrent threads, one of the steps is kept."""
    count, last, total, intervals = words[STEPS], words[STEP_NS], words[PACE_SUM], words[PACE_COUNT]

    def step(number: int) -> None:
        nonlocal count, last, total, intervals
        now = clock()
        if not count:
            words[FIRST_STEP], words[FIRST_WALL] = number, wall()
        now_wall = wall()
        words[ENDS + (count & ENDS_KEPT - 1)] = now_wall
        count += 1
        words[LAST_STEP], words[LAST_WALL], words[STEP_NS] = number, now_wall, now
        words[STEPS] = count  # behind the step that it counts
        if last:
            interval = now - last
            total += interval
            intervals += 1
            at = PACE_BUCKETS + bucket(interval)
            words[at] += 1
            words[PACE_SUM] = total
            words[PACE_COUNT] = intervals
        last = now

    return step


def withdraw_automatic(words: Words) -> None:
    """Remove what was stored without the script's doing: it reports by itself from now on, or nothing is known."""
    # The heartbeats first: without them no interval runs.
    for at in (BEATS, BEAT_FIRST, BEAT_LAST, BEAT_LONGEST, STEPS, STEP_NS):
        words[at] = 0
    for at in (*range(PACE_SUM, PACE_BUCKETS + BUCKETS), *range(ENDS, ENDS + ENDS_KEPT)):
        words[at] = 0
    words[AUTOMATIC] = 0

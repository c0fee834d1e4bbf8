"""Forked processes that may hang: they run side by side, each with its time-outs, and are read, killed and collected.

All of ftslurm's short-lived child processes run here: checks, probes of directories, the doctor's calls. A time-out
begins when the process reports that its work begins, not with its fork, and counts device time alone (`device_time`):
that distinguishes hanging from being slow. The call that a process is in is in memory that it shares with its parent
(`during`), so that a hang is reported by name. A process that is killed but hangs in the kernel is not waited for.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ftslurm.health.device_time import Reading, scheduling, waited_s
from ftslurm.health.procfs import process
from ftslurm.kernel import die_with_parent
from ftslurm.observed_time import ObservedTime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeVar

    T = TypeVar("T")
    Send = Callable[[Any], None]

ENDED, LATE, STARVED = "ended", "late", "starved"
TICK_S = 0.1
"""Interval between two checks of the running processes. A longer one is this process's own lateness."""
SLACK_S = 20.0
"""Seconds of wall time, beyond the limit, after which a process without CPU time is given up."""
REAP_S, REAP_MOST_S = 0.2, 5.0
"""Seconds after which a killed process that hangs in the kernel, and any other one, is not waited for."""
DATA_LIMIT = 4 << 20
"""Bytes read from one process; more counts as broken."""
_BEGIN = b"\n"
_HEAD = struct.Struct("<qH")
_DESCRIPTORS = 4096


class Calls:
    """The latest call of one process, in memory shared with its parent; and its slowest one.

    Attributes:
        slowest: seconds and text.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.slowest = (0.0, "")

    def during(self, what: str, function: Callable[[], T]) -> T:
        """Call `function`, recorded as `what`."""
        text = what.encode("utf-8", "surrogateescape")[: mmap.PAGESIZE - _HEAD.size]
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        began_ns = time.monotonic_ns()
        self._memory[: _HEAD.size] = _HEAD.pack(began_ns, len(text))
        try:
            return function()
        finally:
            self._memory[: _HEAD.size] = _HEAD.pack(0, len(text))
            self.slowest = max(self.slowest, ((time.monotonic_ns() - began_ns) / 1e9, what))

    def latest(self) -> tuple[float | None, str]:
        """Return for how many seconds the latest call has not returned (None: it has), and its text."""
        began_ns, length = _HEAD.unpack(self._memory[: _HEAD.size])
        text = self._memory[_HEAD.size : _HEAD.size + length].decode("utf-8", "surrogateescape")
        return (time.monotonic_ns() - began_ns) / 1e9 if began_ns else None, text


_calls: Calls | None = None


def own_calls() -> Calls:
    """Return the calls of this process; only those of a `Child` are read by its parent."""
    global _calls
    if _calls is None:
        _calls = Calls()
    return _calls


def during(what: str, function: Callable[[], T]) -> T:
    """Call `function`; if it does not return, the parent of this process reports a hang in `what`."""
    return own_calls().during(what, function)


class Child:
    """A process that does one piece of work and sends values to its parent.

    Args:
        work: the function; it gets the function that sends a JSON-serialisable value.
        limit_s: time-out of the work, in seconds of device time.
        clock: monotonic, seconds.
        call_limit_s: time-out of one recorded call, in seconds.
        data_limit: bytes that it may send.

    Attributes:
        outcome: ENDED; LATE: it hangs; STARVED: it got too little CPU time. None: it still runs.
        took_s: seconds from the fork to the outcome.
        call: its latest call at the outcome.
        in_call: whether that had not returned.
        reaped: the process has ended and is collected.
    """

    def __init__(
        self,
        work: Callable[[Send], None],
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        call_limit_s: float = float("inf"),
        data_limit: int = DATA_LIMIT,
    ) -> None:
        self.limit_s = limit_s
        self.outcome: str | None = None
        self.took_s = 0.0
        self.call, self.in_call = "", False
        self.reaped = False
        self.pid = 0
        self._work, self._clock = work, clock
        self._call_limit_s, self._data_limit = call_limit_s, data_limit
        self._data = bytearray()
        self._began: Reading | None = None
        self._began_at = 0.0

    def start(self) -> None:
        """Fork it; from a process without other threads.

        Raises:
            OSError: no process or no pipe can be had.
        """
        self._calls = Calls()
        self._forked_at = self._clock()
        self.fd, write = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(write)
            raise
        if pid == 0:
            _run(self._work, write, self._calls)
        os.close(write)
        self.pid = pid

    @property
    def values(self) -> list[Any]:
        """The values that it has sent so far."""
        return [json.loads(line) for line in self._data.split(b"\n")[:-1] if line]

    def wait_for_value(self) -> Any:
        """Wait for its first value, and return it; a text that it has ended if it has sent none."""
        while not self.values:
            chunk = os.read(self.fd, 1 << 16)
            if not chunk:
                return "its process was killed"
            self._data += chunk
        return self.values[0]

    def receive(self, attentive_s: float, now: float) -> None:
        """Read its output.

        Args:
            attentive_s: this process's own time, see `device_time.Reading`.
            now: by the clock.
        """
        chunk = os.read(self.fd, 1 << 16)
        self._data += chunk
        if self._began is None and chunk:
            self._began, self._began_at = Reading(attentive_s, scheduling(self.pid)), now
        if not chunk or len(self._data) > self._data_limit:
            self._end(ENDED, now)

    def check_time(self, attentive_s: float, now: float) -> None:
        """Set the outcome if its time is over; arguments as for `receive`."""
        if self.outcome is not None:
            return
        due = self._began is not None and now - self._began_at >= self.limit_s
        call_s, _ = self._calls.latest()
        if (due and self._waited_s(attentive_s) >= self.limit_s) or (call_s or 0.0) > self._call_limit_s:
            self._end(LATE, now)
        elif now - self._forked_at >= self.limit_s + SLACK_S:
            self._end(STARVED, now)

    def _waited_s(self, attentive_s: float) -> float:
        assert self._began is not None
        return waited_s(self._began, Reading(attentive_s, scheduling(self.pid)))

    def _end(self, outcome: str, now: float) -> None:
        self.outcome = outcome
        self.took_s = now - self._forked_at
        call_s, self.call = self._calls.latest()
        self.in_call = call_s is not None

    def kill(self) -> None:
        """Kill it and what it started."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)


def run_children(
    children: Sequence[Child],
    clock: Callable[[], float] = time.monotonic,
    meanwhile: Callable[[], None] = lambda: None,
    slow: Callable[[list[Child]], None] = lambda running: None,
    slow_s: float = float("inf"),
) -> None:
    """Start them all, wait until each has an outcome, and stop them.

    Args:
        meanwhile: called once when all are started.
        slow: called once, after `slow_s` seconds, with those that still run.

    Raises:
        OSError: one cannot be started; the others are stopped.
    """
    try:
        for child in children:
            child.start()
        meanwhile()
        _collect({child.fd: child for child in children}, clock, slow, clock() + slow_s)
    finally:
        stop(children, clock)


def _collect(
    running: dict[int, Child], clock: Callable[[], float], slow: Callable[[list[Child]], None], slow_at: float
) -> None:
    attention = ObservedTime(clock, 2 * TICK_S)
    poll = select.poll()
    for fd in running:
        poll.register(fd, select.POLLIN)
    while running:
        ready = poll.poll(TICK_S * 1000)
        attentive_s, now = attention.note(), clock()
        for fd, _ in ready:
            running[fd].receive(attentive_s, now)
        for fd, child in list(running.items()):
            child.check_time(attentive_s, now)
            if child.outcome is not None:
                poll.unregister(fd)
                del running[fd]
        if running and now >= slow_at:
            slow(list(running.values()))
            slow_at = float("inf")


def stop(children: Sequence[Child], clock: Callable[[], float] = time.monotonic) -> None:
    """Kill and collect those that were started; one that hangs in the kernel stays uncollected."""
    left = [child for child in children if child.pid]
    for child in left:
        os.close(child.fd)
        child.kill()
    began = clock()
    while left := [child for child in left if not child.reaped]:
        for child in left:
            child.reaped = os.waitpid(child.pid, os.WNOHANG)[0] != 0
        since_s = clock() - began
        if since_s >= REAP_MOST_S or (since_s >= REAP_S and all(map(_hangs_in_kernel, left))):
            return
        time.sleep(0.001)


def _hangs_in_kernel(child: Child) -> bool:
    """Whether a killed process is in uninterruptible sleep: another one only waits for a CPU in order to end."""
    found = process("", child.pid)
    return found is None or found.state in ("D", "Z")


def send_bytes(fd: int, data: bytes) -> None:
    """Write all of `data`."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _run(work: Callable[[Send], None], write: int, calls: Calls) -> NoReturn:
    global _calls
    code = 1
    try:
        _calls = calls
        os.setpgid(0, 0)
        with suppress(OSError):
            die_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        # Output of libraries must not mix with the caller's.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        # A process that cannot be killed must not keep a pipe open: its reader would wait for the end.
        os.closerange(3, write)
        os.closerange(write + 1, _DESCRIPTORS)
        send_bytes(write, _BEGIN)
        work(lambda value: send_bytes(write, json.dumps(value).encode("utf-8", "backslashreplace") + b"\n"))
        sys.stderr.flush()
        code = 0
    finally:
        # Without the parent's buffers and exit handlers.
        os._exit(code)

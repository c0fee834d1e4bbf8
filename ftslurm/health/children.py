"""Forked processes that may hang, each with a time-out of its own that distinguishes hanging from being slow.

A time-out begins when the process reports that its work begins, not with its fork, and counts device time alone
(`device_time`). A process that is killed but hangs in the kernel is not waited for.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence

from ftslurm.health.device_time import Reading, scheduling, waited_s
from ftslurm.rendezvous.liveness import Attention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

ENDED, LATE, STARVED = "ended", "late", "starved"
TICK_S = 0.1
"""Interval between two checks of the running processes. A longer one is this process's own lateness."""
SLACK_S = 20.0
"""Seconds of wall time, beyond the limit, after which a process without CPU time is given up."""
REAP_S = 0.2
BEGIN = b"\n"


class Child:
    """A forked process that does one piece of work and writes the result to a pipe.

    Args:
        work: the function, with the descriptor to write to; it must write a line, possibly empty, when its time begins.
        limit_s: time-out of the work, in seconds of device time.
        clock: monotonic, seconds.

    Attributes:
        data: the bytes received so far.
        outcome: ENDED; LATE: it hangs; STARVED: it got too little CPU time. None: it still runs.
        took_s: seconds from the fork to the outcome.
        reaped: the process has ended and is collected.
    """

    def __init__(self, work: Callable[[int], None], limit_s: float, clock: Callable[[], float]) -> None:
        self.limit_s = limit_s
        self.data = bytearray()
        self.outcome: str | None = None
        self.took_s = 0.0
        self.reaped = False
        self._forked_at = clock()
        self._began: Reading | None = None
        self._began_at = 0.0
        self.fd, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run(work, write)
        os.close(write)

    def receive(self, attentive_s: float, now: float) -> bool:
        """Read its output; return False at the end.

        Args:
            attentive_s: this process's own time, see `device_time.Reading`.
            now: by the clock.
        """
        chunk = os.read(self.fd, 1 << 16)
        self.data += chunk
        if self._began is None and BEGIN in chunk:
            self._began, self._began_at = Reading(attentive_s, scheduling(self.pid)), now
        if not chunk:
            self.end(ENDED, now)
        return bool(chunk)

    def check_time(self, attentive_s: float, now: float) -> None:
        """Set the outcome if its time is over; arguments as for `receive`."""
        due = self._began is not None and now - self._began_at >= self.limit_s
        if due and self._waited_s(attentive_s) >= self.limit_s:
            self.end(LATE, now)
        elif now - self._forked_at >= self.limit_s + SLACK_S:
            self.end(STARVED, now)

    def _waited_s(self, attentive_s: float) -> float:
        assert self._began is not None
        return waited_s(self._began, Reading(attentive_s, scheduling(self.pid)))

    def end(self, outcome: str, now: float) -> None:
        """Set the outcome."""
        self.outcome = outcome
        self.took_s = now - self._forked_at

    def kill(self) -> None:
        """Kill it and what it started."""
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def collect(
    children: Sequence[Child],
    clock: Callable[[], float] = time.monotonic,
    slow: Callable[[list[Child]], None] = lambda running: None,
    slow_s: float = float("inf"),
) -> None:
    """Wait until each has an outcome, then stop them.

    Args:
        slow: called once, after `slow_s` seconds, with those that still run.
    """
    began = clock()
    attention = Attention(clock, 2 * TICK_S)
    poll = select.poll()
    running = {child.fd: child for child in children}
    for fd in running:
        poll.register(fd, select.POLLIN)
    try:
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
            if running and now - began >= slow_s:
                slow(list(running.values()))
                slow_s = float("inf")
    finally:
        stop(children, clock)


def stop(children: Sequence[Child], clock: Callable[[], float] = time.monotonic) -> None:
    """Kill and collect them; one that hangs in the kernel stays uncollected."""
    for child in children:
        os.close(child.fd)
        child.kill()
    deadline = clock() + REAP_S
    while left := [child for child in children if not child.reaped]:
        for child in left:
            child.reaped = os.waitpid(child.pid, os.WNOHANG)[0] != 0
        if clock() >= deadline:
            return
        time.sleep(0.001)


def send(fd: int, data: bytes) -> None:
    """Write all of `data`."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _run(work: Callable[[int], None], write: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        # Output of libraries must not mix with the caller's.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        work(write)
        code = 0
    finally:
        # Without the parent's buffers and exit handlers.
        os._exit(code)

"""Limit of the time for which a command waits for a filesystem that does not answer.

A call on a hanging filesystem (a dead NFS server, a FUSE daemon that is stuck) does not return, and its thread cannot
give it up. Another thread observes the reader: in a call that waits, a thread uses no CPU time, and in a read that
progresses slowly it does with each file. The process's end is not delayed by the call, which the kernel lets be killed.
"""

from __future__ import annotations

import os
import threading
import time

from ftslurm.terminal import print_error
from ftslurm.text import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

LIMIT_S = 8.0
"""Below it, a stall may be a fail-over that ends; Slurm's queries are not counted (`paused`)."""
TICK_S = 0.25
EXIT_HANGS = 1


class AnswerLimit:
    """While it is entered, the thread that entered it is observed; at the limit the process ends with one line.

    Args:
        command: the command's name, for the line.
        place: the path that is read, for the line.
        patient: print the line, once for each hang, and wait on: for a command that has already shown something.
        end: ends the process with an exit code.
        limit_s: seconds without progress.
    """

    def __init__(
        self,
        command: str,
        place: object,
        *,
        patient: bool = False,
        end: Callable[[int], object] = os._exit,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.patient = patient
        self._line = f"ftslurm {command}: {place} has not answered for {duration(limit_s)}: its filesystem hangs"
        self._end = end
        self._limit_s = limit_s
        self._over = threading.Event()
        self._pauses = 0

    def __enter__(self) -> AnswerLimit:
        observed = time.pthread_getcpuclockid(threading.get_ident())
        threading.Thread(target=self._observe, args=(observed,), name="answer-limit", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def paused(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return `function` as one that may wait for something else than the filesystem."""

        def call(*arguments: object) -> T:
            self._pauses += 1
            try:
                return function(*arguments)
            finally:
                self._pauses -= 1

        return call

    def _observe(self, observed: int) -> None:
        # Ticks, not time: while this process is stopped or starved, neither thread runs.
        for _ in silences(lambda: self._used(observed), self._limit_s, lambda: not self._over.wait(TICK_S)):
            go_on = "; waiting" if self.patient else "; try later, or find out why: `ftslurm doctor` there, its server"
            print_error(self._line + go_on)
            if not self.patient:
                self._end(EXIT_HANGS)

    def _used(self, observed: int) -> object:
        return object() if self._pauses else time.clock_gettime_ns(observed)


def silences(progress: Callable[[], object], limit_s: float, tick: Callable[[], bool]) -> Iterator[int]:
    """Yield whenever `progress` has returned the same value for `limit_s` seconds of ticks, once until it changes.

    Args:
        progress: any value that changes with progress.
        limit_s: seconds.
        tick: waits for `TICK_S` seconds; False: stop.
    """
    last, ticks = progress(), 0
    while tick():
        now = progress()
        ticks = ticks + 1 if now == last else 0
        last = now
        if ticks * TICK_S == limit_s - limit_s % TICK_S:
            yield ticks

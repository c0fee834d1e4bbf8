"""The components of a stop: the signals to the ranks, their stop pages, and what announces the end of the job."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence

from ftslurm.agent.job_watch import JobWatch
from ftslurm.agent.stop_pages import StopPages
from ftslurm.agent.workers import Workers
from ftslurm.records.state import State

SAVING_S = 0.1
"""Interval at which a rank that is saving is checked, in seconds."""


class StopSignals:
    """Sends the signals of a stop, as each rank can take them.

    A rank in the section "checkpoint" gets its SIGTERM when the section is over: what it saves may be the last thing of
    value, and the SIGKILL after the grace is not delayed. One that has left by `should_stop` gets none. A rank whose
    SIGTERM does nothing but make `should_stop` true is sent SIGKILL in its place, since without that it would have
    ended at once, too, also while it waits in a library.

    Args:
        pages: the ranks' stop pages.
        workers: the agent's.
        monotonic: clock, seconds.
        delayed: whether the ranks' stacks are being collected, which a stop waits for, a bounded time.

    Attributes:
        deadline: the monotonic second at which `turn` is due; None: no rank is saving.
    """

    def __init__(
        self,
        pages: StopPages,
        workers: Workers,
        monotonic: Callable[[], float],
        delayed: Callable[[], bool | None] = lambda: False,
    ) -> None:
        self._pages = pages
        self._workers = workers
        self._monotonic = monotonic
        self._delayed = delayed
        self._held: set[int] = set()
        self._saving: set[int] = set()
        self.deadline: float | None = None

    def send(self, local_ranks: Sequence[int], number: int) -> None:
        """Send a signal to the main processes of these workers."""
        if number == signal.SIGTERM and self._delayed():
            self._held |= set(local_ranks)
            self.deadline = self._monotonic() + SAVING_S
            return
        if number == signal.SIGTERM:
            self._saving = self._pages.saving() & set(local_ranks)
            self._terminate(set(local_ranks) - self._saving)
            self.deadline = self._monotonic() + SAVING_S if self._saving else None
            return
        self._workers.send(local_ranks, number)
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            self._pages.on_signal_passed_on()

    def turn(self) -> None:
        """Send SIGTERM to the ranks that have saved meanwhile, or whose stacks are collected."""
        if self._held:
            if self._delayed():
                self.deadline = self._monotonic() + SAVING_S
                return
            held = tuple(sorted(self._held))
            self._held.clear()
            self.send(held, signal.SIGTERM)
            return
        if self.deadline is None or self._monotonic() < self.deadline:
            return
        done = self._saving - self._pages.saving()
        self._saving -= done
        self._terminate(done)
        self.deadline = self._monotonic() + SAVING_S if self._saving else None

    def clear(self) -> None:
        """Forget the round."""
        self._saving.clear()
        self._held.clear()
        self.deadline = None

    def _terminate(self, local_ranks: set[int]) -> None:
        if not local_ranks:
            return
        catching = self._pages.catching() & local_ranks
        self._workers.send(tuple(local_ranks - catching), signal.SIGTERM)
        self._workers.send(tuple(catching), signal.SIGKILL)


class StopParts:
    """See each class.

    Args:
        pages, job_watch: contained already.
    """

    def __init__(self, pages: StopPages, signals: StopSignals, job_watch: JobWatch) -> None:
        self.pages = pages
        self.signals = signals
        self.job_watch = job_watch

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `events` is due."""
        moments = (self.pages.deadline, self.signals.deadline, self.job_watch.deadline)
        return min((moment for moment in moments if moment is not None), default=None)

    def events(self, now: float, has_output: bool, sampled: bool) -> Iterator[object]:
        """Do what is due, and yield the events.

        Args:
            now: monotonic seconds.
            has_output: whether the job watch's descriptor is readable.
            sampled: whether the ranks' progress was just sampled: their stop pages are read as often.
        """
        self.signals.turn()
        if sampled or (self.pages.deadline is not None and self.pages.deadline <= now):
            signalled = self.pages.signalled()
            if signalled is not None:
                yield signalled
        if has_output or (self.job_watch.deadline is not None and self.job_watch.deadline <= now):
            yield from self.job_watch.poll()

    def on_state(self, state: State, coordinating: bool, now: float, now_ns: int) -> None:
        """The newest state was read; see `Effects.on_state`."""
        self.job_watch.on_state(coordinating, state.stop is not None)
        end_ns = state.job_end.end_ns if state.job_end is not None else None
        self.pages.set_job_end(None if end_ns is None else now + (end_ns - now_ns) / 1e9)

    def forget_round(self) -> None:
        """Forget the round's workers."""
        self.pages.clear()
        self.signals.clear()

"""Signals that stop the workers of a round, as each rank can take them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from ftslurm.agent.stop_pages import StopPages
from ftslurm.agent.workers import Workers

SAVING_S = 0.1
"""Interval at which a rank that is saving is checked, in seconds."""


class StopSignals:
    """Sends the signals of a stop.

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

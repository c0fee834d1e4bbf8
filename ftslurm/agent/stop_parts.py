"""The components of an orderly stop: the ranks' stop pages, the signals, and what announces the end of the job."""

from __future__ import annotations

from collections.abc import Iterator

from ftslurm.agent.job_watch import JobWatch
from ftslurm.agent.stop_pages import StopPages
from ftslurm.agent.stop_signals import StopSignals
from ftslurm.records.state import State


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

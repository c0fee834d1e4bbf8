"""The stop pages of this node's ranks: by them the agent announces a stop and proposes a step, and sees the ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from mmap import mmap

from ftslurm.agent.workers import Worker, Workers
from ftslurm.dataclasses import dataclass, replace
from ftslurm.monitor import heartbeat_page, stop_page
from ftslurm.monitor.stop_page import AgentSide, StopPage
from ftslurm.records.state import EXIT_INTERRUPTED
from ftslurm.records.stop import ANY_STEP, Stop, StopVote
from ftslurm.text import duration

CHECKPOINT = "checkpoint"
"""The section in which a rank saves."""
AFTER_SIGNAL_S = 0.1
"""Seconds until the pages are read after a signal was passed on to the ranks, which may take it as a request to stop.
"""


@dataclass(frozen=True)
class StopSignalled:
    """A signal that reached one rank asks for a stop."""

    rank: int
    signal: str


class StopPages:
    """The stop pages of the current round's workers.

    Args:
        workers: the agent's.
        monotonic: clock, seconds.
        sleep: waits some seconds.

    Attributes:
        deadline: the monotonic second at which `signalled` is due; None: when the ranks' progress is sampled.
    """

    def __init__(
        self, workers: Workers, monotonic: Callable[[], float], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._workers = workers
        self._monotonic = monotonic
        self._sleep = sleep
        self._sides: dict[int, AgentSide] = {}
        self._calls: dict[int, int] = {}
        self._opens: dict[int, int] = {}
        self._requested_at: float | None = None
        self._answer: StopVote | None = None
        self._signalled = False
        self._job_end_s: float | None = None
        self.deadline: float | None = None

    def stoppable(self) -> int:
        """Return the number of ranks that take notice of a stop."""
        pages = (stop_page.read(worker.record_dir) for worker in self._alive())
        return sum(page is not None and page.calls > 0 for page in pages)

    def signalled(self) -> StopSignalled | None:
        """Return a signal that has reached one rank as a request to stop, once in a round."""
        self.deadline = None
        for worker in self._alive() if not self._signalled else ():
            page = stop_page.read(worker.record_dir)
            if page is not None and page.signal:
                self._signalled = True
                return StopSignalled(worker.rank, _signal_name(page.signal))
        return None

    def on_signal_passed_on(self) -> None:
        """A signal was passed on to the ranks."""
        self.deadline = self._monotonic() + AFTER_SIGNAL_S

    def set_job_end(self, at_s: float | None) -> None:
        """Tell the ranks at which monotonic second the job ends."""
        if at_s == self._job_end_s:
            return
        self._job_end_s = at_s
        for worker in self._alive():
            self._side(worker).set_job_end(_nanoseconds(at_s))

    def begin(self, worker: Worker) -> None:
        """A worker has started."""
        if self._job_end_s is not None:
            self._side(worker).set_job_end(_nanoseconds(self._job_end_s))

    def follow(self, stop: Stop, kill_at: float | None) -> StopVote:
        """Pass the stop as it stands on to the ranks; return this node's answer.

        Args:
            kill_at: the monotonic second at which the ranks are killed; None: unknown.
        """
        if self._requested_at is None:
            self._requested_at = self._monotonic()
            self._calls = {worker.local_rank: _calls(worker) for worker in self._workers.all}
            self._opens = {worker.local_rank: _checkpoints(worker)[0] for worker in self._workers.all}
        step = ANY_STEP if stop.step is None else stop.step
        for worker in self._alive():
            side = self._side(worker)
            if stop.proposal:
                side.propose(stop.proposal, step)
            if stop.committed:
                side.commit(stop.proposal)
            _write_reason(worker, stop.reason)
            side.request(_nanoseconds(kill_at))
        if stop.proposal and not stop.committed:
            self._sleep(stop_page.SETTLE_S)
        return self._vote(stop)

    def _vote(self, stop: Stop) -> StopVote:
        pages = [(worker, stop_page.read(worker.record_dir)) for worker in self._workers.all]
        known = [(worker, page) for worker, page in pages if page is not None]
        saved = tuple(worker.rank for worker, _ in known if self._has_saved(worker))
        ranks = {worker.rank: (page, worker.ended_ns is None) for worker, page in known}
        now_ns = int(self._monotonic() * 1e9)
        late, saving = self._late(known)
        self._answer = replace(stop_page.vote(stop, ranks, now_ns, self._answer, saved), late=late, saving=saving)
        return self._answer

    def _has_saved(self, worker: Worker) -> bool:
        if worker.ended_ns is not None and worker.exit_code not in (0, EXIT_INTERRUPTED):
            # An exception closes the section, too.
            return False
        opens, is_open = _checkpoints(worker)
        return opens > self._opens.get(worker.local_rank, 0) and not is_open

    def _late(self, pages: Sequence[tuple[Worker, StopPage]]) -> tuple[str | None, bool]:
        """Describe the rank that holds up the stop: one that has not called `should_stop` since, the lowest by step.

        Returns:
            None: there is none; and whether it saves.
        """
        waiting = [
            (page.left, page.calls > self._calls.get(worker.local_rank, 0), page.step or 0, worker.rank, worker, page)
            for worker, page in pages
            if worker.ended_ns is None
        ]
        if not waiting or self._requested_at is None:
            return None, False
        left, called, _, _, worker, last = min(waiting, key=lambda one: one[:4])
        since_s = self._monotonic() - self._requested_at
        page = heartbeat_page.read(worker.record_dir)
        open_sections = [one for one in page.sections if one.opened_ns] if page is not None else []
        newest = max(open_sections, key=lambda one: one.opened_ns, default=None)
        saves = newest is not None and newest.name == CHECKPOINT
        where = f" was in section {newest.name}" if newest is not None else " had not ended"
        if last.trains_on:
            where = f" trained on to step {last.step}, although should_stop had returned True at step {last.left_step}"
        if saves:
            polled = ", its save not finished"
        elif left or called:
            polled = ""
        else:
            polled = ", not polled since" if last.calls else ", should_stop never called"
        return f"stop requested {duration(since_s)} ago{polled}: rank {worker.rank}{where}", saves

    def saving(self) -> set[int]:
        """Return the local ranks that are in the section "checkpoint", or have left by `should_stop`."""
        return {worker.local_rank for worker in self._alive() if _checkpoints(worker)[1] or _has_left(worker)}

    def catching(self) -> set[int]:
        """Return the local ranks on which SIGTERM has no other effect than that `should_stop` returns True."""
        pages = ((worker, stop_page.read(worker.record_dir)) for worker in self._alive())
        return {worker.local_rank for worker, page in pages if page is not None and page.catches_term}

    def clear(self) -> None:
        """Forget the round."""
        self._sides.clear()
        self._opens.clear()
        self._requested_at = self.deadline = None
        self._signalled = False

    def _alive(self) -> list[Worker]:
        return [worker for worker in self._workers.all if worker.ended_ns is None]

    def _side(self, worker: Worker) -> AgentSide:
        side = self._sides.get(worker.local_rank)
        if side is None:
            fd = os.open(os.path.join(worker.record_dir, stop_page.NAME), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                memory = mmap(fd, stop_page.SIZE)
            finally:
                os.close(fd)
            side = self._sides[worker.local_rank] = AgentSide(memoryview(memory).cast("q"))
        return side


def _calls(worker: Worker) -> int:
    page = stop_page.read(worker.record_dir)
    return page.calls if page is not None else 0


def _has_left(worker: Worker) -> bool:
    page = stop_page.read(worker.record_dir)
    return page is not None and page.left


def _checkpoints(worker: Worker) -> tuple[int, bool]:
    """Return how often the worker has opened the section "checkpoint", and whether it is open."""
    page = heartbeat_page.read(worker.record_dir)
    for section in page.sections if page is not None else ():
        if section.name == CHECKPOINT:
            return section.opens, section.opened_ns > 0
    return 0, False


def _write_reason(worker: Worker, reason: str) -> None:
    path = os.path.join(worker.record_dir, stop_page.REASON)
    temporary = f"{path}.new"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(reason)
        os.replace(temporary, path)
    except OSError:
        # A full node-local directory: the rank learns that it should stop, not why.
        pass


def _nanoseconds(at_s: float | None) -> int:
    return 0 if at_s is None else int(at_s * 1e9)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""Ranks that train step by step and call `ftslurm.should_stop`, in virtual time: the rank's side of the stop page."""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.stop_page import WAIT_S, StopPage, vote
from ftslurm.records.stop import ANY_STEP, Stop, StopVote
from simulation.host import Host, VirtualWorker


@dataclass
class Training:
    """The steps of one rank.

    Attributes:
        began_at: true time of step 0, less the time that it has waited.
        step_s: seconds of a step.
        stride: it calls `should_stop` with each such step.
        waits: the proposal for whose decision it waits, since `waits_since`; 0: it trains.
        left_step: the step at which it left; None: it has not.
    """

    began_at: float
    step_s: float
    stride: int = 1
    waits: int = 0
    waits_since: float = 0.0
    left_step: int | None = None

    def last_call(self, now: float) -> int | None:
        """Return the step of its last call by `now`; None before the first."""
        at = self.waits_since if self.waits else now
        steps = int((at - self.began_at) / self.step_s + 1e-6)
        return None if at < self.began_at else steps - steps % self.stride

    def reaches(self, step: int, now: float) -> float:
        """Return when it calls with that step or the next higher one, not before its next call."""
        last = self.last_call(now)
        following = 0 if last is None else last + self.stride
        wanted = max(following, -(-step // self.stride) * self.stride)
        return self.began_at + wanted * self.step_s


class VirtualStops:
    """The orderly stop of one agent's workers.

    Args:
        host: the cluster.
        leave: a rank leaves: its worker, the step, and whether it has waited in vain for the decision.
        resume: a rank trains on, after it has waited so many seconds.
        lives: whether a worker still runs.
    """

    def __init__(
        self,
        host: Host,
        leave: Callable[[VirtualWorker, int, bool], None],
        resume: Callable[[VirtualWorker, float], None],
        lives: Callable[[VirtualWorker], bool],
    ) -> None:
        self._host = host
        self._leave = leave
        self._resume = resume
        self._lives = lives
        self._workers: list[VirtualWorker] = []
        self._stop: Stop | None = None
        self._answer: StopVote | None = None
        self._kill_at: float | None = None

    def begin(self, workers: list[VirtualWorker]) -> None:
        """A round begins."""
        self._workers, self._stop = workers, None

    def first_call_s(self) -> float | None:
        """Return the seconds until the first rank calls `should_stop`; None: none ever does."""
        times = [worker.training.began_at for worker in self._workers if worker.training is not None]
        return max(0.0, min(times) - self._host.now()) if times else None

    def stoppable(self) -> bool:
        """See `Effects`."""
        return any(page.calls for page, alive in self._pages() if alive)

    def follow(self, stop: Stop, kill_at: float | None) -> StopVote:
        """See `Effects`; ``kill_at`` in true time."""
        self._stop, self._kill_at = stop, kill_at
        for worker in self._workers:
            if stop.proposal and self._trains(worker):
                self._pass_on(worker, stop)
        pages = self._pages()
        now_ns = round((self._host.now() + 1e6) * 1e9)
        saved = tuple(rank for rank, (page, _) in enumerate(pages) if page.left)
        self._answer = vote(stop, dict(enumerate(pages)), now_ns, self._answer, saved)
        return self._answer

    def _trains(self, worker: VirtualWorker) -> bool:
        return worker.training is not None and worker.training.left_step is None and self._lives(worker)

    def _pass_on(self, worker: VirtualWorker, stop: Stop) -> None:
        training, now = worker.training, self._host.now()
        assert training is not None
        step = ANY_STEP if stop.step is None else stop.step
        if training.waits and training.waits != stop.proposal:
            last = training.last_call(now)
            if last is not None and last >= step:
                training.waits = stop.proposal  # It reads the new proposal, which its step has reached, too.
            else:
                waited_s = now - training.waits_since
                training.began_at += waited_s
                training.waits = 0
                self._resume(worker, waited_s)
        if training.waits:
            if stop.committed:
                self._leaves(worker, in_vain=False)
            return
        at = training.reaches(step, now)
        self._host.after(at - now, lambda: self._reached(worker, stop.proposal))

    def _reached(self, worker: VirtualWorker, proposal: int) -> None:
        training, stop, now = worker.training, self._stop, self._host.now()
        if training is None or stop is None or stop.proposal != proposal or training.waits or not self._trains(worker):
            return
        training.waits, training.waits_since = proposal, now
        worker.turn += 1
        if stop.committed:
            self._leaves(worker, in_vain=False)
            return
        longest_s = WAIT_S if self._kill_at is None else min(WAIT_S, max(0.0, self._kill_at - now) / 2)
        self._host.after(longest_s, lambda: self._waited(worker, now))

    def _waited(self, worker: VirtualWorker, since: float) -> None:
        training = worker.training
        assert training is not None
        if training.waits and training.waits_since == since and self._trains(worker):
            self._leaves(worker, in_vain=True)

    def _leaves(self, worker: VirtualWorker, in_vain: bool) -> None:
        training = worker.training
        assert training is not None
        step = training.last_call(self._host.now())
        training.left_step = 0 if step is None else step
        self._leave(worker, training.left_step, in_vain)

    def _pages(self) -> list[tuple[StopPage, bool]]:
        now = self._host.now()
        pages = []
        for worker in self._workers:
            training = worker.training
            if training is None:
                pages.append((StopPage(0, None, 0, 0, 0, False, None, False), self._lives(worker)))
                continue
            step = training.left_step if training.left_step is not None else training.last_call(now)
            left = training.left_step is not None
            page = StopPage(
                calls=0 if step is None else step // training.stride + 1,
                step=step,
                first_ns=round((training.began_at + 1e6) * 1e9),
                signal=0,
                waits=training.waits,
                left=left,
                left_step=training.left_step,
                catches_term=False,
            )
            pages.append((page, self._lives(worker)))
        return pages

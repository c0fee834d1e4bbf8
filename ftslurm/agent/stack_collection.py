"""Stacks of all ranks of this node when a rank of the round hangs, or the job is stopped from outside.

Collected by the loop, published by the courier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent.workers import Worker
from ftslurm.kernel import descendants
from ftslurm.monitor.stacks import TIMEOUT_S, Collector, Target, encode

STOP_S = 1.0
"""Time-out of a collection at a stop from outside, in seconds."""
DELAY_S = 0.5
"""Seconds by which it delays the ranks' SIGTERM at most: the ranks need their grace."""


class StackCollection:
    """Collects the stacks of some workers, once.

    Args:
        round_: the workers' round.
        workers: those that are alive.
        why: description of the expiry by local rank, for those that hang.
        monotonic: clock, seconds.
        stop: why the workers are stopped from outside; None: one of them hangs.

    Attributes:
        still: by local rank the seconds without a movement, and the longest such time before; of a stop.
        steps: by local rank its last training step when the collection began.
    """

    def __init__(
        self,
        round_: int,
        workers: Sequence[Worker],
        why: Mapping[int, str],
        monotonic: Callable[[], float],
        stop: str | None = None,
    ) -> None:
        self.round = round_
        self.workers = tuple(workers)
        self.why = dict(why)
        self.stop = stop
        self.still: dict[int, tuple[float, float]] = {}
        self.steps: dict[int, int] = {}
        self.done = False
        began_s = monotonic()
        self._until_s = began_s + STOP_S
        self._delays_until_s = began_s + DELAY_S
        self._monotonic = monotonic
        self._collector = Collector(
            [
                Target(one.local_rank, *one.rank_process, one.record_dir, native=one.local_rank in self.why)
                for one in self.workers
            ],
            descendants,
            timeout_s=TIMEOUT_S if stop is None else STOP_S,
        )
        self._collector.start(monotonic())

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `poll` is due."""
        if self.done:
            return None
        return self._collector.deadline if self._collector.deadline is not None else self._until_s

    @property
    def delays_stop(self) -> bool:
        """Whether ranks that are stopped from outside get their SIGTERM later: the stacks are those before it."""
        return self.stop is not None and not self.done and self._monotonic() < self._delays_until_s

    def poll(self, complete: bool = True) -> bool:
        """Continue; return True once, when all stacks are collected or the time is over.

        Args:
            complete: whether nothing else is awaited, as when the ranks printed last.
        """
        now = self._monotonic()
        if self.done or not self._collector.poll(now):
            return False
        if not complete and self.stop is not None and now < self._until_s:
            return False
        self.close()
        return True

    def await_no_more(self) -> None:
        """Nothing but the stacks is awaited any more: `poll` is due as soon as these are collected."""
        self._until_s = self._monotonic()

    def close(self) -> None:
        """Stop collecting."""
        self.done = True
        self._collector.close()

    def files(self, node: str, now_ns: int) -> dict[int, tuple[Worker, bytes]]:
        """Return each worker's `stacks.txt` so far, by local rank."""
        results = self._collector.result()
        return {
            worker.local_rank: (
                worker,
                encode(
                    results[worker.local_rank],
                    rank=worker.rank,
                    node=node,
                    time_ns=now_ns,
                    why=self.why.get(worker.local_rank),
                    stop=self.stop,
                    still=self.still.get(worker.local_rank),
                    step=self.steps.get(worker.local_rank),
                ),
            )
            for worker in self.workers
        }

    def text(self, local_rank: int) -> str:
        """Return that worker's stacks alone."""
        return self._collector.result()[local_rank].text

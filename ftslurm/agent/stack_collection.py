"""Stacks of all ranks of this node when a rank of the round hangs: collected by the loop, published by the courier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent.workers import Worker
from ftslurm.kernel import descendants
from ftslurm.monitor.stacks import Collector, Target, encode


class StackCollection:
    """Collects the stacks of some workers, once.

    Args:
        round_: the workers' round.
        workers: those that are alive.
        why: description of the expiry by local rank, for those that hang.
        monotonic: clock, seconds.
    """

    def __init__(
        self, round_: int, workers: Sequence[Worker], why: Mapping[int, str], monotonic: Callable[[], float]
    ) -> None:
        self.round = round_
        self.workers = tuple(workers)
        self.why = dict(why)
        self.done = False
        self._monotonic = monotonic
        self._collector = Collector(
            [
                Target(one.local_rank, one.pid, one.pidfd, one.record_dir, native=one.local_rank in self.why)
                for one in self.workers
            ],
            descendants,
        )
        self._collector.start(monotonic())

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `poll` is due."""
        return None if self.done else self._collector.deadline

    def poll(self) -> bool:
        """Continue; return True once, when all stacks are collected or the time is over."""
        if self.done or not self._collector.poll(self._monotonic()):
            return False
        self.close()
        return True

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
                ),
            )
            for worker in self.workers
        }

    def text(self, local_rank: int) -> str:
        """Return that worker's stacks alone."""
        return self._collector.result()[local_rank].text

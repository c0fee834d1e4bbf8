"""Stacks and records of collectives of this node's ranks: when a rank hangs, before a stop, or on request.

Collected by the loop, published by the courier. The records come first: a rank gives them without taking notice, while
the signal for its stacks interrupts what it waits in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent.workers import Worker
from ftslurm.kernel import descendants
from ftslurm.monitor import process_state
from ftslurm.monitor.flight_client import FETCH_S, Answer, FlightCollector
from ftslurm.monitor.stacks import TIMEOUT_S, Collector, Stacks, Target, encode
from ftslurm.records.flight import NONE, SOCKET, FlightRecord

STOP_S = 1.0
"""Time-out of a collection at a stop from outside, in seconds."""
DELAY_S, DELAY_PEERS_S = 0.75, 1.5
"""Seconds by which it delays the ranks' SIGTERM at most: if they need their grace, and if only a restart waits."""
FETCH_STOP_S = 0.4
"""Seconds of the shorter ones that ranks have for the records of their collectives: a full one takes a core 0.03 s."""
READ_S = 5.0
"""Seconds after which records that are not read yet are left out: 64 full ones take 1 s."""
POLL_S = 0.005
_STOPPED = Answer(trouble="stopped by a signal")


class StackCollection:
    """Collects the stacks and the records of collectives of some workers, once.

    Args:
        round_: the workers' round.
        workers: those that are alive.
        why: description of the expiry by local rank, for those that hang.
        monotonic: clock, seconds.
        stop: why the workers are stopped from outside; None: one of them hangs.
        records: collect the records, too.
        after, urgent: see `CollectStacks`.

    Attributes:
        still: by local rank the seconds without a movement, and the longest such time before; of a hang without the
            latter.
        steps: by local rank its last training step when the collection began.
    """

    def __init__(
        self,
        round_: int,
        workers: Sequence[Worker],
        why: Mapping[int, str],
        monotonic: Callable[[], float],
        stop: str | None = None,
        records: bool = True,
        after: str | None = None,
        urgent: bool = True,
    ) -> None:
        self.round = round_
        self.workers = tuple(workers)
        self.why = dict(why)
        self.stop = stop
        self.still: dict[int, tuple[float, float]] = {}
        self.steps: dict[int, int] = {}
        self.done = False
        self._after = after
        began_s = self._began_s = monotonic()
        self._until_s = began_s + STOP_S
        self._delays_until_s = began_s + (DELAY_S if urgent else DELAY_PEERS_S)
        self._read_until_s = began_s + READ_S
        self._monotonic = monotonic
        self._timeout_s = TIMEOUT_S if stop is None else STOP_S
        self._collected = False
        self._collector: Collector | None = None
        self._flight: FlightCollector | None = None
        if records:
            # A stopped process cannot answer; waiting for it, its stop may end before it is seen.
            directories = {one.local_rank: one.record_dir for one in self.workers if not _is_stopped(one)}
            self._flight = FlightCollector(directories, FETCH_STOP_S if stop and urgent else FETCH_S, monotonic)
            self._flight.start()
        self._advance()

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `poll` is due."""
        if self.done:
            return None
        if self._collector is None or (self._collected and not self._is_read()):
            return self._monotonic() + POLL_S
        return self._collector.deadline if self._collector.deadline is not None else self._until_s

    @property
    def delays_stop(self) -> bool:
        """Whether ranks that are stopped from outside get their SIGTERM later: what is collected is from before it."""
        return self.stop is not None and not self._collected and self._monotonic() < self._delays_until_s

    def poll(self, complete: bool = True) -> bool:
        """Continue; return True once, when all stacks are collected or the time is over.

        Args:
            complete: whether nothing else is awaited, as when the ranks printed last.
        """
        if self.done or not self._advance() or not self._is_read():
            return False
        if not complete and self.stop is not None and self._monotonic() < self._until_s:
            return False
        self.close()
        return True

    def _advance(self) -> bool:
        """Continue; return whether the stacks are collected. No signal is sent before the records have been fetched."""
        now = self._monotonic()
        if self._collector is None:
            if self._flight is not None and not self._flight.fetched:
                return False
            self._collector = Collector(list(map(self._target, self.workers)), descendants, timeout_s=self._timeout_s)
            self._collector.start(now)
        self._collected = self._collector.poll(now)
        return self._collected

    def _target(self, worker: Worker) -> Target:
        # The descriptor of a worker that has ended is closed, and its number may be another process's.
        pid, pidfd = worker.rank_process if worker.ended_ns is None else (worker.pid, -1)
        native = worker.local_rank in self.why
        return Target(worker.local_rank, pid, pidfd, worker.record_dir, native=native)

    def _is_read(self) -> bool:
        return self._flight is None or self._flight.done or self._monotonic() >= self._read_until_s

    def await_no_more(self) -> None:
        """Nothing but the stacks is awaited any more: `poll` is due as soon as these are collected."""
        self._until_s = self._monotonic()

    def close(self) -> None:
        """Stop collecting."""
        self.done = self._collected = True
        if self._collector is not None:
            self._collector.close()
        if self._flight is not None:
            self._flight.close()

    def files(self, node: str, now_ns: int) -> dict[int, tuple[Worker, bytes]]:
        """Return each worker's `stacks.txt` so far, by local rank."""
        results = self._stacks()
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
        return self._stacks()[local_rank].text

    def records(self, run_id: str, node: str, now_ns: int) -> dict[int, tuple[Worker, FlightRecord]]:
        """Return each worker's record of its collectives, by local rank; empty if they were not to be collected."""
        if self._flight is None:
            return {}
        taken_ns = now_ns - round((self._monotonic() - self._began_s) * 1e9)
        answers = self._flight.answers()
        return {
            worker.local_rank: (
                worker,
                FlightRecord(
                    run=run_id,
                    round=self.round,
                    node=node,
                    rank=worker.rank,
                    time_ns=taken_ns,
                    source=NONE if answer.trace is None else SOCKET,
                    trouble=answer.trouble,
                    torch=answer.torch,
                    trace=answer.trace,
                    step=self.steps.get(worker.local_rank),
                    took_s=answer.took_s,
                    after=self._after,
                ),
            )
            for worker in self.workers
            for answer in (answers.get(worker.local_rank, _STOPPED),)
        }

    def _stacks(self) -> dict[int, Stacks]:
        if self._collector is None:
            return {one.local_rank: Stacks(one.local_rank, problem="not collected in time") for one in self.workers}
        return self._collector.result()


def _is_stopped(worker: Worker) -> bool:
    """Whether a worker's process is stopped by a signal; a debugger's stop is short."""
    state = process_state.status(f"/proc/{worker.rank_process[0]}") if worker.ended_ns is None else None
    return state is not None and process_state.letter(state) == "T"

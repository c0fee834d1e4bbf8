"""The agent loop's view of this node's ranks: hangs, stack collection, vitals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ftslurm.agent.host_resources import HostResources
from ftslurm.agent.journal import Journal
from ftslurm.agent.rank_monitor import RankMonitor
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.stack_collection import StackCollection
from ftslurm.agent.workers import Worker
from ftslurm.dataclasses import dataclass
from ftslurm.monitor.watchdog import TIMER, Expiry
from ftslurm.rendezvous.node_record import NodeRecord, Vitals

SIZES = "sizes"
SIZES_EVERY_S, SIZES_SHARE = 0.1, 0.2
"""Log sizes are read every fifth of --hang-timeout, so that a rank that only prints is recognised in time; but at most
every 0.1 s."""


@dataclass(frozen=True)
class Message:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class HungRank:
    """A rank exceeded a time-out; see `AgentMachine.on_hang`. ``since_s``: monotonic second of its last progress."""

    local_rank: int
    what: str
    number: int
    step: int | None
    since_s: float


@dataclass(frozen=True)
class StacksCollected:
    """The requested stacks are collected."""


@dataclass(frozen=True)
class VitalsChanged:
    """New vitals of the ranks."""

    vitals: Vitals


RankEvent = Message | HungRank | StacksCollected | VitalsChanged


class RankWatch:
    """Watches the workers of this node.

    Args:
        settings: the agent's.
        monitor: finds expired time-outs.
        journal: writes the stacks.
        host_resources: sampled as often as the vitals.
        send: runs a task where the filesystem may hang; its result is for `on_log_sizes`.
        monotonic: clock, seconds.

    Attributes:
        fd: becomes readable when a worker sends a message.
    """

    def __init__(
        self,
        settings: AgentSettings,
        monitor: RankMonitor,
        journal: Journal,
        host_resources: HostResources,
        send: Callable[[Callable[[], object], str], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._hang_signal = settings.hang_signal
        self._monitor = monitor
        self._journal = journal
        self._host_resources = host_resources
        self._send = send
        self._monotonic = monotonic
        self._workers: list[Worker] = []
        self._logs: dict[int, tuple[str, ...]] = {}
        self._hung: dict[int, str] = {}
        self._collection: StackCollection | None = None
        self._vitals_at: float | None = None
        sizes_s = max(SIZES_EVERY_S, SIZES_SHARE * (settings.timeouts.hang_s or math.inf))
        self._vitals_s = min(settings.vitals_s, sizes_s)
        self.fd = monitor.pipe.fd

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `turn` is due."""
        collection = self._collection.deadline if self._collection is not None else None
        moments = (self._monitor.deadline, self._vitals_at, collection)
        return min((moment for moment in moments if moment is not None), default=None)

    def begin(self, worker: Worker, logs: tuple[str, ...]) -> None:
        """A worker has started, whose output goes to these files."""
        self._monitor.begin(worker)
        self._workers.append(worker)
        self._logs[worker.local_rank] = logs
        self._vitals_at = self._monotonic() + self._vitals_s

    def end(self, worker: Worker) -> None:
        """A worker has ended."""
        self._monitor.end(worker)

    def collect_stacks(self, round_: int, local_ranks: Sequence[int]) -> None:
        """Collect the stacks of those workers that are alive."""
        alive = [one for one in self._workers if one.local_rank in local_ranks and one.ended_ns is None]
        self._collection = StackCollection(round_, alive, self._hung, self._monotonic)

    def forgive(self) -> None:
        """This process was suspended, and the ranks with it: that time does not count."""
        self._monitor.forgive()

    def on_log_sizes(self, sizes: object) -> None:
        """Handle the result of the task that reads the log sizes."""
        self._monitor.on_sizes(sizes)

    def turn(self, readable: bool, record: NodeRecord) -> Iterator[RankEvent]:
        """Do what is due and yield the events; the caller handles each one before the next is computed.

        Args:
            readable: whether `fd` is readable.
            record: this node's, for the error records.
        """
        now = self._monotonic()
        due = self._monitor.deadline is not None and self._monitor.deadline <= now
        # Messages sent before now count: the release of a timer that is due may still lie in the pipe.
        for text in self._monitor.receive() if readable or due else ():
            yield Message(text)
        expiries = self._monitor.due(now)
        # All of them first: the stack collection requested by the first one names all expired ranks.
        self._hung.update((expiry.local_rank, expiry.what) for expiry in expiries if expiry.signal)
        for expiry in expiries:
            yield self._expired(expiry)
        if self._collection is not None and self._collection.poll():
            self._journal.stacks_collected(self._collection, record)
            yield StacksCollected()
        if self._vitals_at is not None and self._monotonic() >= self._vitals_at:
            yield from self._sample_vitals(record)

    def over(self, record: NodeRecord) -> None:
        """The round is over here, and nothing of it is left."""
        if self._collection is not None and not self._collection.done:
            self._collection.close()
            self._journal.stacks_collected(self._collection, record)
        self._collection = None
        self._vitals_at = None

    def clear(self) -> None:
        """Forget the round."""
        self._monitor.clear()
        self._workers.clear()
        self._hung.clear()
        self._logs.clear()

    def _expired(self, expiry: Expiry) -> RankEvent:
        if not expiry.signal:
            rank = next(one.rank for one in self._workers if one.local_rank == expiry.local_rank)
            return Message(f"rank {rank}: {expiry.what}; its timer requests no signal")
        number = expiry.signal if expiry.kind == TIMER else self._hang_signal
        step = self._monitor.step(expiry.local_rank)
        return HungRank(expiry.local_rank, expiry.what, number, step, expiry.since_s)

    def _sample_vitals(self, record: NodeRecord) -> Iterator[RankEvent]:
        self._vitals_at = self._monotonic() + self._vitals_s
        self._host_resources.sample()
        vitals = self._monitor.vitals(record.round)
        if vitals is not None:
            yield VitalsChanged(vitals)
        if self._monitor.wants_sizes():
            self._send(self._monitor.read_sizes(self._logs), SIZES)
        if problem := self._monitor.keep_pipe():
            yield Message(problem)

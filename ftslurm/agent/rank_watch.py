"""The watch over this node's ranks, as the agent's loop turns it: who hangs, where everybody is, how they get on."""

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
"""Output is looked at every fifth of --hang-timeout, so that a rank that only prints is seen to do so in time; but not
more often than every 0.1 s."""


@dataclass(frozen=True)
class Message:
    """Something that the user should know."""

    text: str


@dataclass(frozen=True)
class HungRank:
    """A rank did not move in time; see `AgentMachine.on_hang`. ``since_s``: since when, a monotonic second."""

    local_rank: int
    what: str
    number: int
    step: int | None
    since_s: float


@dataclass(frozen=True)
class StacksCollected:
    """The stacks that were asked for are collected."""


@dataclass(frozen=True)
class VitalsChanged:
    """How the ranks get on."""

    vitals: Vitals


RankEvent = Message | HungRank | StacksCollected | VitalsChanged


class RankWatch:
    """Watches the workers of this node.

    Args:
        settings: the agent's.
        monitor: knows who is late.
        journal: writes the stacks down.
        surroundings: is looked at as often as the ranks.
        send: has an errand run where the filesystem may hang; its answer is for `grown`.
        monotonic: clock, seconds.

    Attributes:
        fd: becomes readable when a worker says something.
    """

    def __init__(
        self,
        settings: AgentSettings,
        monitor: RankMonitor,
        journal: Journal,
        surroundings: HostResources,
        send: Callable[[Callable[[], object], str], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._hang_signal = settings.hang_signal
        self._monitor = monitor
        self._journal = journal
        self._surroundings = surroundings
        self._send = send
        self._monotonic = monotonic
        self._workers: list[Worker] = []
        self._logs: dict[int, tuple[str, ...]] = {}
        self._hung: dict[int, str] = {}
        self._showing: StackCollection | None = None
        self._vitals_at: float | None = None
        sizes_s = max(SIZES_EVERY_S, SIZES_SHARE * (settings.timeouts.hang_s or math.inf))
        self._vitals_s = min(settings.vitals_s, sizes_s)
        self.fd = monitor.pipe.fd

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `turn` wants to be called."""
        showing = self._showing.deadline if self._showing is not None else None
        moments = (self._monitor.deadline, self._vitals_at, showing)
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
        self._showing = StackCollection(round_, alive, self._hung, self._monotonic)

    def forgive(self) -> None:
        """This process was suspended, and the ranks with it: nobody is late for what nobody could do."""
        self._monitor.forgive()

    def on_log_sizes(self, sizes: object) -> None:
        """Take the answer of an errand that was sent."""
        self._monitor.grown(sizes)

    def turn(self, spoken_to: bool, record: NodeRecord) -> Iterator[RankEvent]:
        """Do what is due and give what happened; what is done about the one comes before the next.

        Args:
            spoken_to: `fd` is readable.
            word: this node's, for the records.
        """
        now = self._monotonic()
        due = self._monitor.deadline is not None and self._monitor.deadline <= now
        # What was written before now counts: the release of a timer that is due may still lie in the pipe.
        for text in self._monitor.hear() if spoken_to or due else ():
            yield Message(text)
        expiries = self._monitor.due(now)
        # All of them first: the stacks that the first one asks for say whose time was over.
        self._hung.update((expiry.local_rank, expiry.what) for expiry in expiries if expiry.signal)
        for expiry in expiries:
            yield self._expired(expiry)
        if self._showing is not None and self._showing.poll():
            self._journal.showed(self._showing, record)
            yield StacksCollected()
        if self._vitals_at is not None and self._monotonic() >= self._vitals_at:
            yield from self._look_at_vitals(record)

    def over(self, record: NodeRecord) -> None:
        """The round is over here, and nothing of it is left."""
        if self._showing is not None and not self._showing.done:
            self._showing.close()
            self._journal.showed(self._showing, record)
        self._showing = None
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
            return Message(f"rank {rank}: {expiry.what}; it asks for no more than to be told")
        number = expiry.signal if expiry.kind == TIMER else self._hang_signal
        step = self._monitor.step(expiry.local_rank)
        return HungRank(expiry.local_rank, expiry.what, number, step, expiry.since_s)

    def _look_at_vitals(self, record: NodeRecord) -> Iterator[RankEvent]:
        self._vitals_at = self._monotonic() + self._vitals_s
        self._surroundings.sample()
        vitals = self._monitor.vitals(record.round)
        if vitals is not None:
            yield VitalsChanged(vitals)
        if self._monitor.wants_sizes():
            self._send(self._monitor.look_at_sizes(self._logs), SIZES)
        if problem := self._monitor.keep_pipe():
            yield Message(problem)

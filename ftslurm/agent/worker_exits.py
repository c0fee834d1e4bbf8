"""Workers that have ended: in which order, with which error record, and in short what the machine is told of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ftslurm.agent.actions import WorkerEnd
from ftslurm.agent.containment import ANALYSIS, RECORDS, Containment
from ftslurm.agent.journal import Journal, is_own
from ftslurm.agent.workers import Worker
from ftslurm.dataclasses import dataclass
from ftslurm.failures.record import Record, summary
from ftslurm.failures.retryability import retryability
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ELSEWHERE_S = 1.0
"""So long, in seconds, the end of a worker that has left no record on its node waits for one in the run directory."""
ENDED_BY_US = ("SIGTERM", "SIGKILL")
"""A worker that ends by these has not failed by an exception of its own."""


@dataclass(frozen=True)
class EndedWorker:
    """A worker that has ended, and its error record; None: it ended well, or there is no telling."""

    worker: Worker
    record: Record | None


@dataclass(frozen=True)
class RecordOf:
    """Names the answer of the errand that looks for the record of the worker with this pid."""

    pid: int


class WorkerExits:
    """Finds the records of workers that have ended.

    Args:
        journal: has the records.
        containment: of the journal, and of the analysis of failures.
        send: has an errand run where the filesystem may hang; its answer, named by a `RecordOf`, is for `found`.
        monotonic: clock, seconds.
    """

    def __init__(
        self,
        journal: Journal,
        containment: Containment,
        send: Callable[..., None],
        monotonic: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._containment = containment
        self._send = containment.contained_task(RECORDS, send)
        self._monotonic = monotonic
        self._awaited: dict[int, tuple[EndedWorker, float]] = {}

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `on_time` wants to be called."""
        return min((until_s for _, until_s in self._awaited.values()), default=None)

    def take(self, workers: Iterable[Worker], node_record: NodeRecord) -> list[EndedWorker]:
        """Return those of these workers, all just ended, of which all is known; the others come by `found`.

        Of several, the one that failed first is the first: its peers ended because of it.

        Args:
            word: this node's, for the records.
        """
        ended = [EndedWorker(worker, self._journal.error_record(worker, node_record)) for worker in workers]
        return [one for one in sorted(ended, key=_failed_ns) if not self._look_elsewhere(one)]

    def on_record(self, answer: RecordOf, record: object) -> EndedWorker | None:
        """Take what came of a look into the run directory; return the worker that waited for it."""
        waiting = self._awaited.pop(answer.pid, None)
        if waiting is None:
            return None
        return EndedWorker(waiting[0].worker, record) if isinstance(record, dict) else waiting[0]

    def on_time(self) -> list[EndedWorker]:
        """Return the workers that have waited for long enough."""
        now = self._monotonic()
        late = [pid for pid, (_, until_s) in self._awaited.items() if until_s <= now]
        return [self._awaited.pop(pid)[0] for pid in late]

    def worker_end(self, ended: EndedWorker, node_record: NodeRecord) -> WorkerEnd:
        """Return what the machine is told of it."""
        worker, record = ended.worker, ended.record
        assert worker.ended_ns is not None
        failure = None
        if worker.exit_code != 0:
            failure = self._containment.call(ANALYSIS, None, _failure_of, worker, record)
            failure = failure or _bare_failure(worker, node_record)
        recorded_ns = record["ftslurm"].get("recorded_ns") if record is not None else None
        return WorkerEnd(worker.local_rank, worker.exit_code, worker.signal, worker.ended_ns, recorded_ns, failure)

    def _look_elsewhere(self, ended: EndedWorker) -> bool:
        """Look for the worker's own record in the run directory: its node may have had no room for it."""
        worker, record = ended.worker, ended.record
        if record is None or is_own(record) or worker.signal in ENDED_BY_US:
            return False
        look: Callable[[], object] | None = self._journal.elsewhere(worker, record)
        if look is None:
            return False
        self._awaited[worker.pid] = (ended, self._monotonic() + ELSEWHERE_S)
        self._send(look, RecordOf(worker.pid))
        return True


def _failed_ns(ended: EndedWorker) -> int:
    assert ended.worker.ended_ns is not None
    recorded_ns = ended.record["ftslurm"].get("recorded_ns") if ended.record is not None else None
    return recorded_ns if isinstance(recorded_ns, int) else ended.worker.ended_ns


def _failure_of(worker: Worker, record: dict[str, Any] | None) -> Failure | None:
    if record is None or worker.ended_ns is None:
        return None
    return Failure(**summary(record), **retryability(record, (worker.ended_ns - worker.started_ns) / 1e9))


def _bare_failure(worker: Worker, node_record: NodeRecord) -> Failure:
    """Return the short form of a failure of which only the end of the process is known."""
    assert worker.ended_ns is not None
    kind, text = "exit", f"exit code {worker.exit_code}"
    if worker.signal is not None:
        kind, text = "signal", f"killed by {worker.signal}"
    where = (node_record.round, node_record.node, worker.rank, worker.local_rank, worker.ended_ns)
    return Failure(*where, kind, worker.exit_code, worker.signal, text, None)

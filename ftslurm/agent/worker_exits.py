"""Ended workers: their order, their error records, and the summary of each for the machine."""

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
"""Seconds that the end of a worker without a record on its node waits for one in the run directory."""
ENDED_BY_US = ("SIGTERM", "SIGKILL")
"""A worker that ends by these has not failed by an exception of its own."""


@dataclass(frozen=True)
class EndedWorker:
    """A worker that has ended, and its error record; None: it succeeded, or the record could not be composed."""

    worker: Worker
    record: Record | None


@dataclass(frozen=True)
class RecordOf:
    """Key of the result of the task that reads the record of the worker with this pid."""

    pid: int


class WorkerExits:
    """Finds the records of workers that have ended.

    Args:
        journal: has the records.
        containment: of the journal, and of the analysis of failures.
        send: runs a task where the filesystem may hang; its result, keyed by a `RecordOf`, is for `on_record`.
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
        """Return those of these just ended workers whose record is complete; the others follow by `on_record`.

        Of several, the one that failed first is the first: its peers ended because of it.

        Args:
            node_record: of this node, for the error records.
        """
        ended = [EndedWorker(worker, self._journal.error_record(worker, node_record)) for worker in workers]
        return [one for one in sorted(ended, key=_failed_ns) if not self._find_elsewhere(one)]

    def on_record(self, answer: RecordOf, record: object) -> EndedWorker | None:
        """Handle the result of reading the run directory; return the worker that waited for it."""
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
        """Return the event for the machine."""
        worker, record = ended.worker, ended.record
        assert worker.ended_ns is not None
        failure = None
        if worker.exit_code != 0:
            failure = self._containment.call(ANALYSIS, None, _failure_of, worker, record)
            failure = failure or _bare_failure(worker, node_record)
        recorded_ns = record["ftslurm"].get("recorded_ns") if record is not None else None
        return WorkerEnd(worker.local_rank, worker.exit_code, worker.signal, worker.ended_ns, recorded_ns, failure)

    def _find_elsewhere(self, ended: EndedWorker) -> bool:
        """Read the worker's own record from the run directory: its node's disk may have been full."""
        worker, record = ended.worker, ended.record
        if record is None or is_own(record) or worker.signal in ENDED_BY_US:
            return False
        task: Callable[[], object] | None = self._journal.elsewhere(worker, record)
        if task is None:
            return False
        self._awaited[worker.pid] = (ended, self._monotonic() + ELSEWHERE_S)
        self._send(task, RecordOf(worker.pid))
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
    """Return the summary of a failure of which only the exit status is known."""
    assert worker.ended_ns is not None
    kind, text = "exit", f"exit code {worker.exit_code}"
    if worker.signal is not None:
        kind, text = "signal", f"killed by {worker.signal}"
    where = (node_record.round, node_record.node, worker.rank, worker.local_rank, worker.ended_ns)
    return Failure(*where, kind, worker.exit_code, worker.signal, text, None)

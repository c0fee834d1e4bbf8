"""Ended workers: their order, their error records, and the event of each for the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from ftslurm.agent.actions import RecordFailure, WorkerEnd
from ftslurm.agent.containment import ANALYSIS, RECORDS, Containment
from ftslurm.agent.journal import FailedWorker, Journal
from ftslurm.agent.workers import Worker
from ftslurm.dataclasses import replace
from ftslurm.monitor import stop_page
from ftslurm.monitor.flight_dump import aborted_by_torch
from ftslurm.records.error import ErrorRecord
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import EXIT_INTERRUPTED, Failure

ELSEWHERE_S = 1.0
"""Seconds that the end of a worker without a record on its node waits for one in the run directory."""
ENDED_BY_US = ("SIGTERM", "SIGKILL")
"""A worker that ends by these has not failed by an exception of its own."""


class WorkerExits:
    """Finds the error records of workers that have ended, and publishes them.

    Args:
        journal: has the records.
        containment: of the journal, and of the analysis of failures.
        send: runs a task where the filesystem may hang; the loop passes its result to a function.
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
        self._awaited: dict[int, tuple[FailedWorker, float]] = {}
        self._complete: list[Worker] = []
        self._failed: dict[int, FailedWorker] = {}

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `take` wants to be called."""
        if self._complete:
            return self._monotonic()
        return min((until_s for _, until_s in self._awaited.values()), default=None)

    def add(self, workers: Iterable[Worker], node_record: NodeRecord) -> None:
        """These have just ended.

        Args:
            node_record: of this node, for the error records.
        """
        ended = list(workers)
        for worker in ended:
            if _has_failed(worker) and (failed := self._journal.failed_worker(worker, node_record)) is not None:
                self._failed[worker.local_rank] = failed
        # The one that failed first is the first: its peers ended because of it.
        for worker in sorted(ended, key=self._failed_ns):
            if not self._find_elsewhere(worker):
                self._complete.append(worker)

    def take(self, node_record: NodeRecord) -> list[WorkerEnd]:
        """Return the events of the workers whose record is complete, or was waited for long enough."""
        now = self._monotonic()
        for local_rank, (failed, until_s) in list(self._awaited.items()):
            if until_s <= now:
                self._found(local_rank, failed, None)
        complete, self._complete = self._complete, []
        return [self._worker_end(worker, node_record) for worker in complete]

    def record(self, action: RecordFailure) -> None:
        """Publish the error record of a worker of this round."""
        if (failed := self._failed.get(action.local_rank)) is not None:
            self._journal.failure(failed, action.stopped)

    def clear(self) -> None:
        """Forget the round."""
        self._failed.clear()

    def _worker_end(self, worker: Worker, node_record: NodeRecord) -> WorkerEnd:
        assert worker.ended_ns is not None
        failed = self._failed.get(worker.local_rank)
        failure = None
        if _has_failed(worker):
            failure = None if failed is None else self._containment.call(ANALYSIS, None, failed.failure)
            failure = failure or _bare_failure(worker, node_record)
            by_peers = failure.by_peers or aborted_by_torch(worker.record_dir, worker.rank)
            failure = replace(failure, leaving=_has_left(worker), by_peers=by_peers)
        recorded_ns = None if failed is None else failed.recorded_ns
        how = (worker.local_rank, worker.exit_code, worker.signal, worker.ended_ns, recorded_ns, failure)
        return WorkerEnd(*how, by_itself=not (_has_failed(worker) or worker.signalled or _has_left(worker)))

    def _failed_ns(self, worker: Worker) -> int:
        assert worker.ended_ns is not None
        failed = self._failed.get(worker.local_rank)
        recorded_ns = None if failed is None else failed.recorded_ns
        return worker.ended_ns if recorded_ns is None else recorded_ns

    def _find_elsewhere(self, worker: Worker) -> bool:
        """Read the worker's own record from the run directory: its node's disk may have been full."""
        failed = self._failed.get(worker.local_rank)
        if failed is None or failed.recorded_ns is not None or worker.signal in ENDED_BY_US:
            return False
        task: Callable[[], object] | None = self._journal.elsewhere(failed)
        if task is None:
            return False
        self._awaited[worker.local_rank] = (failed, self._monotonic() + ELSEWHERE_S)
        self._send(task, partial(self._found, worker.local_rank, failed))
        return True

    def _found(self, local_rank: int, failed: FailedWorker, record: object) -> None:
        """Handle the end of reading the run directory; of several, the first counts."""
        if self._awaited.get(local_rank, (None,))[0] is not failed:
            return
        del self._awaited[local_rank]
        if isinstance(record, ErrorRecord):
            self._failed[local_rank] = replace(failed, record=record)
        self._complete.append(failed.worker)


def _has_failed(worker: Worker) -> bool:
    """Return whether it failed; a rank that leaves by an orderly stop may say so by its exit code."""
    return worker.exit_code != 0 and not (worker.exit_code == EXIT_INTERRUPTED and _has_left(worker))


def _has_left(worker: Worker) -> bool:
    page = stop_page.read(worker.record_dir)
    return page is not None and page.left


def _bare_failure(worker: Worker, node_record: NodeRecord) -> Failure:
    """Return the summary of a failure of which only the exit status is known."""
    assert worker.ended_ns is not None
    kind, text = "exit", f"exit code {worker.exit_code}"
    if worker.signal is not None:
        kind, text = "signal", f"killed by {worker.signal}"
    where = (node_record.round, node_record.node, worker.rank, worker.local_rank, worker.ended_ns)
    return Failure(*where, kind, worker.exit_code, worker.signal, text, None)

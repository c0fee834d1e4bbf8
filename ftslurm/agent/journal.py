"""The agent's records in the run directory, always written by the courier.

Records that cannot be written (a full disk, a directory that hangs) are kept: retried when another one was written, and
left on this node, with a notice to the user, if the agent has to leave before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent.actions import RecordRound
from ftslurm.agent.host_resources import ResourceSampler
from ftslurm.agent.log_files import remove_empty
from ftslurm.agent.round_record import round_record
from ftslurm.agent.stack_collection import StackCollection
from ftslurm.agent.workers import Worker
from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.exceptions import clean
from ftslurm.failures.record import STACKS, complete, complete_elsewhere, encode, summary
from ftslurm.failures.record_summary import record_summary
from ftslurm.failures.retryability import retryability
from ftslurm.failures.worker_context import open_sections
from ftslurm.monitor import flight_client, flight_dump, heartbeat_page, stop_page
from ftslurm.records.codec import BadFile, write_record
from ftslurm.records.error import ErrorRecord
from ftslurm.records.flight import DUMP, NONE, FlightRecord
from ftslurm.records.node import NodeRecord
from ftslurm.records.round import RecordSummary
from ftslurm.records.stacks import RankAnswer, StacksAnswer
from ftslurm.records.state import HANG, ClockOffset, Failure
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AGAIN_S = 2.0


@dataclass(frozen=True)
class FailedWorker:
    """A worker that has failed, or hangs.

    Attributes:
        worker: the process.
        observed: the agent's own observations, by which a record of the worker's own is completed; see
            `ftslurm.failures.record.complete`.
        record: the error record as it stands.
    """

    worker: Worker
    observed: ErrorRecord
    record: ErrorRecord

    @property
    def recorded_ns(self) -> int | None:
        """When the worker wrote the record itself; None: its agent composed it."""
        return self.record.recorded_ns

    def failure(self) -> Failure:
        """Return the failure for the node record and the state; the worker has ended."""
        assert self.worker.ended_ns is not None
        life_s = (self.worker.ended_ns - self.worker.started_ns) / 1e9
        return Failure(**summary(self.record), **retryability(self.record, life_s))


@dataclass(frozen=True)
class _Pending:
    """Content to be published, unless `better`, called on the courier's thread, returns another one."""

    content: bytes
    durable: bool
    better: Callable[[], bytes | None] | None


class Journal:
    """Writes records.

    Args:
        send: runs a task where the filesystem may hang.
        fs, run: where the records are written.
        run_id: for each error record.
        now_ns: wall clock, nanoseconds since the epoch.
        host_resources: sampled when a worker fails.
        local: node-local directory in which a directory for the records is made that cannot be published.
        clock: this node's clock against the filesystem server's, as last measured; for each round's file.

    Attributes:
        kept: the directory that `leave` made on this node; None: nothing was pending.
    """

    def __init__(
        self,
        send: Callable[[Callable[[], object]], None],
        fs: FileSystem,
        run: RunDirectory,
        run_id: str,
        now_ns: Callable[[], int],
        host_resources: ResourceSampler,
        local: str,
        clock: Callable[[], ClockOffset | None] = lambda: None,
    ) -> None:
        self._send = send
        self._fs = fs
        self._run = run
        self._run_id = run_id
        self._now_ns = now_ns
        self._host_resources = host_resources
        self._before: dict[str, Any] = {}
        self._errors: dict[int, RecordSummary] = {}
        self._traced: set[int] = set()
        self._local = local
        self._clock = clock
        # By path; the loop adds, the courier removes; each of these operations is atomic.
        self._pending: dict[str, _Pending] = {}
        self._tried_ns = 0
        self._trouble = ""
        self.kept: str | None = None

    def begin(self) -> None:
        """A round begins here."""
        self._before = self._host_resources.begin()
        self._errors.clear()
        self._traced.clear()

    def failed_worker(self, worker: Worker, node_record: NodeRecord) -> FailedWorker | None:
        """Return a worker that has ended with its error record; None if it succeeded."""
        assert worker.ended_ns is not None
        observed = self._observed(worker, node_record, worker.ended_ns)
        record = complete(worker.record_dir, observed)
        return None if record is None else FailedWorker(worker, observed, record)

    def elsewhere(self, failed: FailedWorker) -> Callable[[], ErrorRecord | None]:
        """Return the task that reads the worker's own record from the run directory; None: there is none."""
        directory = self._rank_directory(failed.observed)
        return lambda: complete_elsewhere(directory, failed.record.stacks or "", failed.observed)

    def failure(self, failed: FailedWorker, stopped: bool) -> None:
        """Publish an error record; for a stopped worker only if it wrote the record itself.

        If the worker wrote a record in the run directory, that one is completed instead.
        """
        own = failed.recorded_ns is not None
        if stopped and (not own or failed.worker.rank in self._errors):
            # Its record of being stopped has less information than the published one of its hang.
            return
        better: Callable[[], bytes | None] | None = None
        if not own:
            find_own = self.elsewhere(failed)

            def better() -> bytes | None:
                found = find_own()
                return None if found is None else encode(replace(found, stopped_by_ftslurm=stopped))

        self._publish_error(failed.worker, replace(failed.record, stopped_by_ftslurm=stopped), better)
        if not stopped:
            self._publish_collectives_left(failed)

    def _publish_collectives_left(self, failed: FailedWorker) -> None:
        """Publish the record of its collectives that a rank has left, if its failure is perhaps another one's."""
        worker, observed = failed.worker, failed.observed
        left = flight_dump.find(worker.record_dir, worker.rank)
        if left is None or not (left.by_torch or failed.failure().by_peers):
            return
        # What it was asked for while it ran shows what it waited in, and not how that failed.
        if worker.rank in self._traced:
            return
        self._traced.add(worker.rank)
        assert observed.round is not None
        assert observed.node is not None
        version, _ = flight_client.about(worker.record_dir)
        path = self._run.collectives_file(observed.round, worker.rank)
        where = (self._run_id, observed.round, observed.node, worker.rank, left.written_ns)
        bare = FlightRecord(*where, NONE, "what the rank has left was not read", version, step=observed.step)

        def read() -> bytes:
            try:
                trace = flight_dump.read(left, "what the rank has left")
            except BadFile as error:
                return write_record(replace(bare, trouble=str(error)[:300]))
            return write_record(replace(bare, source=DUMP, trouble=None, trace=trace))

        # Read by the courier: a full recorder takes some 20 ms.
        self._publish(path, write_record(bare), better=read)

    def stacks_collected(self, collection: StackCollection, node_record: NodeRecord) -> None:
        """Publish the collected stacks and records of collectives, and an error record of each rank that hung."""
        for worker, record in collection.records(self._run_id, node_record.node, self._now_ns()).values():
            if record.trace is not None or worker.rank not in self._traced:
                self._publish(self._run.collectives_file(collection.round, worker.rank), write_record(record))
            if record.trace is not None:
                self._traced.add(worker.rank)
        for local_rank, (worker, content) in collection.files(node_record.node, self._now_ns()).items():
            self._publish(os.path.join(self._run.rank(collection.round, worker.rank), STACKS), content)
            if (what := collection.why.get(local_rank)) is not None:
                observed = self._observed(worker, node_record, self._now_ns())
                stacks = collection.text(local_rank)
                self._publish_error(worker, replace(observed, kind=HANG, message=clean(what), traceback=stacks))

    def stacks_answer(self, collection: StackCollection, request_ns: int, node_record: NodeRecord) -> None:
        """Publish stacks and records that a user has asked for; lost if that fails, as they can be asked for again."""
        now_ns, node = self._now_ns(), node_record.node
        records = collection.records(self._run_id, node, now_ns)
        ranks = tuple(
            RankAnswer(
                worker.rank,
                content.decode("utf-8", "replace"),
                records[local_rank][1] if local_rank in records else None,
            )
            for local_rank, (worker, content) in collection.files(node, now_ns).items()
        )
        answer = StacksAnswer(node, collection.round, request_ns, now_ns, ranks)
        self._send(lambda: publish(self._fs, self._run.asked_file(node), write_record(answer)))

    def round(
        self,
        record: RecordRound,
        workers: Sequence[Worker],
        node_record: NodeRecord,
        started_ns: int,
        survived: Mapping[str, int],
    ) -> None:
        """Publish this node's current record of a round.

        Args:
            survived: number of bad messages from workers since the agent's start, by kind.
        """
        pages = {worker.local_rank: heartbeat_page.read(worker.record_dir) for worker in workers}
        stops = {worker.local_rank: stop_page.read(worker.record_dir) for worker in workers}
        content = round_record(
            record,
            workers,
            pages,
            stops,
            node_record,
            started_ns,
            self._now_ns(),
            self._errors,
            clock=self._clock(),
            host_resources=self._before,
            messages=survived,
        )
        path = self._run.round_node_file(record.assignment.round, node_record.node)
        self._publish(path, write_record(content), durable=record.over)

    def remove_empty(self, directories: Sequence[str]) -> None:
        """Remove what ranks that have ended left empty, but no directory that a record is still to be written into."""
        waiting = {os.path.dirname(path) for path in tuple(self._pending)}
        remove_empty(directory for directory in directories if directory not in waiting)

    def again(self) -> None:
        """Retry the records that could not be written."""
        if self._pending:
            self._send(lambda: self._retry(self._now_ns()))

    def leave(self, stays: bool = True) -> str | None:
        """Keep unwritten records on this node; return a line for the user, None if nothing is pending.

        They lie under `kept`, laid out as in a run directory. Call it after the courier has stopped.

        Args:
            stays: whether the user may need them; those of a run that has succeeded are removed by the caller.
        """
        pending = dict(self._pending)
        if not pending:
            return None
        what = f"{len(pending)} record{'s' if len(pending) > 1 else ''} of this node did not get into {self._run.root}"
        why = f" ({self._trouble})" if self._trouble else ""
        directory = os.path.join(self._local, f"ftslurm-{os.getuid()}-kept-{os.urandom(4).hex()}")
        try:
            os.mkdir(directory, 0o700)
            for path, one in pending.items():
                place = os.path.join(directory, os.path.relpath(path, self._run.root))
                os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
                with open(place, "xb") as file:
                    file.write(one.content)
            self.kept = directory
        except OSError as error:
            return f"{what}{why}, and cannot be kept here either: {error}"
        return f"{what}{why}: kept on this node in {directory}" if stays else f"{what}{why}; the run has succeeded"

    def _publish(
        self, path: str, content: bytes, durable: bool = False, better: Callable[[], bytes | None] | None = None
    ) -> None:
        self._pending[path] = _Pending(content, durable, better)
        self._send(lambda: self._put(path))

    def _publish_error(
        self, worker: Worker, record: ErrorRecord, better: Callable[[], bytes | None] | None = None
    ) -> None:
        directory = self._rank_directory(record)
        self._errors[worker.rank] = record_summary(record)
        self._publish(os.path.join(directory, "error.json"), encode(record), durable=True, better=better)
        if record.stacks:
            self._publish(os.path.join(directory, STACKS), record.stacks.encode("utf-8", "backslashreplace"))

    def _rank_directory(self, record: ErrorRecord) -> str:
        assert record.round is not None
        assert record.rank is not None
        return self._run.rank(record.round, record.rank)

    # On the courier's thread

    def _put(self, path: str) -> None:
        found = self._pending.get(path)
        if found is None:
            return
        try:
            better = found.better() if found.better is not None else None
            publish(self._fs, path, better or found.content, durable=found.durable)
        except OSError as error:
            self._trouble = error.strerror or str(error)
            raise
        # Unless the loop has newer content for that path by now.
        if self._pending.get(path) is found:
            del self._pending[path]
        now_ns = self._now_ns()
        if self._pending and abs(now_ns - self._tried_ns) > AGAIN_S * 1e9:
            self._retry(now_ns)

    def _retry(self, now_ns: int) -> None:
        """Try all of them once, without logging failures: these have been logged."""
        self._tried_ns = now_ns
        for path in tuple(self._pending):
            try:
                self._put(path)
            except OSError:
                continue

    def _observed(self, worker: Worker, node_record: NodeRecord, time_ns: int) -> ErrorRecord:
        """Return the error record by the agent's own observations."""
        page = heartbeat_page.read(worker.record_dir)
        return ErrorRecord(
            kind="signal" if worker.signal is not None else "exit",
            time_ns=time_ns,
            run_id=self._run_id,
            attempt=node_record.attempt,
            round=node_record.round,
            node=node_record.node,
            host=node_record.host,
            rank=worker.rank,
            local_rank=worker.local_rank,
            pid=worker.pid,
            exit_code=worker.exit_code,
            signal=worker.signal,
            step=page.progress.last_step if page and page.progress else None,
            sections=open_sections(page),
            host_resources=self._host_resources.at_a_failure(),
        )

"""The agent's records in the run directory, always written by the courier.

Records that cannot be written (a full disk, a directory that hangs) are kept: retried when another one was written, and
left on this node, with a notice to the user, if the agent has to leave before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent.actions import RecordRound
from ftslurm.agent.host_resources import HostResources
from ftslurm.agent.round_record import round_record
from ftslurm.agent.stack_collection import StackCollection
from ftslurm.agent.workers import Worker
from ftslurm.dataclasses import asdict, dataclass
from ftslurm.failures.record import STACKS, complete, complete_elsewhere, compose, encode
from ftslurm.failures.record_summary import record_summary
from ftslurm.failures.worker_context import open_sections
from ftslurm.monitor import heartbeat_page
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import HANG
from ftslurm.sharedfs.clock import ClockOffset
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import encode as as_json
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AGAIN_S = 2.0


@dataclass(frozen=True)
class _Pending:
    """Content to be published, unless `better`, called on the courier's thread, returns another one."""

    content: bytes
    durable: bool
    better: Callable[[], bytes | None] | None


def is_own(record: Mapping[str, Any]) -> bool:
    """Return whether an error record was written by the worker itself, rather than composed by its agent."""
    return record["ftslurm"].get("recorded_ns") is not None


def _flagged(record: dict[str, Any], stopped: bool) -> dict[str, Any]:
    record["ftslurm"]["stopped_by_ftslurm"] = stopped
    return record


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
        host_resources: HostResources,
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
        self._errors: dict[int, dict[str, Any]] = {}
        self._facts_of: dict[int, dict[str, Any]] = {}  # by rank: the agent's facts on each failure
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
        self._facts_of.clear()

    def error_record(self, worker: Worker, node_record: NodeRecord) -> dict[str, Any] | None:
        """Return the error record of a failed worker; None if it succeeded."""
        if worker.exit_code == 0:
            return None
        facts = {**self._facts(worker, node_record), "host_resources": self._host_resources.at_a_failure()}
        self._facts_of[worker.rank] = facts
        return complete(worker.record_dir, facts)

    def elsewhere(self, worker: Worker, record: dict[str, Any]) -> Callable[[], dict[str, Any] | None]:
        """Return the task that reads the worker's own record from the run directory.

        Args:
            record: what `error_record` returned, which lacks it; the task's result replaces it.
        """
        facts, stacks = self._facts_of[worker.rank], record["ftslurm"].get("stacks") or ""
        directory = self._run.rank(facts["round"], worker.rank)
        return lambda: complete_elsewhere(directory, stacks, facts)

    def failed(self, worker: Worker, record: dict[str, Any], stopped: bool) -> None:
        """Publish an error record; for a stopped worker only if it wrote the record itself.

        If the worker wrote a record in the run directory, that one is completed instead.
        """
        if stopped and (not is_own(record) or worker.rank in self._errors):
            # Its record of being stopped has less information than the published one of its hang.
            return
        better: Callable[[], bytes | None] | None = None
        if not is_own(record):
            find_own = self.elsewhere(worker, record)

            def better() -> bytes | None:
                found = find_own()
                return None if found is None else encode(_flagged(found, stopped))

        self._publish_error(worker, _flagged(record, stopped), better)

    def stacks_collected(self, collection: StackCollection, node_record: NodeRecord) -> None:
        """Publish the collected stacks, and an error record of each rank that hung."""
        for local_rank, (worker, content) in collection.files(node_record.node, self._now_ns()).items():
            self._publish(os.path.join(self._run.rank(collection.round, worker.rank), STACKS), content)
            if (what := collection.why.get(local_rank)) is not None:
                facts = {**self._facts(worker, node_record), "kind": HANG, "time_ns": self._now_ns()}
                facts["host_resources"] = self._host_resources.at_a_failure()
                self._publish_error(worker, compose(what, collection.text(local_rank), facts))

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
        agent = {
            "node": node_record.node,
            "incarnation": node_record.incarnation,
            "host": node_record.host,
            "agent_pid": node_record.pid,
        }
        content = round_record(record, workers, pages, agent, started_ns, self._now_ns(), self._errors)
        content["host_resources"] = self._before
        content["messages"] = dict(survived)
        content["health"] = None if node_record.health is None else asdict(node_record.health)
        clock = self._clock()
        content["clock"] = None if clock is None else asdict(clock)
        path = self._run.round_node_file(record.assignment.round, node_record.node)
        # Compact: a report of two thousand nodes reads them all.
        self._publish(path, as_json(content), durable=record.over)

    def again(self) -> None:
        """Retry the records that could not be written."""
        if self._pending:
            self._send(lambda: self._retry(self._now_ns()))

    def leave(self) -> str | None:
        """Keep unwritten records on this node; return a line for the user, None if nothing is pending.

        They lie under `kept`, laid out as in a run directory. Call it after the courier has stopped.
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
        return f"{what}{why}: kept on this node in {directory}"

    def _publish(
        self, path: str, content: bytes, durable: bool = False, better: Callable[[], bytes | None] | None = None
    ) -> None:
        self._pending[path] = _Pending(content, durable, better)
        self._send(lambda: self._put(path))

    def _publish_error(
        self, worker: Worker, record: dict[str, Any], better: Callable[[], bytes | None] | None = None
    ) -> None:
        directory = self._run.rank(record["ftslurm"]["round"], worker.rank)
        self._errors[worker.rank] = record_summary(record)
        self._publish(os.path.join(directory, "error.json"), encode(record), durable=True, better=better)
        if stacks := record["ftslurm"].get("stacks"):
            self._publish(os.path.join(directory, STACKS), stacks.encode("utf-8", "backslashreplace"))

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

    def _facts(self, worker: Worker, node_record: NodeRecord) -> dict[str, Any]:
        page = heartbeat_page.read(worker.record_dir)
        return {
            "run_id": self._run_id,
            "attempt": node_record.attempt,
            "round": node_record.round,
            "node": node_record.node,
            "host": node_record.host,
            "rank": worker.rank,
            "local_rank": worker.local_rank,
            "pid": worker.pid,
            "exit_code": worker.exit_code,
            "signal": worker.signal,
            "time_ns": worker.ended_ns,
            "step": page.progress.last_step if page and page.progress else None,
            "sections": open_sections(page),
        }

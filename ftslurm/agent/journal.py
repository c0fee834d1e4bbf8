"""What this agent saw, written down in the run directory, always by way of the courier.

What does not get there (a full disk, a directory that hangs) is kept: tried again when something else got through, and
left on this node, with a word to the user, when the agent has to go before that.
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
    """Content to be published, or what `better` returns then, on the courier's thread, unless that is None."""

    content: bytes
    durable: bool
    better: Callable[[], bytes | None] | None


def is_own(record: Mapping[str, Any]) -> bool:
    """Tell whether an error record holds what the worker itself wrote, rather than only what its agent saw."""
    return record["ftslurm"].get("recorded_ns") is not None


def _flagged(record: dict[str, Any], stopped: bool) -> dict[str, Any]:
    record["ftslurm"]["stopped_by_ftslurm"] = stopped
    return record


class Journal:
    """Writes records.

    Args:
        send: has an errand run where the filesystem may hang.
        fs, run: where they go.
        run_id: stands in each error record.
        now_ns: wall clock, nanoseconds since the epoch.
        surroundings: what else to look at when a worker fails.
        local: node-local directory in which a directory for the records is made that cannot be published.
        clock: this node's clock against the filesystem server's, as last measured; for each round's file.

    Attributes:
        kept: the directory that `leave` has left on this node; None: there was nothing to leave.
    """

    def __init__(
        self,
        send: Callable[[Callable[[], object]], None],
        fs: FileSystem,
        run: RunDirectory,
        run_id: str,
        now_ns: Callable[[], int],
        surroundings: HostResources,
        local: str,
        clock: Callable[[], ClockOffset | None] = lambda: None,
    ) -> None:
        self._send = send
        self._fs = fs
        self._run = run
        self._run_id = run_id
        self._now_ns = now_ns
        self._around = surroundings
        self._before: dict[str, Any] = {}
        self._errors: dict[int, dict[str, Any]] = {}
        self._seen: dict[int, dict[str, Any]] = {}  # by rank: what was seen of each failure
        self._local = local
        self._clock = clock
        # By path; the loop adds, the courier removes, and each such step is atomic.
        self._pending: dict[str, _Pending] = {}
        self._tried_ns = 0
        self._trouble = ""
        self.kept: str | None = None

    def begin(self) -> None:
        """A round begins here."""
        self._before = self._around.begin()
        self._errors.clear()
        self._seen.clear()

    def error_record(self, worker: Worker, node_record: NodeRecord) -> dict[str, Any] | None:
        """Return what is known of how a worker failed; None when it ended well."""
        if worker.exit_code == 0:
            return None
        facts = {**self._facts(worker, node_record), "host_resources": self._around.at_a_failure()}
        self._seen[worker.rank] = facts
        return complete(worker.record_dir, facts)

    def elsewhere(self, worker: Worker, record: dict[str, Any]) -> Callable[[], dict[str, Any] | None]:
        """Return the errand that looks for the worker's own record in the run directory.

        Args:
            record: what `error_record` returned, in which that is missing; the errand's result takes its place.
        """
        facts, stacks = self._seen[worker.rank], record["ftslurm"].get("stacks") or ""
        directory = self._run.rank(facts["round"], worker.rank)
        return lambda: complete_elsewhere(directory, stacks, facts)

    def failed(self, worker: Worker, record: dict[str, Any], stopped: bool) -> None:
        """Have an error record published; of a worker that was stopped only what it had to say itself.

        A record in the run directory that says more, because the worker wrote it there, is completed instead.
        """
        if stopped and (not is_own(record) or worker.rank in self._errors):
            # What it says of being stopped is less than what is published of how it hung.
            return
        better: Callable[[], bytes | None] | None = None
        if not is_own(record):
            look = self.elsewhere(worker, record)

            def better() -> bytes | None:
                found = look()
                return None if found is None else encode(_flagged(found, stopped))

        self._publish_error(worker, _flagged(record, stopped), better)

    def showed(self, showing: StackCollection, node_record: NodeRecord) -> None:
        """Have the collected stacks published, and an error record of each rank that hung."""
        for local_rank, (worker, content) in showing.files(node_record.node, self._now_ns()).items():
            self._publish(os.path.join(self._run.rank(showing.round, worker.rank), STACKS), content)
            if (what := showing.why.get(local_rank)) is not None:
                facts = {**self._facts(worker, node_record), "kind": HANG, "time_ns": self._now_ns()}
                facts["host_resources"] = self._around.at_a_failure()
                self._publish_error(worker, compose(what, showing.text(local_rank), facts))

    def round(
        self,
        record: RecordRound,
        workers: Sequence[Worker],
        node_record: NodeRecord,
        started_ns: int,
        survived: Mapping[str, int],
    ) -> None:
        """Have this node's part of a round published as it stands.

        Args:
            survived: what went wrong in the workers' messages since the agent's start, and how often.
        """
        pages = {worker.local_rank: heartbeat_page.read(worker.record_dir) for worker in workers}
        who = {
            "node": node_record.node,
            "incarnation": node_record.incarnation,
            "host": node_record.host,
            "agent_pid": node_record.pid,
        }
        content = round_record(record, workers, pages, who, started_ns, self._now_ns(), self._errors)
        content["host_resources"] = self._before
        content["messages"] = dict(survived)
        content["health"] = None if node_record.health is None else asdict(node_record.health)
        clock = self._clock()
        content["clock"] = None if clock is None else asdict(clock)
        path = self._run.round_node_file(record.assignment.round, node_record.node)
        # Compact: a report of two thousand nodes reads them all.
        self._publish(path, as_json(content), durable=record.over)

    def again(self) -> None:
        """Have what did not get there tried again."""
        if self._pending:
            self._send(lambda: self._retry(self._now_ns()))

    def leave(self) -> str | None:
        """Leave on this node what did not get into the run directory; return what to tell the user, None for nothing.

        It lies under `kept`, laid out as in a run directory. To be called when the courier works no more.
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
        # Unless the loop has something newer for that place by now.
        if self._pending.get(path) is found:
            del self._pending[path]
        now_ns = self._now_ns()
        if self._pending and abs(now_ns - self._tried_ns) > AGAIN_S * 1e9:
            self._retry(now_ns)

    def _retry(self, now_ns: int) -> None:
        """Try everything once, and say nothing of what fails: that has been said."""
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

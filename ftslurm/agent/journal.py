"""What this agent saw, written down in the run directory, always by way of the courier."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from ftslurm.agent.actions import Record
from ftslurm.agent.round_record import round_record
from ftslurm.agent.showing import Showing
from ftslurm.agent.workers import Worker
from ftslurm.failures.record import STACKS, complete, compose, encode
from ftslurm.monitor.progress import read as read_progress
from ftslurm.rendezvous.state import HANG, NodeWord
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory


class Journal:
    """Writes records.

    Args:
        send: has an errand run where the filesystem may hang.
        fs, run: where they go.
        run_id: stands in each error record.
        now_ns: wall clock, nanoseconds since the epoch.
    """

    def __init__(
        self,
        send: Callable[[Callable[[], object]], None],
        fs: FileSystem,
        run: RunDirectory,
        run_id: str,
        now_ns: Callable[[], int],
    ) -> None:
        self._send = send
        self._fs = fs
        self._run = run
        self._run_id = run_id
        self._now_ns = now_ns

    def error_record(self, worker: Worker, word: NodeWord) -> dict[str, Any] | None:
        """Return what is known of how a worker failed; None when it ended well."""
        return complete(worker.record_dir, self._facts(worker, word)) if worker.exit_code != 0 else None

    def failed(self, worker: Worker, record: dict[str, Any], stopped: bool) -> None:
        """Have an error record published; of a worker that was stopped only what it had to say itself."""
        if stopped and record["ftslurm"].get("recorded_ns") is None:
            return
        record["ftslurm"]["stopped_by_ftslurm"] = stopped
        self._send(lambda: self._publish_error(worker, record))

    def showed(self, showing: Showing, word: NodeWord) -> None:
        """Have the collected stacks published, and an error record of each rank that hung."""
        for local_rank, (worker, content) in showing.files(word.node, self._now_ns()).items():
            self._publish(os.path.join(self._run.rank(showing.round, worker.rank), STACKS), content)
            if (what := showing.why.get(local_rank)) is not None:
                facts = {**self._facts(worker, word), "kind": HANG, "time_ns": self._now_ns()}
                self._hung(worker, compose(what, showing.text(local_rank), facts))

    def round(self, record: Record, workers: Sequence[Worker], word: NodeWord, started_ns: int) -> None:
        """Have this node's part of a round published as it stands."""
        progress = {worker.local_rank: read_progress(worker.record_dir) for worker in workers}
        who = {"node": word.node, "incarnation": word.incarnation, "host": word.host, "agent_pid": word.pid}
        content = round_record(record, workers, progress, who, started_ns, self._now_ns())
        path = self._run.round_node_file(record.assignment.round, word.node)
        self._publish(path, json.dumps(content, indent=1).encode() + b"\n", durable=record.over)

    def _hung(self, worker: Worker, record: dict[str, Any]) -> None:
        self._send(lambda: self._publish_error(worker, record))

    def _publish(self, path: str, content: bytes, durable: bool = False) -> None:
        self._send(lambda: publish(self._fs, path, content, durable=durable))

    def _publish_error(self, worker: Worker, record: dict[str, Any]) -> None:
        directory = self._run.rank(record["ftslurm"]["round"], worker.rank)
        publish(self._fs, os.path.join(directory, "error.json"), encode(record), durable=True)
        stacks = record["ftslurm"].get("stacks")
        if stacks:
            publish(self._fs, os.path.join(directory, STACKS), stacks.encode("utf-8", "backslashreplace"))

    def _facts(self, worker: Worker, word: NodeWord) -> dict[str, Any]:
        progress = read_progress(worker.record_dir)
        return {
            "run_id": self._run_id,
            "attempt": word.attempt,
            "round": word.round,
            "node": word.node,
            "host": word.host,
            "rank": worker.rank,
            "local_rank": worker.local_rank,
            "pid": worker.pid,
            "exit_code": worker.exit_code,
            "signal": worker.signal,
            "time_ns": worker.ended_ns,
            "step": progress.last_step if progress else None,
        }

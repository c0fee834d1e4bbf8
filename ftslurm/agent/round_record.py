"""The agent's record of a round on its node:  rounds/<round>/nodes/<node>.json (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.agent.actions import RecordRound
from ftslurm.agent.workers import Worker
from ftslurm.dataclasses import asdict
from ftslurm.failures.record_summary import in_table
from ftslurm.monitor.heartbeat_page import HeartbeatPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA, VERSION = "ftslurm/round-node", 1


def round_record(
    record: RecordRound,
    workers: Sequence[Worker],
    pages: Mapping[int, HeartbeatPage | None],
    agent: Mapping[str, Any],
    started_ns: int,
    now_ns: int,
    errors: Mapping[int, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return this node's record of the round as a JSON object.

    A worker's entry omits values that are null, false or empty: of 16,384 ranks hardly one dumped core. But ``error``
    is always present; once the round is over, null means that this rank has no error record.

    Args:
        record: the machine's part.
        workers: all that were started.
        pages: heartbeat page by local rank.
        agent: "node", "incarnation", "host" and "agent_pid".
        started_ns, now_ns: nanoseconds since the epoch.
        errors: by rank the record summary (`ftslurm.failures.record_summary`) of each published error record.
    """
    assignment = record.assignment
    table, entries = in_table(errors)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "round": assignment.round,
        "attempt": assignment.attempt,
        **agent,
        "group_rank": assignment.group_rank,
        "world_size": assignment.world_size,
        "master": asdict(assignment.master),
        "started_ns": started_ns,
        "ended_ns": now_ns if record.over else None,
        "outcome": record.outcome,
        "stop_reason": record.stop_reason,
        "stop_ns": record.stop_ns,
        "errors": table,
        "workers": [
            {**brief(_worker(record, worker, pages.get(worker.local_rank))), "error": entries.get(worker.rank)}
            for worker in workers
        ],
    }


def brief(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker's entry without values that are null, false or empty."""
    return {key: value for key, value in entry.items() if value is not None and value is not False and value != []}


def _worker(record: RecordRound, worker: Worker, page: HeartbeatPage | None) -> dict[str, Any]:
    local_rank = worker.local_rank
    progress = page.progress if page is not None else None
    stop_signal = None
    if local_rank in record.stopped:
        stop_signal = "SIGKILL" if local_rank in record.killed else "SIGTERM"
    return {
        "rank": worker.rank,
        "local_rank": local_rank,
        "pid": worker.pid,
        "started_ns": worker.started_ns,
        "ended_ns": worker.ended_ns,
        "exit_code": worker.exit_code,
        "signal": worker.signal,
        "core_dumped": worker.core_dumped,
        "stopped_by_ftslurm": local_rank in record.stopped,
        "stop_signal": stop_signal,
        "failed": local_rank in record.failed,
        "progress": None
        if progress is None
        else {
            "first_step": progress.first_step,
            "first_ns": progress.first_ns,
            "last_step": progress.last_step,
            "last_ns": progress.last_ns,
        },
        # As in the node record: number of step times per bucket.
        "pace": [[bucket, number] for bucket, number in enumerate(page.pace.buckets) if number] if page else [],
    }

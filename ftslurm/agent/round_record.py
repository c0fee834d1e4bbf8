"""The agent's record of a round on its node:  rounds/<round>/nodes/<node>.json (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.agent.actions import RecordRound
from ftslurm.agent.workers import Worker
from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.heartbeat_page import HeartbeatPage
from ftslurm.monitor.stop_page import StopPage
from ftslurm.records.node import NodeRecord
from ftslurm.records.round import Progress, RecordSummary, RoundRecord, WorkerRecord
from ftslurm.records.state import ClockOffset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def round_record(
    record: RecordRound,
    workers: Sequence[Worker],
    pages: Mapping[int, HeartbeatPage | None],
    stops: Mapping[int, StopPage | None],
    node: NodeRecord,
    started_ns: int,
    now_ns: int,
    errors: Mapping[int, RecordSummary],
    *,
    clock: ClockOffset | None = None,
    host_resources: dict[str, Any] | None = None,
    messages: Mapping[str, int] | None = None,
) -> RoundRecord:
    """Return this node's record of the round.

    Args:
        record: the machine's part.
        workers: all that were started.
        pages, stops: heartbeat page and stop page by local rank.
        node: the node's present record.
        started_ns, now_ns: nanoseconds since the epoch.
        errors: by rank the record summary of each published error record.
        clock, host_resources, messages: see `RoundRecord`.
    """
    assignment = record.assignment
    return RoundRecord(
        round=assignment.round,
        attempt=assignment.attempt,
        node=node.node,
        incarnation=node.incarnation,
        host=node.host,
        agent_pid=node.pid,
        group_rank=assignment.group_rank,
        world_size=assignment.world_size,
        master=assignment.master,
        started_ns=started_ns,
        ended_ns=now_ns if record.over else None,
        outcome=record.outcome,
        stop_reason=record.stop_reason,
        stop_ns=record.stop_ns,
        workers=tuple(
            _worker(record, worker, pages.get(worker.local_rank), stops.get(worker.local_rank), errors.get(worker.rank))
            for worker in workers
        ),
        clock=clock,
        health=node.health,
        host_resources=host_resources,
        messages=dict(messages) if messages is not None else None,
    )


def _worker(
    record: RecordRound,
    worker: Worker,
    page: HeartbeatPage | None,
    stop: StopPage | None,
    error: RecordSummary | None,
) -> WorkerRecord:
    local_rank = worker.local_rank
    stop_signal = None
    if local_rank in record.stopped:
        stop_signal = "SIGKILL" if local_rank in record.killed else "SIGTERM"
    progress = _progress(page, stop)
    return WorkerRecord(
        rank=worker.rank,
        local_rank=local_rank,
        pid=worker.pid,
        started_ns=worker.started_ns,
        ended_ns=worker.ended_ns,
        exit_code=worker.exit_code,
        signal=worker.signal,
        core_dumped=worker.core_dumped,
        stopped_by_ftslurm=local_rank in record.stopped,
        stop_signal=stop_signal,
        progress=progress,
        failed=local_rank in record.failed,
        pace=tuple((bucket, number) for bucket, number in enumerate(page.pace.buckets) if number) if page else (),
        error=error,
        optimizer_steps=_of_page(page.optimizer_steps) if page is not None and progress is None else None,
    )


def _progress(page: HeartbeatPage | None, stop: StopPage | None) -> Progress | None:
    steps = _of_page(page.progress) if page is not None else None
    if steps is not None:
        return steps
    # A script that calls `should_stop(step)` need not call `progress(step)`, too.
    if stop is not None and stop.step is not None and stop.first_step is not None:
        return Progress(stop.first_step, None, stop.step, None, stop.calls)
    return None


def _of_page(steps: heartbeat_page.Progress | None) -> Progress | None:
    if steps is None:
        return None
    return Progress(steps.first_step, steps.first_ns, steps.last_step, steps.last_ns, steps.marks)

"""Error records that need not be read: node files have their summaries, and one with the same signature was read."""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.dataclasses import replace
from ftslurm.failures.record_summary import SIMILAR
from ftslurm.report.facts import Exc, Frame, RankError, RecordSummary, RoundFiles, RoundNode, Worker


def final(node: RoundNode, worker: Worker) -> bool:
    """Whether the node's file has the complete summary of the worker's record, or records that there is none.

    An older ftslurm's does not, nor does that of an agent that died before its last write.
    """
    return worker.error_known and worker.ended_ns is not None and node.ended_ns is not None


def summary_of(files: RoundFiles, node: RoundNode, worker: Worker) -> RecordSummary | None:
    """Return a worker's record summary, if its record was not read."""
    return worker.error if worker.rank not in files.errors and final(node, worker) else None


def examples(nodes: Iterable[RoundNode]) -> dict[str, int]:
    """Return for each signature the rank that failed first with it, by the nodes' own clocks."""
    first: dict[str, tuple[int, int]] = {}
    for node in nodes:
        # Inlined `final`, whose calls would take too long for 16,384 ranks.
        for worker in node.workers if node.ended_ns is not None else ():
            summary = worker.error
            if summary is None or worker.ended_ns is None:
                continue
            time = (summary.time_ns or 0, worker.rank)
            best = first.get(summary.signature)
            if best is None or time < best:
                first[summary.signature] = time
    return {signature: rank for signature, (_, rank) in first.items()}


def from_summary(node: RoundNode, worker: Worker, summary: RecordSummary, sample: RankError | None) -> RankError:
    """Return a record reconstructed from its summary.

    Args:
        node, worker: its node and worker.
        summary: the record summary.
        sample: the record of another rank with the same signature, if one was read.
    """
    record = sample or _without_sample(worker, summary)
    exception = record.exception
    if summary.signature.startswith(SIMILAR) and exception is not None:
        record = replace(record, exception=replace(exception, message=summary.message), message=summary.message)
    return replace(
        record,
        rank=worker.rank,
        node=node.node,
        host=node.host,
        local_rank=worker.local_rank,
        pid=worker.pid,
        time_ns=summary.time_ns,
        step=summary.step,
        # These belong to that other rank only.
        traceback=None,
        stacks=None,
        sections=(),
        cuda=(),
        whole=False,
    )


def _without_sample(worker: Worker, summary: RecordSummary) -> RankError:
    exception = None
    if summary.type is not None:
        exception = Exc(summary.type, summary.module, summary.message, _frames(summary.where), None)
    end = (worker.exit_code, worker.signal, None, None, (), summary.message, None, exception, None)
    return RankError(worker.rank, None, None, None, None, summary.kind, *end)


def _frames(where: str | None) -> tuple[Frame, ...]:
    file, _, place = (where or "").rpartition(":")
    line, _, function = place.partition(" in ")
    if not file or not (line.isascii() and line.isdigit() and len(line) < 10):
        return ()
    return (Frame(file, int(line), function or "?", None),)


__all__ = ["examples", "final", "from_summary", "summary_of"]

"""Error records that need not be read: their nodes' files have them in short, and one like them was read (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.dataclasses import replace
from ftslurm.failures.record_summary import ALIKE
from ftslurm.report.facts import Exc, Frame, RankError, RoundFiles, RoundNode, Short, Worker


def final(node: RoundNode, worker: Worker) -> bool:
    """Whether the node's file tells in short all that there is of the worker's record, or that there is none.

    An older ftslurm's does not; nor does that of an agent that died before it could write its last one.
    """
    return worker.told and worker.ended_ns is not None and node.ended_ns is not None


def short_of(files: RoundFiles, node: RoundNode, worker: Worker) -> Short | None:
    """Return a record's short form, if that has to do for the record."""
    return worker.error if worker.rank not in files.errors and final(node, worker) else None


def examples(nodes: Iterable[RoundNode]) -> dict[str, int]:
    """Return for each signature the rank that failed first with it, by the nodes' own clocks."""
    first: dict[str, tuple[int, int]] = {}
    for node in nodes:
        # As `final` says, which 16,384 ranks leave no time for.
        for worker in node.workers if node.ended_ns is not None else ():
            short = worker.error
            if short is None or worker.ended_ns is None:
                continue
            time = (short.time_ns or 0, worker.rank)
            best = first.get(short.like)
            if best is None or time < best:
                first[short.like] = time
    return {like: rank for like, (_, rank) in first.items()}


def stand_in(node: RoundNode, worker: Worker, short: Short, like: RankError | None) -> RankError:
    """Return a record made from its short form.

    Args:
        node, worker: whose it is.
        short: the form.
        like: the record of another rank with the same signature, if one was read.
    """
    record = like or _alone(worker, short)
    exception = record.exception
    if short.like.startswith(ALIKE) and exception is not None:
        record = replace(record, exception=replace(exception, message=short.message), message=short.message)
    return replace(
        record,
        rank=worker.rank,
        node=node.node,
        host=node.host,
        local_rank=worker.local_rank,
        pid=worker.pid,
        time_ns=short.time_ns,
        step=short.step,
        # These are that other rank's own.
        traceback=None,
        stacks=None,
        sections=(),
        cuda=(),
        whole=False,
    )


def _alone(worker: Worker, short: Short) -> RankError:
    exception = None
    if short.type is not None:
        exception = Exc(short.type, short.module, short.message, _frames(short.where), None)
    end = (worker.exit_code, worker.signal, None, None, (), short.message, None, exception, None)
    return RankError(worker.rank, None, None, None, None, short.kind, *end)


def _frames(where: str | None) -> tuple[Frame, ...]:
    file, _, place = (where or "").rpartition(":")
    line, _, function = place.partition(" in ")
    if not file or not (line.isascii() and line.isdigit() and len(line) < 10):
        return ()
    return (Frame(file, int(line), function or "?", None),)


__all__ = ["examples", "final", "short_of", "stand_in"]

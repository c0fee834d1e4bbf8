"""A worker that ftslurm did not stop and that failed: its facts, and the verdict on the cause (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures import proof_lines
from ftslurm.failures.causes import CASCADE, ROWS, Cause, Evidence, HostResources, describe, find
from ftslurm.failures.evidence import CAUSE, CONTEXT, MEMBER
from ftslurm.failures.record_summary import VARIES
from ftslurm.report.facts import Exc, Frame, LogTail

UNJUDGED = ROWS[-1]
_CASCADES_CACHED = 4096
_cascades: dict[tuple[object, ...], Cause] = {}


@dataclass(frozen=True)
class FailedWorker:
    """A failed worker with all its facts; ``lines`` are the evidence as text."""

    rank: int
    node: str
    host: str | None
    local_rank: int | None
    time_ns: int | None
    kind: str
    exit_code: int | None
    signal: str | None
    core_dumped: bool
    step: int | None
    argv: tuple[str, ...]
    exception: Exc | None
    frames: tuple[Frame, ...]
    traceback: str | None
    stacks: str | None
    evidence: tuple[str, ...]
    cause: Cause
    what: str
    life_s: float | None = None
    host_resources: HostResources | None = None
    sections: tuple[tuple[str, float], ...] = ()
    cuda: tuple[tuple[str, int], ...] = ()
    lines: tuple[str, ...] = ()
    scheduler: str = ""
    exit_message: str = ""


def judge(worker: FailedWorker, tails: Sequence[LogTail], rows: Sequence[Cause]) -> FailedWorker:
    """Return the failed worker with the cause of its failure, a description, and the evidence."""
    key = _cascade_key(worker) if not tails and rows is ROWS else None
    known = _cascades.get(key) if key is not None else None
    if known is not None and worker.exception is not None:
        return _decided(worker, worker.exception, known)
    judged = _judge(worker, tails, rows)
    if key is not None and judged.cause.role == CASCADE:
        if len(_cascades) >= _CASCADES_CACHED:
            _cascades.clear()
        _cascades[key] = judged.cause
    return judged


def _cascade_key(worker: FailedWorker) -> tuple[object, ...] | None:
    """Cache key of everything that decides whether an exception is a cascade; None if more facts are needed.

    When one rank of 16,384 fails, the others' connections to it break, and their messages differ only in addresses
    and times. A test verifies that no row for cascades, nor one before them, depends on anything else.
    """
    exception = worker.exception
    if exception is None or exception.link is not None or exception.members or exception.notes or worker.scheduler:
        return None
    message = VARIES.sub("#", exception.message)
    files = tuple([frame.file for frame in exception.frames])
    return worker.kind, exception.type, exception.module, message, files, worker.exit_code, worker.signal


def _decided(worker: FailedWorker, exception: Exc, cause: Cause) -> FailedWorker:
    raised = (exception.type, exception.module, exception.message)
    evidence = Evidence(worker.kind, *raised, exit_code=worker.exit_code, exit_message=worker.exit_message)
    what = describe(evidence, cause)
    # As `replace` would do it, without calling __init__ for 16,384 ranks.
    decided = object.__new__(FailedWorker)
    decided.__dict__.update(worker.__dict__, cause=cause, what=what, lines=())
    return decided


def _judge(worker: FailedWorker, tails: Sequence[LogTail], rows: Sequence[Cause]) -> FailedWorker:
    by_stream = {t.stream: t.text for t in tails}
    evidence = evidence_of(worker, by_stream.get("stderr", ""))
    cause, where = find(evidence, rows)
    return replace(
        worker,
        cause=cause,
        what=describe(evidence, cause, where),
        stacks=worker.stacks or by_stream.get("stacks"),
        lines=tuple(proof_lines.lines(evidence, cause, where)),
    )


def evidence_of(worker: FailedWorker, stderr: str) -> Evidence:
    """Return the input of the catalogue's rows; ``stderr`` is the tail of the worker's."""
    whole = Evidence(
        kind=worker.kind,
        message=worker.what,
        exit_code=worker.exit_code,
        signal=worker.signal,
        step=worker.step,
        tail=stderr,
        life_s=worker.life_s,
        core_dumped=worker.core_dumped,
        host_resources=worker.host_resources,
        sections=worker.sections,
        cuda=worker.cuda,
        scheduler=worker.scheduler,
        exit_message=worker.exit_message,
    )
    return whole if worker.exception is None else replace(_with(whole, worker.exception), tail=stderr)


def _with(whole: Evidence, exception: Exc) -> Evidence:
    inner = [(MEMBER, _with(whole, member)) for member in exception.members]
    if exception.link is not None:
        inner.insert(0, (CAUSE if exception.explicit else CONTEXT, _with(whole, exception.link)))
    files = tuple(frame.file for frame in exception.frames)
    raised = whole.raised(exception.type, exception.module, exception.message, files, exception.notes)
    return replace(raised, inner=tuple(inner))

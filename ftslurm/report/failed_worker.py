"""A worker that failed by itself: all that is known of it, and the verdict on why (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures import proof_lines
from ftslurm.failures.causes import CASCADE, ROWS, Cause, Evidence, HostResources, describe, find
from ftslurm.failures.evidence import CAUSE, CONTEXT, MEMBER
from ftslurm.failures.record_summary import VARIES
from ftslurm.report.facts import Exc, Frame, LogTail

UNJUDGED = ROWS[-1]
_CASCADES_KEPT = 4096
_cascades: dict[tuple[object, ...], Cause] = {}


@dataclass(frozen=True)
class FailedWorker:
    """A worker that failed by itself, with everything that is known of it; ``lines`` are the proofs in words."""

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


def judge(suspect: FailedWorker, tails: Sequence[LogTail], rows: Sequence[Cause]) -> FailedWorker:
    """Return the suspect with the cause of its failure, said in words, and with what proves it."""
    key = _alike(suspect) if not tails and rows is ROWS else None
    known = _cascades.get(key) if key is not None else None
    if known is not None and suspect.exception is not None:
        return _decided(suspect, suspect.exception, known)
    judged = _judge(suspect, tails, rows)
    if key is not None and judged.cause.role == CASCADE:
        if len(_cascades) >= _CASCADES_KEPT:
            _cascades.clear()
        _cascades[key] = judged.cause
    return judged


def _alike(suspect: FailedWorker) -> tuple[object, ...] | None:
    """What decides whether a plain exception is a cascade; None if more than that has to be looked at.

    When one rank of 16,384 fails, the others break their connections to it, and their messages differ in addresses and
    times only. That no row for cascades, nor one before them, looks at anything else is a property that is tested.
    """
    exception = suspect.exception
    if exception is None or exception.link is not None or exception.members or exception.notes or suspect.scheduler:
        return None
    message = VARIES.sub("#", exception.message)
    files = tuple([frame.file for frame in exception.frames])
    return suspect.kind, exception.type, exception.module, message, files, suspect.exit_code, suspect.signal


def _decided(suspect: FailedWorker, exception: Exc, cause: Cause) -> FailedWorker:
    raised = (exception.type, exception.module, exception.message)
    evidence = Evidence(suspect.kind, *raised, exit_code=suspect.exit_code, exit_message=suspect.exit_message)
    what = describe(evidence, cause)
    # As `replace` would do it, without calling __init__ for 16,384 ranks.
    decided = object.__new__(FailedWorker)
    decided.__dict__.update(suspect.__dict__, cause=cause, what=what, lines=())
    return decided


def _judge(suspect: FailedWorker, tails: Sequence[LogTail], rows: Sequence[Cause]) -> FailedWorker:
    by_stream = {t.stream: t.text for t in tails}
    evidence = evidence_of(suspect, by_stream.get("stderr", ""))
    cause, where = find(evidence, rows)
    return replace(
        suspect,
        cause=cause,
        what=describe(evidence, cause, where),
        stacks=suspect.stacks or by_stream.get("stacks"),
        lines=tuple(proof_lines.lines(evidence, cause, where)),
    )


def evidence_of(suspect: FailedWorker, stderr: str) -> Evidence:
    """Return what the causes are judged by; ``stderr`` is the end of the worker's."""
    whole = Evidence(
        kind=suspect.kind,
        message=suspect.what,
        exit_code=suspect.exit_code,
        signal=suspect.signal,
        step=suspect.step,
        tail=stderr,
        life_s=suspect.life_s,
        core_dumped=suspect.core_dumped,
        host_resources=suspect.host_resources,
        sections=suspect.sections,
        cuda=suspect.cuda,
        scheduler=suspect.scheduler,
        exit_message=suspect.exit_message,
    )
    return whole if suspect.exception is None else replace(_with(whole, suspect.exception), tail=stderr)


def _with(whole: Evidence, exception: Exc) -> Evidence:
    inner = [(MEMBER, _with(whole, member)) for member in exception.members]
    if exception.link is not None:
        inner.insert(0, (CAUSE if exception.explicit else CONTEXT, _with(whole, exception.link)))
    files = tuple(frame.file for frame in exception.frames)
    raised = whole.raised(exception.type, exception.module, exception.message, files, exception.notes)
    return replace(raised, inner=tuple(inner))

"""A worker that failed by itself: all that is known of it, and the verdict on why (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ftslurm.failures import proofs
from ftslurm.failures.causes import ROWS, Cause, Evidence, Surroundings, describe, find
from ftslurm.failures.evidence import CAUSE, CONTEXT, MEMBER
from ftslurm.report.facts import Exc, Frame, LogTail

UNJUDGED = ROWS[-1]


@dataclass(frozen=True)
class Suspect:
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
    surroundings: Surroundings | None = None
    sections: tuple[tuple[str, float], ...] = ()
    cuda: tuple[tuple[str, int], ...] = ()
    lines: tuple[str, ...] = ()


def judge(suspect: Suspect, tails: Sequence[LogTail], rows: Sequence[Cause]) -> Suspect:
    """Return the suspect with the cause of its failure, said in words, and with what proves it."""
    by_stream = {t.stream: t.text for t in tails}
    evidence = evidence_of(suspect, by_stream.get("stderr", ""))
    cause, where = find(evidence, rows)
    return replace(
        suspect,
        cause=cause,
        what=describe(evidence, cause, where),
        stacks=suspect.stacks or by_stream.get("stacks"),
        lines=tuple(proofs.lines(evidence, cause, where)),
    )


def evidence_of(suspect: Suspect, stderr: str) -> Evidence:
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
        surroundings=suspect.surroundings,
        sections=suspect.sections,
        cuda=suspect.cuda,
    )
    return whole if suspect.exception is None else replace(_with(whole, suspect.exception), tail=stderr)


def _with(whole: Evidence, exception: Exc) -> Evidence:
    inner = [(MEMBER, _with(whole, member)) for member in exception.members]
    if exception.link is not None:
        inner.insert(0, (CAUSE if exception.explicit else CONTEXT, _with(whole, exception.link)))
    files = tuple(frame.file for frame in exception.frames)
    raised = whole.raised(exception.type, exception.module, exception.message, files, exception.notes)
    return replace(raised, inner=tuple(inner))

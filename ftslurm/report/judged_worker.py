"""The cause of a worker's failure: by its record, else by what its output has as the reason (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ftslurm.dataclasses import replace
from ftslurm.failures import proof_lines
from ftslurm.failures.causes import Cause, Evidence, describe, find
from ftslurm.failures.evidence import MEMBER, with_exception
from ftslurm.failures.nccl import warnings
from ftslurm.failures.own_code import is_library, own_frame
from ftslurm.pattern import pattern
from ftslurm.records.error import Frame
from ftslurm.report.facts import LogTail
from ftslurm.report.failed_worker import NO_END, FailedWorker, main_thread, recorded_frames
from ftslurm.report.stderr_evidence import OutputEvidence, output_evidence

LIVED_ON_NS = 10**9
STALE_NS, REPORTED_NS = 2_500_000_000, 50_000_000
"""Time between the last writes to stderr and stdout after which a rank went on in spite of what stderr ends with; the
same where stdout ends with a failure."""
_FAILED = pattern(r"\b(?:FAIL(?:ED|URE)?|ERROR|FATAL|ABORT(?:ED|ING)?)\b")


CRASHES = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")
STUCK = "nccl-stuck"
"""Cause of an abort by a thread of torch's that found the main thread, or what that calls, stuck."""
_DUMP = pattern(r"(?m)^(?:Fatal Python error: .*\n(?:.*\n){0,3})?Current thread 0x\w+")
_GLUED = pattern(
    r"(?<=[^\s\"'`:(])(?=terminate called (?:after throwing|without an active|recursively)"
    r"|(?:Memory access fault|HW Exception) by GPU node)"
)
_BAR = pattern(r"(?m)(^|\r)[^\r\n]{0,80}\d%\|[^\r\n]{0,200}?(it/s|s/it)\]")


class Peers(NamedTuple):
    """What other ranks have printed to stderr.

    Attributes:
        healthy: the ends of the stderr of ranks that did not fail.
        survived: what ranks had printed, and went on, until a collective failed.
    """

    healthy: Sequence[str] = ()
    survived: Sequence[str] = ()


NO_PEERS = Peers()


def judge(
    worker: FailedWorker, tails: Sequence[LogTail], rows: Sequence[Cause], peers: Peers = NO_PEERS
) -> FailedWorker:
    """Return the failed worker with the cause of its failure, a description, and the evidence.

    Args:
        worker: as recorded.
        tails: the ends of its output.
        rows: the catalogue of causes.
        peers: the output of other ranks: what they survived is no reason of this one's end.
    """
    by_stream = {t.stream: t.text for t in tails}
    stderr = by_stream.get("stderr", "")
    worker = replace(worker, nccl_warnings=warnings(*by_stream.values()))
    plain = _judged(worker, stderr, rows)
    survived = (*peers.survived, *(peers.healthy if _went_on(worker, tails) else ()))
    output = output_evidence(plain.cause, worker.exception, worker.signal, by_stream, survived, _stale(tails))
    judged = plain if output is None else _with_output(plain, output, stderr, rows)
    stacks = judged.stacks or by_stream.get("stacks") or _dumped(judged, stderr)
    frames = judged.frames or recorded_frames(None, None, stacks)
    if not frames and judged.signal in CRASHES and (frame := _native_frame(stderr)) is not None:
        frames = (frame,)
    if not frames and judged.cause.name == STUCK:
        frames = main_thread(stacks or "")
    return replace(judged, stacks=stacks, frames=frames)


def _native_frame(stderr: str) -> Frame | None:
    """Return where a program that is not Python crashed, by its runtime's stack; None: there is none."""
    from ftslurm.failures.foreign_reason import foreign_reason

    found = foreign_reason(stderr.rstrip().split("\n"))
    return None if found is None else found.frame


def _dumped(worker: FailedWorker, stderr: str) -> str | None:
    """Return the stacks that the program's own faulthandler printed as it crashed; None: it printed none."""
    crashed = worker.signal is not None or worker.cause.name == "shell-crashed"
    found = _DUMP.search(stderr) if crashed else None
    return stderr[found.start() :] if found is not None else None


def _went_on(worker: FailedWorker, tails: Sequence[LogTail]) -> bool:
    """Return whether a rank lived on after its last write to stderr; ranks that fail alike have printed alike, too."""
    written = {tail.stream: tail.written_ns for tail in tails if tail.written_ns is not None}
    if "stderr" not in written or worker.time_ns is None:
        return True
    text = next(tail.text for tail in tails if tail.stream == "stderr")
    if worker.exit_code == 1 and f"[rank{worker.rank}]: Traceback" in text:
        return False  # torch's hook prints what nothing catches
    return max(worker.time_ns, written.get("stdout", 0)) - written["stderr"] > LIVED_ON_NS


def _stale(tails: Sequence[LogTail]) -> list[str]:
    """Return the output to which a rank wrote last so long before the other one that it went on meanwhile."""
    written = {tail.stream: tail.written_ns for tail in tails if tail.stream != "stacks" and tail.text.strip()}
    out_ns, error_ns = written.get("stdout"), written.get("stderr")
    if out_ns is None or error_ns is None:
        return []
    out = next(tail.text for tail in tails if tail.stream == "stdout")
    reports = _FAILED.search(out.rstrip().rpartition("\n")[2]) is not None
    return ["stderr"] if out_ns - error_ns > (REPORTED_NS if reports else STALE_NS) else []


def _judged(worker: FailedWorker, stderr: str, rows: Sequence[Cause]) -> FailedWorker:
    evidence = evidence_of(worker, stderr)
    cause, where = find(evidence, rows)
    return replace(
        worker,
        cause=cause,
        what=describe(evidence, cause, where),
        frames=_frames_of(worker, evidence, where),
        lines=tuple(dict.fromkeys((*worker.quotes, *proof_lines.lines(evidence, cause, where)))),
    )


def _with_output(plain: FailedWorker, output: OutputEvidence, stderr: str, rows: Sequence[Cause]) -> FailedWorker:
    """Return a worker whose output says why it ended, with that as the reason, and the end by itself behind it."""
    first = plain.what.split("\n", 1)[0]
    source = (*plain.evidence, "stderr" if output.source == "its stderr" else "output")
    inner = None
    # Of others that ended themselves at the same place, the output is not read.
    alone = plain if plain.frames else None
    if output.exception is not None:
        # The end itself is described below.
        raised = replace(
            plain, exception=output.exception, frames=output.exception.frames, exit_code=None, exit_message=""
        )
        inner = _judged(raised, stderr, rows)
    if output.of_child:
        why = output.found.text if inner is None else inner.what.split("\n", 1)[0]
        compiled = plain.cause.name in ("extension-build", "cuda-assert")
        head = plain.cause.title if compiled else first.partition(" of the command ")[0]
        what = f"{head} ({why}, from {output.source}){')' * (head.count('(') - head.count(')'))}"
        what = f"{head}: {why}" if compiled else what
        usable = inner is not None and not inner.cause.cascade and (not inner.cause.vague or plain.cause.vague)
        cause = inner.cause if inner is not None and usable else plain.cause
        worker = replace(plain, cause=cause, what=what, evidence=source, alone=plain)
        if inner is None:
            inner = replace(plain, frames=output.found.frames)  # of a crash, faulthandler's
        return _of_child(worker, inner, f"{output.source}: {why}") if inner.frames != plain.frames else worker
    if plain.what == NO_END and inner is not None:
        # Nothing else is known of it.
        text = output.found.text if not output.certain else inner.what.split("\n", 1)[0]
        return replace(inner, what=f"{text} (from {output.source})", evidence=source)
    if inner is None or (not output.certain and (inner.cause.vague or inner.cause.cascade)):
        # The shell's own line says what its exit code means.
        end = f"exit code {plain.exit_code}" if plain.cause.name.startswith("shell-") else first
        text = first if output.found.text in first else f"{end}: {output.found.text} (from {output.source})"
        return replace(plain, what=text, frames=plain.frames or output.found.frames, evidence=source, alone=alone)
    text = inner.what.split("\n", 1)[0] if output.certain else output.found.text
    thread = f" in {output.found.thread}" if output.found.thread else ""
    # It started a launcher, whose ranks have other numbers.
    nested = output.found.rank is not None and output.found.rank != plain.rank >= 0
    source_text = (
        f"rank {output.found.rank} of its own launch, from {output.source}" if nested else f"from {output.source}"
    )
    return replace(
        inner,
        what=f"{text}{thread} ({source_text}){_end(plain)}",
        exit_code=plain.exit_code,
        exit_message=plain.exit_message,
        frames=inner.frames or plain.frames,
        traceback=output.found.lines or plain.traceback,
        evidence=source,
        alone=alone,
    )


def _of_child(worker: FailedWorker, child: FailedWorker, reason: str) -> FailedWorker:
    """Return the worker with the place where its child process failed; the whole reason and its call as evidence."""
    lines = [reason]
    if not any(not is_library(frame.file) and not frame.file.startswith("<") for frame in child.frames):
        return replace(worker, lines=(*worker.lines, *lines))
    if worker.frames:
        # What the program raises itself is behind the call.
        started = "started" if is_library(worker.frames[-1].file) else "judged"
        lines.append(f"the child process was {started} at {own_frame(worker.frames).place}")
    return replace(worker, frames=child.frames, lines=(*worker.lines, *lines))


def _end(plain: FailedWorker) -> str:
    """Return how the process itself ended, for use after the reason; not for the exit code of any failed program."""
    if plain.signal is not None:
        return f"; then {plain.signal}"
    return f"; exit code {plain.exit_code}" if plain.exit_code not in (None, 1) else ""


def _frames_of(worker: FailedWorker, evidence: Evidence, found: Evidence) -> tuple[Frame, ...]:
    """Return the frames that say where it failed: those of the member of a group that decided."""
    is_member = found is not evidence and any(how == MEMBER for how, _ in evidence.inner)
    return found.frames if is_member and found.frames else worker.frames


def _without_bars(stderr: str) -> str:
    """Return the text with what a runtime prints behind a progress bar, or a counter, in a line of its own."""
    return _BAR.sub("\n", _GLUED.sub("\n", stderr))


def evidence_of(worker: FailedWorker, stderr: str) -> Evidence:
    """Return the input of the catalogue's rows; ``stderr`` is the tail of the worker's."""
    whole = Evidence(
        kind=worker.kind,
        message=worker.what,
        exit_code=worker.exit_code,
        signal=worker.signal,
        step=worker.step,
        tail=_without_bars(stderr),
        life_s=worker.life_s,
        core_dumped=worker.core_dumped,
        host_resources=worker.host_resources,
        sections=worker.sections,
        cuda=worker.cuda,
        scheduler=worker.scheduler,
        exit_message=worker.exit_message,
        nccl_warnings=worker.nccl_warnings,
    )
    return whole if worker.exception is None else replace(with_exception(whole, worker.exception), tail=whole.tail)

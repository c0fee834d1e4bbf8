"""A worker that failed by itself: its facts from agent, error record and state, and the cause of its failure (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures import proof_lines
from ftslurm.failures.causes import ROWS, Cause, Evidence, HostResources, describe, find
from ftslurm.failures.evidence import MEMBER, with_exception
from ftslurm.failures.nccl import warnings
from ftslurm.failures.own_code import is_library, own_frame
from ftslurm.failures.record_summary import SIMILAR
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord, Frame
from ftslurm.report.facts import Failure, LogTail, RankError, RecordSummary, RoundNode, Worker
from ftslurm.report.stderr_evidence import OutputEvidence, output_evidence

UNJUDGED = ROWS[-1]
_TYPED = pattern(r"([A-Za-z_][\w.]{0,100}): ?(.*)", re.DOTALL)
_FRAME = pattern(r'^ *File "([^"\n]{1,4096})", line (\d{1,9})(?:,? in (\S{1,200}))?', re.MULTILINE)

NO_END = "how it ended is not in the log"
"""The description of an end of which only the output is known."""
LIVED_ON_NS = 10**9
STALE_NS, REPORTED_NS = 2_500_000_000, 50_000_000
"""Time between the last writes to stderr and stdout after which a rank went on in spite of what stderr ends with; the
same where stdout ends with a failure."""
_FAILED = pattern(r"\b(?:FAIL(?:ED|URE)?|ERROR|FATAL|ABORT(?:ED|ING)?)\b")


@dataclass(frozen=True)
class FailedWorker:
    """A failed worker with all its facts.

    ``lines`` are the evidence as text; ``alone`` is the same as judged without its output or that of its child process,
    which is not read of all ranks that fail alike; None: that adds nothing.
    """

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
    exception: ExceptionRecord | None
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
    nccl_warnings: tuple[str, ...] = ()
    order: int = 0
    quotes: tuple[str, ...] = ()
    alone: FailedWorker | None = None


def failed_worker_of(
    rank: int,
    observed: tuple[RoundNode, Worker] | None,
    error: RankError | None,
    summary: Failure | None,
    scheduler: str,
) -> FailedWorker:
    """Merge the facts about a failed worker, before judging.

    Args:
        rank: its rank.
        observed: its agent's record of it.
        error: its error record.
        summary: its failure's summary in the node record or the state.
        scheduler: the scheduler's state of the job, if that ended with it.
    """
    node, worker = observed or (None, None)
    kind = _kind(worker, error, summary)
    exception = _exception(kind, error, summary)
    stacks = error.stacks if error else None
    # For a crash, the record has the stacks in the place of the traceback, for readers of torch's format.
    traceback = error.traceback if error and error.traceback != stacks else None
    known = [x for x in (worker, error, summary) if x is not None]
    record = error is not None and error.whole
    step = _first_known(
        error.step if error else None,
        worker.progress.last_step if worker and worker.progress else None,
        summary.step if summary else None,
    )
    return FailedWorker(
        rank=rank,
        node=(node.node if node else None) or (error and error.node) or (summary.node if summary else None) or "?",
        host=(node.host if node else None) or (error.host if error else None),
        local_rank=_first_known(*[x.local_rank for x in known]),
        time_ns=_time_ns(exception is not None, worker, error, summary),
        kind=kind,
        exit_code=_first_known(*[x.exit_code for x in known]),
        signal=(worker and worker.signal) or (error and error.signal) or (summary.signal if summary else None),
        core_dumped=worker is not None and worker.core_dumped,
        step=step,
        argv=error.argv if error else (),
        exception=exception,
        frames=_frames(exception, traceback, stacks),
        traceback=traceback,
        stacks=stacks,
        evidence=tuple(n for n, x in (("round-node", worker), ("error.json", record), ("summary", summary)) if x),
        cause=UNJUDGED,
        scheduler=scheduler,
        what=(error.message if error else "") or (summary.message if summary else ""),
        life_s=_life_s(worker),
        host_resources=error.host_resources if error else None,
        sections=error.sections if error else (),
        cuda=error.cuda if error else (),
        exit_message=error.exit_message if error else "",
        order=error.order if error else 0,
        quotes=error.quotes if error else (),
    )


def _kind(worker: Worker | None, error: RankError | None, summary: Failure | None) -> str:
    if error is not None and error.kind == "exception":
        return "exception"
    if worker is not None and worker.signal is not None:
        return "signal"
    if worker is not None and worker.failed and worker.pid is None and (error is None or error.whole):
        return "spawn"
    if error is not None:
        return error.kind
    if summary is not None and (worker is None or worker.exit_code is None or summary.kind in ("exception", "spawn")):
        return summary.kind
    return "exit"


def _time_ns(raised: bool, worker: Worker | None, error: RankError | None, summary: Failure | None) -> int | None:
    # An exception's time is when it was caught; the process may have needed seconds more to end.
    error_ns = error.time_ns if error else None
    ended_ns = worker.ended_ns if worker else None
    summary_ns = summary.time_ns if summary else None
    if raised:
        return _first_known(error_ns, summary_ns, ended_ns)
    return _first_known(ended_ns, error_ns, summary_ns)


def _exception(kind: str, error: RankError | None, summary: Failure | None) -> ExceptionRecord | None:
    if error is not None and error.exception is not None:
        return error.exception
    if kind != "exception":
        return None
    message = (error.message if error else "") or (summary.message if summary else "")
    match = _TYPED.match(message)
    if match is None:
        return ExceptionRecord("Exception", message=message) if message else None
    module, _, name = match[1].rpartition(".")
    return ExceptionRecord(name, module, match[2])


STUCK = "nccl-stuck"
"""Cause of an abort by a thread of torch's that found the main thread, or what that calls, stuck."""
_DUMP = pattern(r"(?m)^(?:Fatal Python error: .*\n(?:.*\n){0,3})?Current thread 0x\w+")
_GLUED = pattern(
    r"(?<=[^\s\"'`:(])(?=terminate called (?:after throwing|without an active|recursively)"
    r"|(?:Memory access fault|HW Exception) by GPU node)"
)
_BAR = pattern(r"(?m)(^|\r)[^\r\n]{0,80}\d%\|[^\r\n]{0,200}?(it/s|s/it)\]")


def _frames(exception: ExceptionRecord | None, traceback: str | None, stacks: str | None) -> tuple[Frame, ...]:
    if exception is not None and exception.frames:
        return exception.frames
    if traceback:
        # A record by torch alone has the frames only as text.
        return tuple(_frames_in(traceback[-65536:])[-100:])
    if stacks:
        # faulthandler: innermost first; the thread that crashed is the "current" one, or the only one.
        _, _, current = stacks.rpartition("Current thread " if "Current thread " in stacks else "\nStack (most ")
        return tuple(reversed(_frames_in(current[:65536].split("\n\n", 1)[0])[:100]))
    return ()


def beside_crash(worker: FailedWorker) -> Frame | None:
    """Return where the main thread was when a thread of a library crashed, which Python does not know; None: unknown.

    It may have called that library.
    """
    if not worker.stacks or worker.frames or worker.signal is None:
        return None
    frames = _main_thread(worker.stacks)
    return own_frame(frames) if frames else None


def _main_thread(stacks: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, which faulthandler prints last."""
    found = (_frames_in(block) for block in reversed(stacks[-65536:].split("\n\n")))
    return tuple(reversed(next((each for each in found if each), [])[:100]))


def _frames_in(text: str) -> list[Frame]:
    return [Frame(file, int(line), function) for file, line, function in _FRAME.findall(text)]


def _life_s(worker: Worker | None) -> float | None:
    if worker is None or worker.started_ns is None or worker.ended_ns is None:
        return None
    return max(0, worker.ended_ns - worker.started_ns) / 1e9


def _first_known(*values: int | None) -> int | None:
    for value in values:
        if value is not None:
            return value
    return None


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
        exception = ExceptionRecord(summary.type, summary.module, summary.message, frames=_innermost(summary.where))
    end = (worker.exit_code, worker.signal, None, None, (), summary.message, None, exception, None)
    return RankError(worker.rank, None, None, None, None, summary.kind, *end)


def _innermost(where: str | None) -> tuple[Frame, ...]:
    file, _, place = (where or "").rpartition(":")
    line, _, function = place.partition(" in ")
    if not file or not (line.isascii() and line.isdigit() and len(line) < 10):
        return ()
    return (Frame(file, int(line), function or "?"),)


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
    frames = judged.frames or _frames(None, None, stacks)
    if not frames and judged.cause.name == STUCK:
        frames = _main_thread(stacks or "")
    return replace(judged, stacks=stacks, frames=frames)


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
        lines=(*worker.quotes, *proof_lines.lines(evidence, cause, where)),
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

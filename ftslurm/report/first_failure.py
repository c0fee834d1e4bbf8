"""The first failure of a round as it is reported, and its description if a worker failed (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ftslurm.dataclasses import dataclass
from ftslurm.failures.causes import CASCADE, PRIMARY, Cause
from ftslurm.failures.own_code import is_library, is_of_alarm, own_frame
from ftslurm.failures.reason import is_code, reason
from ftslurm.failures.signature import of_output
from ftslurm.pattern import pattern
from ftslurm.records.error import Frame
from ftslurm.report.facts import UNNAMED, Doubt, LogTail
from ftslurm.report.failed_worker import FailedWorker

MISSING = "missing"
"""Verdict on a rank that did not come to where the others gave up; then `what` is a sentence."""
TOO_FEW = "too-few"
"""Verdict on ranks that are all where a group is set up which waits for more; then `what` names them itself."""
LOG_LINES = 20
LOG_LINE_LIMIT = 1000
_HEADER = "Traceback (most recent call last):"
_HANDLER = pattern(r"(?i)alarm|xcpu|alrm|signal|sig_?(?:term|int|usr|hup)|timeout|timed_?out|handler")
_END = pattern(r"; (?:exit code |then SIG)")
VARIABLE = pattern(r"0x[0-9a-fA-F]+|(?<=/)tmp\w{3,12}\b|\d+(?:\.\d+)?")

_INSTALLED = pattern(r".*/(?:site-packages|dist-packages|lib(?:64)?/python3(?:\.\d+)?)/(.+)\Z")

Dict = dict[str, Any]


@dataclass(frozen=True)
class FirstFailure:
    """The failure that ended a round or the job; of a worker, or without a rank of nodes or of the whole job.

    Attributes:
        round: the round; 0: before the first one.
        kind: as in `ftslurm.failures.evidence.Evidence`.
        cause: the catalogue's row.
        what: a description, for use after "rank 3 on n2: ".
        signature: equal for failures of the same kind in several rounds.
        node, nodes: where; the first one and all, at most eight of a hang.
        ranks: of lost nodes or of the suspects of a hang, as text.
        time_ns: by the node's clock; ``doubt`` is its error.
        step: the last training step.
        advice: in place of the cause's, if not None.
        where, raised_in, log, hang: as in the report, see `docs/report-schema.md`.
        same_as_rounds: the earlier rounds with the same signature.
        evidence: names of the sources; ``lines``: the evidence as text.
        alike: the ranks that failed in the same way, as in the report.
        follows: what a cascade follows from, in short; None: of a cascade by its cause's row, nothing is recorded.
        awaited: the ranks that did not come to a monitored barrier, by its message, as text; None: it names none.
        proved: whether a failure whose cause is a cascade follows from something.
        remarks: what qualifies the headline, in sentences.
        overshadowed: a node that fell silent, from which it may follow.
    """

    round: int
    kind: str
    cause: Cause
    what: str
    signature: str
    node: str | None = None
    nodes: tuple[str, ...] = ()
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    ranks: str | None = None
    time_ns: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    core_dumped: bool = False
    step: int | None = None
    advice: str | None = None
    where: Dict | None = None
    raised_in: Dict | None = None
    traceback: str | None = None
    stacks: str | None = None
    log: Dict | None = None
    same_as_rounds: tuple[int, ...] = ()
    argv: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    hang: Mapping[str, Any] | None = None
    doubt: Doubt | None = None
    alike: Mapping[str, Any] | None = None
    follows: str | None = None
    awaited: str | None = None
    proved: bool = True
    remarks: tuple[str, ...] = ()
    overshadowed: str | None = None

    @property
    def cascade(self) -> bool:
        """Whether it is a consequence of another rank's end, by the records."""
        return self.cause.cascade and self.proved

    def as_dict(self) -> Dict:
        """Return the report's keys of a failed worker."""
        cause = self.cause
        return {
            "round": self.round,
            "node": self.node,
            "nodes": list(self.nodes),
            "host": self.host,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "time_ns": self.time_ns,
            "kind": self.kind,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "core_dumped": self.core_dumped,
            "step": self.step,
            "cause": cause.name,
            "title": cause.title,
            "role": CASCADE if self.cascade else PRIMARY,
            "advice": cause.advice if self.advice is None else self.advice,
            "what": self.what,
            "where": self.where,
            "raised_in": self.raised_in,
            "traceback": self.traceback,
            "stacks": self.stacks,
            "log": self.log,
            "signature": self.signature,
            "same_as_rounds": list(self.same_as_rounds),
            "ranks": self.ranks,
            "argv": list(self.argv),
            "evidence": list(self.evidence),
            "evidence_lines": list(self.lines),
            "restart": cause.restart,
            "hang": None if self.hang is None else dict(self.hang),
            "alike": None if self.alike is None else dict(self.alike),
            "follows": self.follows,
            "awaited": self.awaited,
            "remarks": list(self.remarks),
            "overshadowed": self.overshadowed,
        }

    def as_first(self) -> Dict:
        """Return the report's ``first_failure``: with the error of its time."""
        return self.as_dict() | uncertainty(self.doubt)


def uncertainty(doubt: Doubt | None) -> Dict:
    """Return the report's keys of the error of a time."""
    if doubt is None:
        return {"uncertainty_s": None, "clock": None}
    return {"uncertainty_s": doubt.ns / 1e9, "clock": "measured" if doubt.known else "assumed"}


def worker_failure(number: int, worker: FailedWorker, tails: Sequence[LogTail], cwd: str | None) -> FirstFailure:
    """Describe a failed worker in full.

    Args:
        number: the round.
        worker: it.
        tails: the ends of its output.
        cwd: the working directory of its attempt; files below it are shown by their relative paths.
    """
    where, raised_in = _locations(worker, cwd)
    return FirstFailure(
        round=number,
        kind=worker.kind,
        cause=worker.cause,
        what=worker.what,
        signature=_compared(number, worker, tails),
        node=None if worker.node == UNNAMED else worker.node,
        nodes=() if worker.node == UNNAMED else (worker.node,),
        host=worker.host,
        rank=worker.rank if worker.rank >= 0 else None,
        local_rank=worker.local_rank,
        ranks=str(worker.rank) if worker.rank >= 0 else None,
        time_ns=worker.time_ns,
        exit_code=worker.exit_code,
        signal=worker.signal,
        core_dumped=worker.core_dumped,
        step=worker.step,
        where=where,
        raised_in=raised_in,
        traceback=_traceback(worker),
        stacks=worker.stacks,
        log=log_end(tails, worker.traceback),
        argv=worker.argv,
        evidence=worker.evidence,
        lines=worker.lines,
    )


def signature(worker: FailedWorker) -> str:
    """Return the common part of failures of the same kind: the text without its numbers."""
    if worker.cause.cascade or worker.cause.name == "wrong-usage":
        # The symptoms of one broken connection differ from rank to rank; of several ranks that refuse their
        # arguments, the output of the first one is read.
        return worker.cause.name
    # A launcher may have ended it meanwhile.
    line = _END.split(worker.what[:2000].strip().split("\n", 1)[0], maxsplit=1)[0][:200]
    return f"{worker.cause.name}|{VARIABLE.sub('#', line)}"


def _compared(number: int, worker: FailedWorker, tails: Sequence[LogTail]) -> str:
    """Return the signature of a failure across rounds: of a bare exit code with the end of stderr."""
    kind = signature(worker)
    has_message = worker.exception is not None and not is_code(worker.exception.message)
    if worker.cause.name not in ("exit", "system-exit") or has_message:
        return kind
    end = next((of_output(tail.text) for tail in tails if tail.stream == "stderr"), None)
    return f"{kind}|{end or f'round {number}'}"


def _traceback(worker: FailedWorker) -> str | None:
    if worker.traceback or worker.exception is None or not worker.frames:
        return worker.traceback
    lines = [_HEADER]
    for frame in worker.frames:
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        if frame.source:
            lines.append(f"    {frame.source.strip()}")
    return "\n".join([*lines, worker.what])


def _locations(worker: FailedWorker, cwd: str | None) -> tuple[Dict | None, Dict | None]:
    """Return the innermost location in the user's own code and, if different, where it was raised.

    Of an exception that own code raised from another one, the latter is that of the first one.
    """
    frames = worker.frames
    if not frames:
        return None, None
    own = _interrupted(worker, own_frame(frames))
    if worker.exception is not None and worker.exception.type == "RecursionError":
        own = _repeated(frames) or own
    raised = _origin(worker, own) or (frames[-1] if own is not frames[-1] else None)
    return _location(own, cwd), None if raised is None else _location(raised, cwd)


def _origin(worker: FailedWorker, own: Frame) -> Frame | None:
    """Return the user's code that raised what an exception was raised from; None: there is none, or it is the same."""
    first = worker.exception
    while first is not None and first.cause is not None and first.cause.frames:
        first = first.cause
    # A pool passes on what its process raised, with the frames of that as a text.
    first = None if first is None else reason(first)
    if first is None or first is worker.exception or not first.frames:
        return None
    frame = own_frame(first.frames)
    same = (frame.file, frame.function) == (own.file, own.function)
    return None if same or is_library(frame.file) else frame


def _repeated(frames: Sequence[Frame]) -> Frame | None:
    """Return the own line that a recursion repeats, which is not where it ended; None: none is there twice."""
    own = [frame for frame in frames if not is_library(frame.file)]
    found = Counter((frame.file, frame.line) for frame in own).most_common(1)
    if not found or found[0][1] < 2:
        return None
    return next(frame for frame in reversed(own) if (frame.file, frame.line) == found[0][0])


def _interrupted(worker: FailedWorker, own: Frame) -> Frame:
    """Return the code that a handler of a signal interrupted, where the innermost own frame is that handler.

    The interrupted line does not call the handler, whose name says what it is.
    """
    frames = worker.frames
    at = next(i for i, frame in enumerate(frames) if frame is own)
    raised = worker.exception
    of_alarm = raised is not None and is_of_alarm(raised.message[:400])
    named = of_alarm or _HANDLER.search(own.function) is not None
    if not at or at != len(frames) - 1 or not named or own.function.startswith("__"):
        return own
    caller = frames[at - 1]
    name = own.function.rpartition(".")[2]
    if not caller.source or name in caller.source:
        return own
    return next((frame for frame in reversed(frames[:at]) if not is_library(frame.file)), own)


def _location(frame: Frame, cwd: str | None) -> Dict:
    return location_of(frame.file, frame.line, frame.function, frame.source, cwd)


def _packaged(file: str) -> str:
    """Return ``torch/_utils.py`` for a file of an installed package or of Python; others as they are."""
    found = _INSTALLED.match(file)
    return found[1] if found is not None else file


def location_of(file: str, line: int, function: str, source: str | None, cwd: str | None) -> Dict:
    """Describe a line of code; ``shown`` is its file relative to ``cwd``, or a library's with its package."""
    shown = _packaged(file)
    if shown == file and cwd and cwd != "/":
        shown = file.removeprefix(cwd.rstrip("/") + "/")
    return {"file": file, "shown": shown, "line": line, "function": function, "source": source}


def log_end(tails: Sequence[LogTail], traceback: str | None) -> Dict | None:
    """The end of stderr without the traceback shown elsewhere, else of stdout."""
    by_stream = {t.stream: t for t in tails}
    for stream in ("stderr", "stdout"):
        tail = by_stream.get(stream)
        if tail is None:
            continue
        lines = tail.text.rstrip().split("\n")
        if stream == "stderr" and traceback:
            lines = _without_traceback(lines, traceback)
        while lines and not lines[-1].strip():
            lines.pop()
        if any(line.strip() for line in lines):
            kept = [as_rewritten(line)[:LOG_LINE_LIMIT] for line in lines[-LOG_LINES:]]
            cut = len(kept) < len(lines) or tail.size > len(tail.text.encode("utf-8", "replace"))
            return {"stream": stream, "path": tail.path, "size": tail.size, "lines": kept, "cut": cut}
    return None


def as_rewritten(line: str) -> str:
    """Return the last version of a line that a progress bar rewrote, which a limit would cut off."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), line) if "\r" in line else line


def _without_traceback(lines: list[str], traceback: str) -> list[str]:
    if _HEADER not in traceback:
        return _without_block(lines, traceback)
    headers = [i for i, line in enumerate(lines) if _HEADER in line]
    wanted = traceback.count(_HEADER)
    if not wanted or len(headers) < wanted:
        return lines
    start = headers[-wanted]
    last = traceback.rstrip().rsplit("\n", 1)[-1].strip()
    end = next((i for i in range(len(lines) - 1, start, -1) if last and last in lines[i]), None)
    # No final line: the text after the header belongs to something else.
    return lines if end is None else lines[:start] + lines[end + 1 :]


def _without_block(lines: list[str], block: str) -> list[str]:
    """Leave out the last occurrence of a block: of a SyntaxError in the script itself, Python prints no header."""
    wanted = [line.strip() for line in block.strip().split("\n")]
    bare = [line.strip() for line in lines]
    starts = range(len(lines) - len(wanted), -1, -1)
    at = next((i for i in starts if bare[i : i + len(wanted)] == wanted), None)
    return lines if at is None else lines[:at] + lines[at + len(wanted) :]

"""What the report shows of one failed worker: its place in the code, traceback, output's end (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ftslurm.failures.causes import CASCADE
from ftslurm.failures.reason import is_code
from ftslurm.failures.record_summary import is_library
from ftslurm.failures.signature import of_output
from ftslurm.report.facts import Frame, LogTail
from ftslurm.report.failed_worker import FailedWorker

LOG_LINES = 20
LOG_LINE_LIMIT = 1000
FAILURE_KEYS = (
    "round", "node", "nodes", "host", "rank", "local_rank", "time_ns", "kind", "exit_code", "signal",
    "core_dumped", "step", "cause", "title", "role", "advice", "what", "where", "raised_in", "traceback",
    "stacks", "log", "signature", "same_as_rounds", "ranks", "argv", "evidence", "evidence_lines",
    "restart", "hang",
)  # fmt: skip
_HEADER = "Traceback (most recent call last):"
VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")

Dict = dict[str, Any]


def worker_failure(number: int, suspect: FailedWorker, tails: Sequence[LogTail], cwd: str | None) -> Dict:
    """Describe a failed worker in full; see `ftslurm.report.analysis` for the keys."""
    where, raised_in = _places(suspect, cwd)
    cause = suspect.cause
    return {
        "round": number,
        "node": suspect.node,
        "nodes": [suspect.node],
        "host": suspect.host,
        "rank": suspect.rank,
        "local_rank": suspect.local_rank,
        "time_ns": suspect.time_ns,
        "kind": suspect.kind,
        "exit_code": suspect.exit_code,
        "signal": suspect.signal,
        "core_dumped": suspect.core_dumped,
        "step": suspect.step,
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": cause.advice,
        "what": suspect.what,
        "where": where,
        "raised_in": raised_in,
        "traceback": _traceback(suspect),
        "stacks": suspect.stacks,
        "log": log_end(tails, suspect.traceback),
        "signature": _compared(number, suspect, tails),
        "same_as_rounds": [],
        "ranks": str(suspect.rank),
        "argv": list(suspect.argv),
        "evidence": list(suspect.evidence),
        "evidence_lines": list(suspect.lines),
        "restart": cause.restart,
        "hang": None,
    }


def short(suspect: FailedWorker) -> Dict:
    """Describe a failed worker in one line's worth."""
    return {
        "rank": suspect.rank,
        "node": suspect.node,
        "nodes": [suspect.node],
        "time_ns": suspect.time_ns,
        "cause": suspect.cause.name,
        "title": suspect.cause.title,
        "what": suspect.what,
        "core_dumped": suspect.core_dumped,
    }


def signature(suspect: FailedWorker) -> str:
    """Return what two failures of the same kind have in common: the text without its numbers."""
    if suspect.cause.role == CASCADE:
        # How a broken connection shows differs from rank to rank; it is one thing all the same.
        return suspect.cause.name
    line = suspect.what[:2000].strip().split("\n", 1)[0][:200]
    return f"{suspect.cause.name}|{VARIABLE.sub('#', line)}"


def _compared(number: int, suspect: FailedWorker, tails: Sequence[LogTail]) -> str:
    """Return what failures of several rounds are compared by: of a bare exit code the end of stderr, too."""
    kind = signature(suspect)
    said = suspect.exception is not None and not is_code(suspect.exception.message)
    if suspect.cause.name not in ("exit", "system-exit") or said:
        return kind
    end = next((of_output(tail.text) for tail in tails if tail.stream == "stderr"), None)
    return f"{kind}|{end or f'round {number}'}"


def _traceback(suspect: FailedWorker) -> str | None:
    if suspect.traceback or suspect.exception is None or not suspect.frames:
        return suspect.traceback
    lines = [_HEADER]
    for frame in suspect.frames:
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        if frame.source:
            lines.append(f"    {frame.source.strip()}")
    return "\n".join([*lines, suspect.what])


def _places(suspect: FailedWorker, cwd: str | None) -> tuple[Dict | None, Dict | None]:
    """Return the innermost place in the user's own code and, if it is another one, where it was raised."""
    frames = suspect.frames
    if not frames:
        return None, None
    own = next((f for f in reversed(frames) if not is_library(f.file)), frames[-1])
    return _place(own, cwd), None if own is frames[-1] else _place(frames[-1], cwd)


def _place(frame: Frame, cwd: str | None) -> Dict:
    return place_of(frame.file, frame.line, frame.function, frame.source, cwd)


def place_of(file: str, line: int, function: str, source: str | None, cwd: str | None) -> Dict:
    """Describe a line of code; ``shown`` is its file as somebody in ``cwd`` would call it."""
    shown = file.removeprefix(cwd.rstrip("/") + "/") if cwd and cwd != "/" else file
    return {"file": file, "shown": shown, "line": line, "function": function, "source": source}


def log_end(tails: Sequence[LogTail], traceback: str | None) -> Dict | None:
    """The end of stderr without the traceback that is shown already, else of stdout."""
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
            kept = [line[:LOG_LINE_LIMIT] for line in lines[-LOG_LINES:]]
            cut = len(kept) < len(lines) or tail.size > len(tail.text.encode("utf-8", "replace"))
            return {"stream": stream, "path": tail.path, "size": tail.size, "lines": kept, "cut": cut}
    return None


def _without_traceback(lines: list[str], traceback: str) -> list[str]:
    headers = [i for i, line in enumerate(lines) if _HEADER in line]
    wanted = traceback.count(_HEADER)
    if not wanted or len(headers) < wanted:
        return lines
    start = headers[-wanted]
    last = traceback.rstrip().rsplit("\n", 1)[-1].strip()
    end = next((i for i in range(len(lines) - 1, start, -1) if last and last in lines[i]), None)
    # No last line in sight: what follows the header belongs to something else.
    return lines if end is None else lines[:start] + lines[end + 1 :]

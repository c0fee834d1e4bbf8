"""The report's description of one failed worker: its location in the code, traceback, output tail (pure)."""

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


def worker_failure(number: int, worker: FailedWorker, tails: Sequence[LogTail], cwd: str | None) -> Dict:
    """Describe a failed worker in full; see `ftslurm.report.analysis` for the keys."""
    where, raised_in = _locations(worker, cwd)
    cause = worker.cause
    return {
        "round": number,
        "node": worker.node,
        "nodes": [worker.node],
        "host": worker.host,
        "rank": worker.rank,
        "local_rank": worker.local_rank,
        "time_ns": worker.time_ns,
        "kind": worker.kind,
        "exit_code": worker.exit_code,
        "signal": worker.signal,
        "core_dumped": worker.core_dumped,
        "step": worker.step,
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": cause.advice,
        "what": worker.what,
        "where": where,
        "raised_in": raised_in,
        "traceback": _traceback(worker),
        "stacks": worker.stacks,
        "log": log_end(tails, worker.traceback),
        "signature": _compared(number, worker, tails),
        "same_as_rounds": [],
        "ranks": str(worker.rank),
        "argv": list(worker.argv),
        "evidence": list(worker.evidence),
        "evidence_lines": list(worker.lines),
        "restart": cause.restart,
        "hang": None,
    }


def short(worker: FailedWorker) -> Dict:
    """Describe a failed worker briefly."""
    return {
        "rank": worker.rank,
        "node": worker.node,
        "nodes": [worker.node],
        "time_ns": worker.time_ns,
        "cause": worker.cause.name,
        "title": worker.cause.title,
        "what": worker.what,
        "core_dumped": worker.core_dumped,
    }


def signature(worker: FailedWorker) -> str:
    """Return the common part of failures of the same kind: the text without its numbers."""
    if worker.cause.role == CASCADE:
        # The symptoms of one broken connection differ from rank to rank.
        return worker.cause.name
    line = worker.what[:2000].strip().split("\n", 1)[0][:200]
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
    """Return the innermost location in the user's own code and, if different, where it was raised."""
    frames = worker.frames
    if not frames:
        return None, None
    own = next((f for f in reversed(frames) if not is_library(f.file)), frames[-1])
    return _location(own, cwd), None if own is frames[-1] else _location(frames[-1], cwd)


def _location(frame: Frame, cwd: str | None) -> Dict:
    return location_of(frame.file, frame.line, frame.function, frame.source, cwd)


def location_of(file: str, line: int, function: str, source: str | None, cwd: str | None) -> Dict:
    """Describe a line of code; ``shown`` is its file relative to ``cwd``."""
    shown = file.removeprefix(cwd.rstrip("/") + "/") if cwd and cwd != "/" else file
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
    # No final line: the text after the header belongs to something else.
    return lines if end is None else lines[:start] + lines[end + 1 :]

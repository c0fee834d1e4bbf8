"""Short phrases shared by all renderers: durations, rank ranges, what failed and where (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]

JOB_KINDS = ("time-limit", "preempted", "cancelled", "scheduler")
"""Kinds of failures that Slurm caused: of the whole job, of no rank and no node."""

# Escape sequences first, so that their printable remainder is removed too.
_ESCAPES = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    # OSC, DCS and the like, up to their terminator
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\\\|\x9c)?"
    "|\x9b[0-?]*[ -/]*[@-~]"
    "|\x1b[ -/]*[0-~]"
)
# C0 and C1 controls, what reorders or hides text, line separators, and halves of surrogate pairs.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


def safe(text: str) -> str:
    """Return one line of foreign text without effects on a terminal.

    Escape sequences are removed; of a line rewritten with carriage returns (a progress bar) the last
    version remains, as on a terminal; other control characters become ``\\xNN`` or ``\\uNNNN``.
    """
    text = _ESCAPES.sub("", text).rstrip("\r\n")
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    return _UNSAFE.sub(_visible, text.replace("\n", " ").expandtabs(8))


def safe_lines(text: str) -> list[str]:
    """Split foreign text into safe lines."""
    return [safe(line) for line in text.split("\n")]


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# gloo and c10d begin their messages with their own source location, which fills half a line.
_NATIVE_PLACE = re.compile(r"\[[^\]\s]{1,300}\.(?:cc|cpp|cu|h|hpp):\d+\] ?")


def clip(text: str, width: int) -> str:
    """Cut to ``width`` characters; three dots mark the cut."""
    return text if len(text) <= width else text[: max(0, width - 3)].rstrip() + "..."


def first_line(text: str) -> str:
    """Return the first line that is not blank, made safe."""
    for line in text[:8192].split("\n"):
        if line.strip():
            return safe(line).strip()
    return ""


def brief(text: str) -> str:
    """Return a message's first line without source locations of the runtime."""
    return first_line(_NATIVE_PLACE.sub("", text[:8192]))


def ranges(numbers: Iterable[int]) -> str:
    """Compress numbers: ``0-3, 7``."""
    parts: list[str] = []
    start = end = -2
    for n in sorted(set(numbers)):
        if n == end + 1:
            end = n
            continue
        if start >= 0:
            parts.append(_range(start, end))
        start = end = n
    if start >= 0:
        parts.append(_range(start, end))
    return ", ".join(parts)


def _range(start: int, end: int) -> str:
    return str(start) if start == end else f"{start}-{end}"


def names(values: Collection[str], most: int = 4) -> str:
    """List a few names, and the number of further ones."""
    shown = ", ".join(safe(v) for v in list(values)[:most])
    rest = len(values) - most
    return f"{shown} and {rest} more" if rest > 0 else shown


def count(number: int, thing: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def interval(seconds: float) -> str:
    """Format the time of a step: ``472 ms``, ``1.25 s``, ``2m 03s``."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def duration(seconds: float | None) -> str:
    """Format a duration in at most two units: ``0.8s``, ``3m 20s``, ``1h 02m``, ``2d 05h``."""
    if seconds is None:
        return "?"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def subject(failure: Json) -> str:
    """``rank 3 on n2``, or the lost nodes."""
    if failure["rank"] is None:
        nodes = failure["nodes"]
        if not nodes:
            return "a node"
        return f"node {safe(nodes[0])}" if len(nodes) == 1 else f"nodes {names(nodes)}"
    if failure.get("hang") and failure["ranks"] != str(failure["rank"]) and failure["hang"]["verdict"] != "none":
        return f"ranks {clip(failure['ranks'], 24)} on {names(failure['nodes'])}"
    return f"rank {failure['rank']} on {safe(failure['node'])}"


def what(failure: Json) -> str:
    """Describe a failure in one line."""
    text = brief(failure["what"]) or failure["title"]
    if not failure["core_dumped"]:
        return text
    return f"{text[:-1]}, core dumped)" if text.endswith(")") else f"{text} (core dumped)"


def verdict(failure: Json) -> str:
    """``rank 3 on n2: ValueError: boom``, ``node n2 was lost ...``."""
    if failure["rank"] is None and failure.get("kind") in (*JOB_KINDS, "unreachable"):
        return what(failure)
    return f"{subject(failure)}{' ' if failure['rank'] is None else ': '}{what(failure)}"


def stopped_by(report: Json) -> str:
    """Describe what stopped a run from outside: Slurm's reason, else the recorded one."""
    cause = report["cause"]
    if cause is not None and cause["kind"] in JOB_KINDS:
        return what(cause)
    return first_line(report["reason"] or "") or "why is not recorded"


def place(failure: Json) -> str:
    """``train.py:42 in train_step``, or empty without a known line."""
    where = failure["where"]
    if where is None:
        return ""
    function = safe(where["function"])
    tail = f" in {function}" if function and function != "<module>" else ""
    return f"{safe(where['shown'])}:{where['line']}{tail}"


def moment(failure: Json) -> str:
    """``step 120, round 2``, or ``in round 2``."""
    if failure["kind"] == "health-check":
        # There was no further round to take part in.
        return f"after round {failure['round']}" if failure["round"] else "before the first round"
    if failure["step"] is None:
        return f"in round {failure['round']}"
    return f"step {failure['step']}, round {failure['round']}"


def after(report: Json) -> str:
    """`` after 1 recovered failure and 2 interruptions``; empty if nothing happened."""
    parts = []
    if report["recovered"]:
        parts.append(count(len(report["recovered"]), "recovered failure"))
    if report["interrupted"]:
        parts.append(count(len(report["interrupted"]), "interruption"))
    return f" after {' and '.join(parts)}" if parts else ""


def summary(report: Json) -> str:
    """The whole report in one line."""
    run, status, cause = safe(report["run"]["id"]), report["status"], report["cause"]
    if status == "succeeded":
        return f"{run} succeeded{after(report)}"
    if status == "stopped":
        return f"{run} was stopped: {stopped_by(report)}"
    if status == "failed" and cause is None:
        return f"{run} failed: {first_line(report['reason'] or 'why is not recorded')}"
    state = {"failed": "failed", "running": "is still running"}.get(status, "has no recorded end")
    if report["job"] is not None:
        return f"{run} has no run: {first_line(report['job']['note'])}"
    return f"{run} {state}" if cause is None else f"{run} {state}: {verdict(cause)}"

"""torchrun's final table: which ranks failed, and which one first (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from ftslurm.dataclasses import replace
from ftslurm.pattern import pattern
from ftslurm.report.logs.end import End, with_code
from ftslurm.report.logs.lines import Line
from ftslurm.report.logs.tracebacks import HEADER, Raised, tracebacks

GIVEN_UP_S = 20
"""Less than the time after which torchrun kills ranks that do not end by SIGTERM."""
LONGEST = 4096
_ROW = pattern(
    r"^[ \t]*time +: (?P<time>.{0,40})\n[ \t]*host +: (?P<host>.{0,255})\n"
    r"[ \t]*rank +: (?P<rank>\d{1,6}) \(local_rank: (?P<local>\d{1,6})\)\n"
    r"[ \t]*exitcode +: (?P<code>-?\d{1,10}) \(pid: (?P<pid>\d{1,10})\).*\n"
    r"(?:[ \t]*error_file *:.*\n)?(?:[ \t]*traceback +: (?P<text>.*(?:\n(?!\[\d+\]:|[-=]{10}|Root Cause).*)*))?",
    re.MULTILINE,
)
_CUT_ROW = pattern(
    r"^[ \t]*time +: (?P<time>.{0,40})\n[ \t]*host +: (?P<host>.{0,255})\n"
    r"[ \t]*rank +: (?P<rank>\d{1,6}) \(local_rank: (?P<local>\d{1,6})\)?\s*\Z",
    re.MULTILINE,
)
OF_TABLE = pattern(
    r"[ \t]*(?:time|host|rank|exitcode|error_file|traceback) *:|\[\d+\]:$|-{10,}$|Failures:$|[ \t]*<NO_OTHER"
)


def table(lines: Sequence[Line], first: int, anchor: Line, borders: int = 2) -> tuple[int, list[End]]:
    """Return the line after torchrun's final table, and its rows.

    Args:
        lines: of the log.
        first: the first line of the table.
        anchor: the line to which its rows belong.
        borders: that it has from there on.
    """
    own = [(i, line) for i, line in enumerate(lines[first : first + LONGEST], first) if line.key == anchor.key]
    found = [at for at, (_, line) in enumerate(own) if line.text.startswith("=====")]
    # A table may be cut off.
    own = own[: found[borders - 1] + 1] if len(found) >= borders else own
    text = "\n".join(line.text for _, line in own)
    root = text.find("Root Cause")
    rows = [*_ROW.finditer(text), *_CUT_ROW.finditer(text)]
    ends = [_of_row(row, rows, anchor, is_root=0 <= root < row.start()) for row in rows]
    return (own[-1][0] + 1 if own else first), sorted(ends, key=lambda end: not end.root)


def _of_row(row: re.Match[str], rows: Sequence[re.Match[str]], anchor: Line, *, is_root: bool) -> End:
    end = End(anchor.number, "table", anchor.text, rank=int(row["rank"]), local=int(row["local"]),
              node=row["host"].strip() or None, root=is_root, at=row["time"].strip())  # fmt: skip
    if "code" not in row.re.groupindex:
        return end
    end = replace(with_code(end, int(row["code"])), pid=int(row["pid"]))
    # torchrun sends SIGTERM to the other ranks, and SIGKILL to those that are still there after half a minute.
    late = end.signal == "SIGKILL" and any(seconds_between(each["time"], row["time"]) >= GIVEN_UP_S for each in rows)
    stopped = not is_root and (end.signal in ("SIGTERM", "SIGINT") or late)
    return replace(end, stopped=stopped, raised=_raised(row["text"] or "", anchor))


def seconds_between(first: str, then: str) -> float:
    """Return the seconds between two times of torchrun's table; 0: one is not known."""
    try:
        begin, end = (datetime.fromisoformat(each.replace("_", " ")) for each in (first, then))
    except ValueError:
        return 0.0
    return (end - begin).total_seconds()


def _raised(text: str, line: Line) -> Raised | None:
    if HEADER not in text:
        return None
    texts = text.split("\n")
    own = [line._replace(text=each.removeprefix("  ") if i else each) for i, each in enumerate(texts)]
    found = tracebacks(own)
    return replace(found[-1], begin=line.number, end=line.number) if found else None

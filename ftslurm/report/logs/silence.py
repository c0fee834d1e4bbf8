"""A job without any output for long before it was ended from outside: it may have hung (pure).

A log has no stacks; the times of its lines show when the last one was printed, and which rank's last line is none of
progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from ftslurm.pattern import pattern
from ftslurm.report.logs.end import JobEnd
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.noise import is_aftermath, is_by_slurm
from ftslurm.report.logs.success import step_of, works
from ftslurm.report.logs.tracebacks import names_rank
from ftslurm.report.wording import SILENT
from ftslurm.text import cut_middle, duration, ranges

LEAST = timedelta(seconds=60)
FACTOR = 20
"""Times the usual interval between lines after which silence means something."""
FEWEST, RECENT = 2, 200
LINE_LIMIT = 100
FEW_BEHIND = 3
"""Of at least so many times as many ranks, those that are behind are an exception."""
_TIME = pattern(r"(?:(\d{4}-\d\d-\d\d)[T ])?(\d\d:\d\d:\d\d)\b")
_DIGITS = pattern(r"\d+")
_BEGINS = 40
"""Characters of a line in which its time begins."""


def silence(lines: Sequence[Line], end: JobEnd) -> str:
    """Describe how long nothing was printed before the job's end; empty: not for long, or that is not known.

    Args:
        lines: of the attempt.
        end: with its time.
    """
    at = _parsed(end.at or "", "")
    if at is None:
        return ""
    before = [line for line in lines if line.number < end.number and line.text != GAP]
    before = [line for line in before[-RECENT:] if not is_by_slurm(line.text)]
    day = at.date().isoformat()
    found = [(time, line) for line in before if (time := _parsed(line.text[:_BEGINS], day)) is not None and time <= at]
    if len(found) < FEWEST:
        return ""
    last = max(line.number for _, line in found)
    if any(line.number > last and works(line.text) for line in before):
        return ""  # of progress without a time it is not known when it was
    times = sorted(time for time, _ in found)
    usual = timedelta(seconds=max(median((b - a).total_seconds() for a, b in pairwise(times)), 1.0))
    silent = at - times[-1]
    if silent < max(LEAST, FACTOR * usual):
        return ""
    return f"{SILENT}{duration(silent.total_seconds())}{_waiting(before)}"


def _parsed(text: str, day: str) -> datetime | None:
    """Return the time in a text; without a date, on that day."""
    found = _TIME.search(text)
    if found is None or not (found[1] or day):
        return None
    try:
        return datetime.fromisoformat(f"{found[1] or day} {found[2]}")
    except ValueError:
        return None


def _waiting(lines: Sequence[Line]) -> str:
    """Return the last line of the only rank whose last line is none of progress, or of the one that printed last.

    Else which ranks are behind the others; empty: that is not known.
    """
    last: dict[int, Line] = {}
    for line in lines:
        rank = line.rank if line.rank is not None else line.task if line.task is not None else names_rank(line.text)
        if rank is not None and line.text.strip() and not is_aftermath(line.text):
            last[rank] = line
    other = [rank for rank, line in last.items() if not works(line.text)]
    forms = [_DIGITS.sub("#", line.text) for line in lines]
    if not last and lines and forms.count(forms[-1]) == 1:
        return f'; the last line was "{_bare(lines[-1])}"'
    final = lines[-1] if lines else None
    if len(other) > 1 and final is not None and not works(final.text) and forms.count(forms[-1]) == 1:
        other = [rank for rank, line in last.items() if line is final]
    if len(other) != 1 or len(last) < 2:
        return _behind(last)
    return f'; rank {other[0]} had printed last: "{_bare(last[other[0]])}"'


def _behind(last: Mapping[int, Line]) -> str:
    """Return the few ranks whose last step is an earlier one than that of all others; empty: there are none.

    With a new epoch, steps may be counted anew: the rank that is ahead then prints a lower one, and later.
    """
    steps = {rank: step for rank, line in last.items() if (step := step_of(line.text)) is not None}
    newest = max(steps.values(), default=0)
    behind = {rank: step for rank, step in steps.items() if step < newest}
    if len(steps) < len(last) or not behind or FEW_BEHIND * len(behind) > len(last):
        return ""
    if max(last[rank].number for rank in behind) > min(last[rank].number for rank in steps.keys() - behind.keys()):
        return ""
    named = f"rank{'s' if len(behind) > 1 else ''} {ranges(behind)}"
    return f"; {named} had printed no step {newest}, but all the others had"


def _bare(line: Line) -> str:
    return cut_middle(_TIME.sub("", line.text).lstrip(" \t|,.;:[]-0123456789").rstrip(), LINE_LIMIT)

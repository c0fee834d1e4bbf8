"""The printed lines of scripts/chaos (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chaos_parts.history import History
from chaos_parts.judge import Miss

SUCCEEDED = "succeeded"


@dataclass(frozen=True)
class Verdict:
    """Result of one job.

    Attributes:
        kept: directory of all its files, in case of a miss.
    """

    number: int
    history: History
    misses: tuple[Miss, ...]
    kept: str = ""


def outcome(history: History) -> str:
    """Return the outcome of a job."""
    if history.stuck:
        return "given up"
    return history.closed.outcome if history.closed is not None else history.state.lower() or "never started"


def job_lines(verdict: Verdict) -> list[str]:
    """Return the printed lines of one finished job."""
    history = verdict.history
    faults = ", ".join(each.text for each in history.injections) or "nothing"
    restarts = history.report.restarts_used if history.report is not None else 0
    seconds = (history.end_ns - history.begin_ns) / 1e9
    line = f"job {verdict.number}: {faults}: {outcome(history)} ({history.state}), {restarts} restarts, {seconds:.0f} s"
    if not verdict.misses:
        return [line]
    return [
        f"{line}; MISSED",
        *(f"  {miss.check}: {miss.text}" for miss in verdict.misses),
        f"  kept in {verdict.kept}",
    ]


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the table: each kind of fault, its number, and the outcomes of its jobs."""
    rows: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        for kind, times in Counter(each.kind for each in verdict.history.injections).items():
            row = rows.setdefault(kind, Counter())
            row["times"] += times
            row[SUCCEEDED if outcome(verdict.history) == SUCCEEDED else "ended"] += 1
            row["MISSED"] += bool(verdict.misses)
    cells = [["fault", "times", "succeeded", "ended otherwise", "MISSED"]]
    for kind in sorted(rows):
        row = rows[kind]
        cells.append([kind, *(str(row[key] or "-") for key in ("times", SUCCEEDED, "ended", "MISSED"))])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [_aligned(row, widths) for row in cells]
    missed = sum(bool(verdict.misses) for verdict in verdicts)
    times = sum(len(verdict.history.injections) for verdict in verdicts)
    counts = f"{_counted(len(verdicts), 'job')}, {_counted(times, 'fault')}"
    lines += ["", f"{counts}: {f'{missed} of the jobs MISSED something' if missed else 'no miss'}"]
    return lines


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join([row[0].ljust(widths[0]), *numbers])


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"

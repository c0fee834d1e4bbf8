"""Misspelt `FTSLURM_…` variables, which would be ignored silently (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.agent.option_table import OPTIONS

OWN = (
    *("RUN_ID", "ATTEMPT", "ROUND", "NODE", "RUN_DIR", "RECORD_DIR", "PIPE", "TIMEOUTS"),
    *("SUPERVISOR", "KILL_WAIT", "AVOID_CHECKPOINT", "HEALTH_BUSY", "REPORT", "EVENT", "EVENT_TEXT"),
)
"""Those of ftsrun, and those that ftslurm itself sets for its processes and workers; `docs/options.md` lists them."""
_PREFIX, _INTERNAL = "FTSLURM_", "FTSLURM__"
MOST_EDITS = 2


def misspelt(names: Iterable[str]) -> list[str]:
    """Return a line for each variable that is no option's, but almost.

    Another unknown name is a script's or a plugin's own.
    """
    known = [option.variable for option in OPTIONS]
    taken = {*known, *(f"{_PREFIX}{name}" for name in OWN)}
    lines = []
    for name in sorted(names):
        if not name.upper().startswith(_PREFIX) or name.startswith(_INTERNAL) or name in taken:
            continue
        number, nearest = min((edits(name.upper(), other), other) for other in known)
        # Of a short name, two edits make any other one.
        if number <= min(MOST_EDITS, (len(nearest) - len(_PREFIX) - 1) // 2):
            lines.append(f"{name} in the environment is no option and is ignored; did you mean {nearest}?")
    return lines


def edits(one: str, other: str) -> int:
    """Return the number of letters to insert, remove, replace, or swap with their neighbour, to make `other`."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, last = last, row
    return last[-1]

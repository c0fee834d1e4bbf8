"""Outputs that end with hundreds of lines of one form, behind which a reason may be hidden (pure)."""

from __future__ import annotations

import re
from itertools import groupby

FLOOD = 64
"""Lines of one form, one after the other, that are a flood; so many of its last lines are kept."""
_DIGITS = re.compile(r"\d+")


def ends_in_flood(text: str) -> bool:
    """Return whether most of an output's end are lines of one form at its very end, so that what is above matters."""
    lines = text.rstrip().split("\n")
    last = _form(lines[-1])
    count = next((i for i, line in enumerate(reversed(lines)) if _form(line) != last), len(lines))
    return count >= FLOOD and count * 2 > len(lines)


def without_floods(text: str) -> str:
    """Return an output with only the first and the last lines of each flood."""
    kept: list[str] = []
    for _, group in groupby(text.split("\n"), _form):
        lines = list(group)
        more = len(lines) - FLOOD
        if more > 1 and lines[0].strip():
            # Indented, so that it counts as part of what stands above.
            lines = [lines[0], f"    ... {more - 1:,} lines like this one", *lines[-FLOOD:]]
        kept += lines
    return "\n".join(kept)


def _form(line: str) -> str:
    """Return a line but for its numbers."""
    return _DIGITS.sub("#", line)

"""How text reports lay out lines: widths, wrapping, colours and dates (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ftslurm.report.words import clip

WIDTH = 80
# Lines that people copy (tracebacks, output) are not wrapped; beyond this they are data, not text.
EVIDENCE_WIDTH = 240

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Style:
    """Colour or not, how many columns, and whose clock (seconds since the epoch to a date)."""

    colour: bool
    width: int
    zone: Callable[[float], Any]

    def title(self, start: str, rest: str, colour: str) -> str:
        """The first line; its start in colour."""
        line = clip(start + rest, self.width)
        if not self.colour:
            return line
        code = {"red": "31", "green": "32", "yellow": "33"}[colour]
        return f"\x1b[1;{code}m{line[: len(start)]}\x1b[0m{line[len(start) :]}"

    def section(self, title: str) -> str:
        """The line above a block."""
        return f"\x1b[1m{title}\x1b[0m" if self.colour else title

    def line(self, text: str) -> str:
        """Indent one line of our own, and cut it to the width."""
        return clip(f"  {text}", self.width)

    def quoted(self, lines: Iterable[str], prefix: str) -> list[str]:
        """Set quoted lines behind a prefix."""
        return [(prefix + clip(line, EVIDENCE_WIDTH)).rstrip() for line in lines]

    def wrapped(self, text: str, indent: str = "  ") -> list[str]:
        """Wrap at blanks; the following lines are indented deeper."""
        lines: list[str] = []
        line = indent
        for word in text.split():
            if len(line) + len(word) + 1 > self.width and line.strip():
                lines.append(line)
                line = indent + "  "
            line += word if line.endswith(" ") else f" {word}"
        return [*lines, line] if line.strip() else lines

    def date(self, time_ns: int | None, form: str = "%m-%d %H:%M:%S") -> str:
        """Say a time in the reader's zone; a question mark if there is no such date."""
        if time_ns is None:
            return "?"
        try:
            return time.strftime(form, self.zone(time_ns / 1e9))
        except (ValueError, OverflowError, OSError):
            return "?"

"""Layout of text reports: widths, wrapping, colours and dates (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftslurm.dataclasses import dataclass
from ftslurm.report.wording import clip

WIDTH = 80
# Lines that users copy (tracebacks, output) are not wrapped; beyond this width they are data, not text.
EVIDENCE_WIDTH = 240

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Style:
    """Colour or not, the number of columns, and the time zone (seconds since the epoch to a date)."""

    colour: bool
    width: int
    zone: Callable[[float], Any]

    def title(self, start: str, rest: str, colour: str) -> list[str]:
        """The first line, its start in colour; a long one continues in a second line."""
        lines = self.wrapped(start + rest, "", "  ")
        if len(lines) > 2:
            width = self.width - 2
            lines[1:] = [f"  {clip(' '.join(line.strip() for line in lines[1:]), width)}"]
        first = clip(lines[0], self.width)
        if not self.colour:
            return [first, *lines[1:]]
        code = {"red": "31", "green": "32", "yellow": "33"}[colour]
        return [f"\x1b[1;{code}m{first[: len(start)]}\x1b[0m{first[len(start) :]}", *lines[1:]]

    def section(self, title: str) -> str:
        """The line above a block."""
        return f"\x1b[1m{title}\x1b[0m" if self.colour else title

    def line(self, text: str) -> str:
        """Indent one line of ftslurm's own text, and cut it to the width."""
        return clip(f"  {text}", self.width)

    def quoted(self, lines: Iterable[str], prefix: str) -> list[str]:
        """Set quoted lines behind a prefix."""
        return [(prefix + clip(line, EVIDENCE_WIDTH)).rstrip() for line in lines]

    def wrapped(self, text: str, indent: str = "  ", deeper: str = "    ") -> list[str]:
        """Wrap at blanks; the following lines are indented by ``deeper``. Words too long are cut."""
        lines: list[str] = []
        line = indent
        for word in text.split():
            if len(line) + len(word) + 1 > self.width and line.strip():
                lines.append(line)
                line = deeper
            line += word if not line.strip() else f" {word}"
        lines += [line] if line.strip() else []
        return [clip(each, self.width) for each in lines]

    def date(self, time_ns: int | None, form: str = "%m-%d %H:%M:%S") -> str:
        """Format a time in the reader's zone; a question mark if there is no such date."""
        if time_ns is None:
            return "?"
        try:
            return time.strftime(form, self.zone(time_ns / 1e9))
        except (ValueError, OverflowError, OSError):
            return "?"

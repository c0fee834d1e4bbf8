"""Tracebacks in boxes, as the package rich draws them (typer, Lightning, and others), in the form of Python (pure).

A box has the frames as ``file:line in function``, then lines of source with a mark at the one that ran, and the values
of variables; below it is the exception's type and message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.report.logs.lines import Line

_TOP = re.compile(r"(?P<before>.*?)[╭┌+][─━-]+ Traceback \(most recent call last\) [─━-]+[╮┐+]\s*$")
_BOTTOM = re.compile(r"\s*[╰└+][─━-]{8,}")
_FRAME = re.compile(r"\s*[│|] (?P<file>\S.*?):(?P<line>\d{1,9}) in (?P<function>[^\s│|]+)\s*[│|]?\s*$")
_SOURCE = re.compile(r"\s*[│|] ❱ *\d+ [│|]?(?P<source>.*?)[│|]?\s*$")
HEADER = "Traceback (most recent call last):"


def unboxed(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with each box in the form of Python's own traceback; others as they are."""
    if not any("Traceback (most recent call last) " in line.text for line in lines):
        return list(lines)
    found: list[Line] = []
    inside = False
    for line in lines:
        top = _TOP.match(line.text)
        if top is not None:
            inside = True
            found.append(line._replace(text=HEADER))
        elif not inside:
            found.append(line)
        elif _BOTTOM.match(line.text):
            inside = False
        elif (frame := _FRAME.match(line.text)) is not None:
            place = f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}'
            found.append(line._replace(text=place))
        elif (source := _SOURCE.match(line.text)) is not None:
            found.append(line._replace(text=f"    {source['source'].strip(' │|')}"))
        elif "│" not in line.text and "|" not in line.text:
            # The box was cut off.
            inside = False
            found.append(line)
    return found


__all__ = ["unboxed"]

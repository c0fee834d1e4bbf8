"""Tracebacks in boxes, as the package rich draws them (typer, Lightning, and others), in the form of Python (pure).

A box has the frames as ``file:line in function``, then lines of source with a mark at the one that ran, and the values
of variables; below it is the exception's type and message.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.pattern import pattern
from ftslurm.report.logs.lines import Line

_TOP = pattern(r"(?P<before>.*?)[╭┌+][─━-]+ Traceback \(most recent call last\) [─━-]+[╮┐+]\s*$")
_BOTTOM = pattern(r"\s*[╰└+][─━-]{8,}")
# A long path fills its line: its number and function are in the next one.
_PATH = pattern(r"\s*[│|] (?P<file>\S.{6,}?):\s*[│|]?\s*$")
_FRAME = pattern(r"\s*[│|] (?P<file>\S.*?):(?P<line>\d{1,9}) in (?P<function>[^\s│|]+)\s*[│|]?\s*$")
# A path that is too long for its line is wrapped anywhere.
_BEGUN = pattern(r"\s*[│|] (?P<text>/\S*(?: in)?) *[│|]?\s*$")
_REST = pattern(r"\s*[│|] (?P<rest>\S.*?) *[│|]?\s*$")
_JOINED = pattern(r"(?P<file>\S.*?):(?P<line>\d{1,9}) in (?P<function>\S+)")
_SOURCE = pattern(r"\s*[│|] ❱ *\d+ [│|]?(?P<source>.*?)[│|]?\s*$")
_RECORD = pattern(r"\[?\d{4}-\d\d-\d\d[ T]")  # of a logger
_LONGEST = 1000
"""Lines of a box."""
HEADER = "Traceback (most recent call last):"


def unboxed(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with each box in the form of Python's own traceback; others as they are."""
    inside = _begins_within(lines)
    if not inside and not any("Traceback (most recent call last) " in line.text for line in lines):
        return list(lines)
    found: list[Line] = [lines[0]._replace(text=HEADER)] if inside else []
    width, last, file = 0, "", ""
    for line in lines:
        top = _TOP.match(line.text)
        path, file = file, ""
        if top is not None:
            inside = True
            found.append(line._replace(text=HEADER))
        elif not inside and _is_wrapped(last, line.text, width):
            found[-1] = found[-1]._replace(text=f"{found[-1].text} {line.text}")
            last = line.text
        elif not inside:
            found.append(line)
            # Only what follows the box directly is wrapped to its width.
            last, width = (line.text, width) if not last else ("", 0)
        elif _BOTTOM.match(line.text):
            inside, width, last = False, len(line.text.rstrip()), ""
        elif path and (joined := _joined(path, line.text)):
            found.append(line._replace(text=joined))
        elif begun := _begun(line.text):
            file = begun
        elif (frame := _FRAME.match(line.text)) is not None:
            text = f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}'
            found.append(line._replace(text=text))
        elif (source := _SOURCE.match(line.text)) is not None:
            found.append(line._replace(text=f"    {source['source'].strip(' │|')}"))
        elif "│" not in line.text and "|" not in line.text:
            # The box was cut off.
            inside = False
            found.append(line)
    return found


def _begun(text: str) -> str:
    """Return the path that fills its line of a box, so that the rest of it is in the next one; empty: there is none."""
    alone = _PATH.match(text)
    if alone is not None and "/" in alone["file"]:
        return f"{alone['file']}:"
    found = _BEGUN.match(text) if _FRAME.match(text) is None else None
    return "" if found is None else f"{found['text']} " if found["text"].endswith(" in") else found["text"]


def _joined(path: str, text: str) -> str:
    """Return the frame whose path and number are in two lines of a box; empty: the second one has something else."""
    rest = _REST.match(text)
    found = _JOINED.fullmatch(path + rest["rest"]) if rest is not None else None
    return f'  File "{found["file"]}", line {found["line"]}, in {found["function"]}' if found is not None else ""


def _is_wrapped(last: str, text: str, width: int) -> bool:
    """Whether a line is the rest of the last one, which had no room for its first word within the box's width."""
    if not width or not last or not text[:1].strip() or text[:1] in "╭┌+" or _RECORD.match(text):
        return False
    return len(last) <= width < len(last) + 1 + len(text.split(" ", 1)[0])


def _begins_within(lines: Sequence[Line]) -> bool:
    """Whether the first lines are of a box whose top is missing."""
    bottom = next((i for i, line in enumerate(lines[:_LONGEST]) if _BOTTOM.match(line.text)), 0)
    return bottom > 0 and all(line.text.lstrip()[:1] in ("│", "|") for line in lines[:bottom])

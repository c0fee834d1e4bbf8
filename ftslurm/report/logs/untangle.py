"""Tracebacks of several ranks between each other, line by line, sorted out so that each is in one piece (pure).

Ranks that share an output write single lines of their tracebacks. Which line is whose shows by what a traceback must
have next: a frame, its source line, the exception's type. A rank writes in bursts, so that the newest traceback is
preferred; the same line twice is of two ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile

from ftslurm.dataclasses import dataclass, field
from ftslurm.pattern import pattern
from ftslurm.report.logs.lines import GAP, REMOTE, Line

HEADER = "Traceback (most recent call last):"
COPIES = 64
"""Tracebacks at most that are sorted out as equal ones."""
PATIENCE = 200
"""Lines of others after which an unfinished traceback counts as cut off."""
_FRAME = pattern(r'(?: {1,2})?File "[^"\n]{1,4096}", line \d{1,9}')
# Python writes the type, ": " and the message of an exception one after another.
_TORN = pattern(r"(?P<type>(?:\w+\.)*[A-Z]\w{2,60}?)(?P=type)+(?:: )+(?P<message>.*?)(?:: ?)?")
# And before these the type's module.
_TORN_MODULE = pattern(
    r"(?P<module>(?:\w+\.)*\w+?)(?P=module)[.: ]{1,4}(?P<type>[A-Z]\w{2,60}(?:Error|Exception))[.: ]{1,4}(?P=type)"
    r"[: ]{0,3}(?P<message>.*)"
)
_FURTHER = pattern(r"nccl[A-Z]\w+: |Last error:")
_CARETS = pattern(r" +[~^][ ~^]*")
_DIGITS = pattern(r"\d+")
_LAST = pattern(r"([A-Za-z_][\w.<>]{0,200})(?:: ?(.*))?", re.DOTALL)
_EXCEPTION = pattern(
    r"(?:\w+\.)*(?:_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Group|Warning|Timeout|Failure|Fault|Refused"
    r"|Closed|Lost|Invalid|Abort|Aborted|Died|OutOfMemory|Full|Empty|Errors|Failed|Cancelled|NotFound|Exceeded|Event)"
    r"|Exception|BaseException|BdbQuit|error|timeout|gaierror|herror)"
)
_CAMEL = pattern(r"(?:\w+\.)+\w+|[A-Z]\w*[a-z]\w*")


@dataclass
class _Open:
    """A traceback whose end was not read yet."""

    header: Line
    prefix: str
    lines: list[Line] = field(default_factory=list)
    frames: int = 0
    touched: int = 0
    wants_source: bool = False
    last: str = ""
    last_frame: str = ""

    def body(self, text: str) -> str:
        """A line without the prefix that the header had; times and counters in it change."""
        if not self.prefix or (text.startswith("  ") and self.prefix.strip()):
            return text
        numbered = r"\d+".join(map(re.escape, _DIGITS.split(self.prefix)))
        found = re.match(numbered, text)
        return text[found.end() :] if found else text

    def add(self, i: int, line: Line, text: str) -> None:
        self.lines.append(line)
        self.touched = i
        self.last = text


def untangled(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of a stream with each traceback in one piece, and lines of others after it."""
    if sum(HEADER in line.text for line in lines) == 0:
        return list(lines)
    lines = _one_after_another(lines)
    sorter = _Sorter(lines)
    for i, line in enumerate(lines):
        sorter.add(i, untorn(line) if sorter.open else line)
    sorter.close(sorter.open)
    return sorter.done


def _one_after_another(lines: Sequence[Line]) -> Sequence[Line]:
    """Return the lines with equal tracebacks of ranks that wrote at once one after another.

    If all ranks raise the same at one place, each line is there as often as there are tracebacks, and their frames are
    in the order in which each is seen first: no rank prints a frame before the one above it.
    """
    headers = [i for i, line in enumerate(lines) if line.text == HEADER]
    last = _last_lines(lines, headers[0]) if len(headers) > 1 else []
    equal = [i for i in last if lines[i].text == lines[last[0]].text]
    count, end = len(equal), equal[-1] + 1 if equal else 0
    if not 1 < count <= COPIES or sum(i < end for i in headers) != count or sum(i < end for i in last) != count:
        return lines
    if all(own < header for own, header in zip(equal[:-1], headers[1:count], strict=True)):
        return lines  # one after another already
    part = lines[headers[0] : end]
    frames = [line for line in part if _FRAME.match(line.text)]
    found = Counter(line.text for line in frames)
    if not found or set(found.values()) != {count}:
        return lines
    order = [*dict.fromkeys(line.text for line in frames)]
    sources = {text: _source_of(part, text) for text in order}
    wanted = [HEADER, *(text for frame in order for text in (frame, sources[frame]) if text), lines[last[0]].text]
    if sum(Counter(wanted).values()) * count > len(part):
        return lines
    queues: dict[str, list[Line]] = {}
    for line in part:
        queues.setdefault(line.text, []).append(line)
    in_turn: list[Line] = []
    for _ in range(count):
        for text in wanted:
            if not queues.get(text):
                return lines  # a line is missing: they were not equal
            in_turn.append(queues[text].pop(0))
    rest = [line for own in queues.values() for line in own]
    return [*lines[: headers[0]], *in_turn, *sorted(rest, key=lambda line: line.number), *lines[end:]]


def _last_lines(lines: Sequence[Line], begin: int) -> list[int]:
    """Return where the lines with an exception's type are, from the first traceback on."""
    found = ((i, _LAST.fullmatch(line.text.rstrip())) for i, line in enumerate(lines) if i > begin)
    return [i for i, match in found if match is not None and _EXCEPTION.fullmatch(match[1])]


def _source_of(lines: Sequence[Line], frame: str) -> str:
    """Return the line that mostly follows a frame, if it is one of source; empty: none is known."""
    after = Counter(
        below.text for line, below in pairwise(lines) if line.text == frame and below.text.startswith("    ")
    )
    return after.most_common(1)[0][0] if after else ""


def untorn(line: Line) -> Line:
    """Return a line in which two ranks wrote the parts of their last lines in turn, as one rank's."""
    found = _TORN.fullmatch(line.text) or _TORN_MODULE.fullmatch(line.text)
    return line if found is None else line._replace(text=f"{found['type']}: {found['message']}")


class _Sorter:
    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.open: list[_Open] = []
        self.done: list[Line] = []
        self.others: list[Line] = []  # lines of others while a traceback is open
        self.closed = -1  # the last line of the last complete traceback
        self.introduces: Line | None = None  # the last line of a message that goes on in lines with a tab before them
        self.ended: dict[str, set[str]] = {}  # the last frames of tracebacks, by their last line

    def add(self, i: int, line: Line) -> None:
        """Read the next line."""
        if line.text == GAP:
            self.close(self.open)
        self.close([each for each in self.open if i - each.touched > PATIENCE])
        if f"{HEADER}{REMOTE}" in line.text:
            self.close(self.open)  # what waited for that process has no end of its own
        at = line.text.find(HEADER)
        # The bars of a group are of one process.
        if at >= 0 and "Exception Group" not in line.text and "|" not in line.text[:at].strip()[:1]:
            opened = _Open(line, line.text[:at], touched=i)
            opened.lines.append(line)
            self.open.append(opened)
        elif not self.open:
            self.done.append(line)
        else:
            self.part(i, line)

    def part(self, i: int, line: Line) -> None:
        """Give a line to the traceback that it belongs to."""
        if line.text.startswith("\t") and self.introduces is not None:
            # Of a message whose first line another rank's lines have followed.
            self.done.insert(1 + self.done.index(self.introduces), line)
            self.introduces = line
            return
        for each in self.candidates(line.text):
            text = each.body(line.text)
            if _FRAME.match(text):
                each.frames += 1
                each.wants_source = True
                each.last_frame = text
            elif each.wants_source and each.last_frame.startswith("File") and not _EXCEPTION.match(text):
                each.wants_source = False  # of a text whose indentation is lost
            elif text[:1].isspace() or not text.strip():
                each.wants_source = False
            elif self.is_last(each, i, text):
                self.ended.setdefault(_DIGITS.sub("0", text), set()).add(each.last_frame)
                each.add(i, line, text)
                self.closed = i
                self.close([each])
                self.introduces = line if text.rstrip().endswith(":") else self.introduces
                return
            else:
                continue
            each.add(i, line, text)
            return
        if self.closed == i - 1 and self.done and (_FURTHER.match(line.text) or self.done[-1].text == "Last error:"):
            self.closed = i
            self.done.append(line)  # of the message of the exception above
            return
        self.others.append(line)

    def candidates(self, text: str) -> list[_Open]:
        """Return the open tracebacks in the order in which a line may belong to them."""
        newest = max(self.open, key=lambda each: each.touched)
        others = [each for each in self.open if each is not newest]
        if not others or _CARETS.fullmatch(text):
            return [newest]
        if _FRAME.match(newest.body(text)):
            # The same frame again: of another rank, that has not come so far yet.
            behind = [each for each in others if 0 < each.frames < newest.frames]
            if newest.last_frame == newest.body(text) and behind:
                return [*behind, newest, *others]
            # Two frames in a row: two ranks in step with each other, unless the source is not known.
            step = newest.wants_source and (newest.last == text or any(not each.wants_source for each in others))
            waiting = sorted((each for each in others if not each.wants_source), key=lambda each: each.frames)
            return [*waiting, newest, *others] if step else [newest, *others]
        if text.startswith("    "):
            return [*(each for each in [newest, *others] if each.wants_source), newest, *others]
        complete = [each for each in [newest, *others] if each.frames and not each.wants_source]
        complete.sort(key=lambda each: not self.fits(each, text))
        return [*complete, *(each for each in [newest, *others] if each not in complete)]

    def fits(self, each: _Open, text: str) -> bool:
        """Whether a traceback ends where an equal exception was raised before, or torch's own in torch."""
        known = self.ended.get(_DIGITS.sub("0", text))
        return each.last_frame in known if known else ("gloo" in text) == ("/torch/distributed/" in each.last_frame)

    def is_last(self, each: _Open, i: int, text: str) -> bool:
        """Whether a line has the type of an exception; one of an unusual name must follow at once, and be the last."""
        found = _LAST.fullmatch(text.rstrip())
        if found is None:
            return False
        if _EXCEPTION.fullmatch(found[1]):
            return True
        follows = each.touched == i - 1 and each.frames > 0 and _CAMEL.fullmatch(found[1]) is not None
        # The frames of a traceback that begins below are not of this one.
        below = takewhile(lambda line: HEADER not in line.text, self.lines[i + 1 : i + 4])
        return follows and not any(_FRAME.match(each.body(line.text)) for line in below)

    def close(self, those: Sequence[_Open]) -> None:
        """Put out the lines of these tracebacks, and those of others when none is open."""
        for each in list(those):
            self.open = [other for other in self.open if other is not each]
            self.done += each.lines
        if not self.open and self.others:
            # A traceback is in one piece only if nothing of others follows within its message.
            self.done += self.others
            self.others = []

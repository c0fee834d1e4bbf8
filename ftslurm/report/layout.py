"""Texts in the room that they have: what is left out first, widths, colours and dates (pure)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from ftslurm.dataclasses import dataclass
from ftslurm.pattern import pattern
from ftslurm.text import clip, cut_middle

WIDTH = 80
# Lines that users copy (tracebacks, output) are not wrapped; beyond this width they are data, not text.
EVIDENCE_WIDTH = 240

_WORD = pattern(r"\d[\d.,]* (?:ms|s|min|h|d)\b\S*|\S+")
_TYPE = pattern(r".{0,100}?(?:\w(?:Error|Exception|Exit|Interrupt)(?:: |\(['\"])|refused its arguments: )")
# Values in a list or mapping of a message; a shape is short.
_DATA = pattern(
    r"([\[{])(?:[^\[\]{}\n]{60,2000}|(?=(?:[^\[\]{},\n]{1,100},){3})[^\[\]{}\n]{40,2000})([\]}])(?=[\])}.,;]{0,20}$)"
)
# What is left of them at the end.
_NO_DATA = pattern(r":? (?:\[\.\.\.\]|\{\.\.\.\})\.?$")
_NAMES_ERROR = pattern(r"\w(?:Error|Exception)\b")
# argparse's list of values, the process of a data loader, a source that is also with the evidence, and the number
# of an error whose text follows.
_BEHIND = pattern(
    r"(?<=Error: )\[Errno \d{1,3}\] (?=[A-Z])| \(choose from [^()]{1,2000}\)"
    r"| \(in DataLoader worker process \d{1,6}\)(?=\W*$)"
    r"|, from (?:its child's output|its stderr|the line before it)(?=\)\W*$)"
    r"| \(from (?:its child's output|its stderr|the line before it)\)(?=\W*$)"
    r"| \(on ranks? [\d, -]{1,200}\)(?=\W*$)"
    r"|, exceeded error retry count after \d+ attempts"
    # Of argparse, the program's name.
    r"|(?:(?<=: )|^)[\w./-]{1,120}: error: (?=\w)"
)
_OF_COMMAND = pattern(r"(\((?:after|from) \w+: [\w ]{1,40}?) of the command .*(?=\)$)")
# Types that say nothing.
_TYPE_BEHIND = pattern(r"(?<= \()(?:Runtime|DistBackend|Unpickling)Error: (?:NCCL error: [^:\n]{1,60}: (?=\S.{24}))?")
_PLAIN_TYPE = pattern(r"(?:(?<=: )|^)(?:RuntimeError|Exception|Error): (?=\S.{23})")
# Before the reason that NCCL gives, and HCCL.
_BY_NCCL = pattern(
    r"(?:(?:Runtime|DistBackend)Error: )?NCCL error(?: in)?: [^\n]{1,260}?\bNCCL (?:version )?\d[\d.]*\)?: (?=\S.{23})"
)
# Of a cause whose title states that sizes differ.
_SIZES = pattern(r"size mismatch for (\S{1,200}: \[[\d, ]*\]) in the checkpoint, (\[[\d, ]*\] in the model)")
# Of NCCL, whose further fields are for its authors.
_COMPLETION = pattern(r"NET/IB ?: ?Got completion from peer (\S{3,60}) with status=(\w{1,40})(?P<rest>[^\n]{0,600})$")
_ADAPTER = pattern(r"\bhca (\w{1,40})")
_SOURCE = pattern(r"(?:\[ERROR\] )?(?<=\W)(\w{2,8} error) in: \S{1,200}\.(?:cpp|hpp|cc|cu|h):\d+[:,] ")
_OF_ENROOT = pattern(r"\[ERROR\] URL https?://(\S{1,300}) returned error code: ")
_FUNCTION = pattern(r"(?<=[ (])socket\w{4,20}: (?=[A-Za-z])")
_FROM = pattern(r" \((?:from|raised from) \w+(?:Error|Exception)\b.*\)$")  # what an exception was raised from
_BEHIND_TYPE, _END = 12, 24
WHOLE_SENTENCE = 0.6
"""Part of the room from which on a sentence is shown without what follows it."""
_REASON = pattern(
    r"(?i)\b(?:reason|invalid|because|caused?|\w*error|exception|failed|fails|errno|status|ranks?|tasks?|nodes?)\b"
)
_SECOND_ROOM = 40  # less has no room for what raised it and for its own reason
# What was raised because of a failure, or after it, comes second.
_SECOND = pattern(
    r"(?P<first>.*?) \((?P<second>(?:its cleanup raised|then) .*?)\)(?P<end>\)?(?:; (?:exit code \d+|then SIG\w+))?)"
)
# What passed another exception on says less than that.
_PASSED_ON = pattern(r"(?<=.) \((?:BrokenProcessPool|BrokenExecutor|RemoteError|ExecutionFailed): [^\n]*\)$")
_LONG_PATH = pattern(r"(?<![\w./:])(?:/[\w.+@=~-]{1,80}){3,40}/([\w.+@=~-]{1,120})(?![\w/])")
_SENTENCE_ENDS = pattern(r"(?<=[a-z0-9'\"`)\]][.!;])\s+(?=[A-Z])")
_REQUIRED_BY = pattern(r" \(required by [^()]{0,400}?([^()/]{1,120})\)")  # of the dynamic linker


def with_short_paths(text: str) -> str:
    """Return a text whose long paths have no more than their last parts, for a line that has no room for more."""
    return _LONG_PATH.sub(r".../\1", _REQUIRED_BY.sub(r" (required by \1)", text))


def by_sentences(text: str, room: int) -> str:
    """Return the first sentence of a text that is too long, with as many of the last ones as have room."""
    first, *rest = _SENTENCE_ENDS.split(text)
    if len(text) <= room or not rest or len(first) > room:
        return text
    kept = ""
    for each in reversed(rest):
        longer = f"{each} {kept}".rstrip()
        if len(first) + len(longer) + 5 > room:
            break
        kept = longer
    # An end that is too long may have the reason: it is cut in the middle.
    return f"{first} ... {kept}" if kept else text


def _first_sentence(text: str, room: int) -> str:
    """Return the first sentence of a text, if it is long, and the last one seems to give no reason; else nothing."""
    first, *rest = _SENTENCE_ENDS.split(text)
    whole = WHOLE_SENTENCE * room <= len(first) <= room - len(" ...") and first.count("(") == first.count(")")
    return f"{first} ..." if rest and whole and _REASON.search(rest[-1]) is None else ""


def shortened(text: str, room: int) -> str:
    """Cut in the middle; what came second first, and of a claim with its evidence in parentheses the evidence."""
    both = _SECOND.fullmatch(text)
    if both is not None and len(text) > room:
        left = room - len(both["first"]) - len(both["end"]) - len(" ()")
        if left >= _SECOND_ROOM:
            return f"{both['first']} ({cut_middle(both['second'], left)}){both['end']}"
        return shortened(f"{both['first']}{both['end']}", room)
    if len(text) > room:
        text = _PASSED_ON.sub("", _BEHIND.sub("", text))
    for known, short in (
        (_OF_COMMAND, r"\1"),
        (_BY_NCCL, _nccl),
        (_SOURCE, r"\1: "),
        (_OF_ENROOT, r"\1: "),
        (_FUNCTION, ""),
        (_SIZES, r"\1 saved, \2"),
        (_COMPLETION, _completion),
    ):
        text = known.sub(short, text, count=1) if len(text) > room else text
    if len(text) > room:
        text = _DATA.sub(_without_data, text)
    if len(text) > room:
        text = _NO_DATA.sub("", text)
    if len(text) > room and (plain := _PLAIN_TYPE.sub("", text, count=1)) != text and len(plain) <= room:
        return plain
    if len(text) > room:
        # The title of a known cause says as much as the type of its exception.
        text = _TYPE_BEHIND.sub("", text, count=1)
    if len(text) <= room:
        return text
    if whole := _first_sentence(text, room):
        return whole
    begin = text.find(" (") + 2
    if begin > 1 and text.endswith(")") and begin < room - 24:
        return f"{text[:begin]}{cut_middle(text[begin:-1], room - begin - 1)})"
    kind = _TYPE.match(text)
    head = kind.end() + _BEHIND_TYPE if kind is not None else 0
    if head <= room // 2 or room - head < _END:
        return cut_middle(text, room)
    # The subject is long: the type and the end of the message stay.
    return f"{text[:head].rstrip()} ... {text[len(text) - (room - head - 5) :].lstrip()}" if len(text) > room else text


def without_source(text: str) -> str:
    """Return a text without what its exception was raised from."""
    return _FROM.sub("", text)


def _without_data(found: re.Match[str]) -> str:
    """Return the brackets alone; all of it where an error is among the values."""
    return found[0] if _NAMES_ERROR.search(found[0]) else f"{found[1]}...{found[2]}"


def _nccl(found: re.Match[str]) -> str:
    """Return what remains of NCCL's introduction; nothing behind a cause."""
    return "" if found.start() and found.string[found.start() - 1] == "(" else "NCCL error: "


def _completion(found: re.Match[str]) -> str:
    """Return what NCCL's message on a failed transfer over InfiniBand names: the peer, the status, its own adapter."""
    rest = found["rest"]
    adapter = _ADAPTER.search(rest)
    border = ")" * (rest.count(")") - rest.count("("))
    return f"peer {found[1]}, status {found[2]}{f', {adapter[1]}' if adapter is not None else ''}{border}"


def _clip_path(word: str, width: int) -> str:
    """Cut a path that is too long for a line at its beginning."""
    is_path = "/" in word or "\\" in word
    return f"...{word[3 - width :]}" if is_path and len(word) > width else word


@dataclass(frozen=True)
class Style:
    """Colour or not, the number of columns, and the time zone (seconds since the epoch to a date)."""

    colour: bool
    width: int
    zone: Callable[[float], Any]

    def title(self, start: str, rest: str, colour: str, most: int = 2) -> list[str]:
        """The first line, its start in colour; what does not fit into ``most`` lines is cut in the middle."""
        lines = self.wrapped(start + rest, "", "  ")
        room = most * self.width - len(start)
        while len(lines) > most and room > self.width // 4:
            lines = self.wrapped(start + shortened(rest, room), "", "  ")
            room -= 4
        lines[1:] = lines[1:most]
        first = clip(lines[0], self.width)
        if not self.colour:
            return [first, *lines[1:]]
        code = {"red": "31", "green": "32", "yellow": "33"}[colour]
        return [f"\x1b[1;{code}m{first[: len(start)]}\x1b[0m{first[len(start) :]}", *lines[1:]]

    def joined(self, lines: Iterable[str]) -> str:
        """Join the lines of a title again."""
        return " ".join(line.strip() for line in lines)

    def section(self, title: str) -> str:
        """The line above a block."""
        return f"\x1b[1m{title}\x1b[0m" if self.colour else title

    def line(self, text: str) -> str:
        """Indent one line of ftslurm's own text, and cut it to the width."""
        return clip(f"  {text}", self.width)

    def quoted(self, lines: Iterable[str], prefix: str) -> list[str]:
        """Set quoted lines behind a prefix."""
        return [(prefix + cut_middle(line, EVIDENCE_WIDTH)).rstrip() for line in lines]

    def wrapped(self, text: str, indent: str = "  ", deeper: str = "    ") -> list[str]:
        """Wrap at blanks, but not before a unit; further lines are indented by ``deeper``.

        Long words are cut, paths at their beginning, so that file and line remain.
        """
        lines: list[str] = []
        line = indent
        for word in (_clip_path(each, self.width - len(deeper)) for each in _WORD.findall(text)):
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

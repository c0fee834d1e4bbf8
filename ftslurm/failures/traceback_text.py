"""Tracebacks in text: as Python prints them, behind loggers' prefixes, or inside another exception's message (pure).

One parser for all of them: a worker's exception that another process raises again has its traceback in the message
(DataLoader, torch.multiprocessing, concurrent.futures); a program that logs its exception has it in its output. The
time is linear in the length of the text; no input makes it raise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.exception_line import (
    CAUSE,
    CONTEXT,
    ENDINGS,
    HEADER,
    LINE_LIMIT,
    own_text,
    passed_on,
    typed,
)
from ftslurm.failures.exception_message import MESSAGE_LINES, message_below
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord, Frame

FRAMES_LIMIT = 100
LINKS, MEMBERS = 40, 64
_FRAME = pattern(r'File "([^"\n]{1,4096})", line (\d{1,9})(?:, in ([^\n]{1,300}))?')
_SYNTAX_PLACE = pattern(r'(?P<prefix>.{0,80}?) {2}File "(?P<file>[^"\n]{1,4096})", line (?P<line>\d{1,9})$')
_SYNTAX_LINES = 6
_WHOLE_FRAME = pattern(r'(?P<prefix>.{0,80}?) *File "[^"\n]{1,4096}", line \d{1,9}, in(?: |$)')
_QUALIFIED = pattern(r"(?:[a-z_]\w{0,60}\.){1,6}[A-Z]\w{2,60}(?:: |$)")
# The boxes of rich, which typer and many trainers print.
_BOXED_FRAME = pattern(r"\u2502 (\S[^\u2502\n]{0,400}?):(\d{1,9}) in (\S{1,200})")
_BOXED_SOURCE = pattern(r"\u2502 +\u2771 +\d+ +(?:\u2502 *)?([^\u2502\s][^\u2502\n]{0,400})")
_BOX = ("\u2502", "\u256d", "\u2570", "\u251c")
# IPython: "KeyError      Traceback (most recent call last)", "Cell In[3], line 2", "File ~/x.py:7, in f(a)".
_NOTEBOOK = pattern(r"(?P<type>[A-Za-z_]\w{2,80}) {2,120}Traceback \(most recent call last\):?")
_CELL = pattern(
    r"(?:Cell |Input )In ?\[(?P<cell>\d{1,6})\], (?:line (?P<line>\d{1,9})|in )"
    r"|File (?P<file>\S{1,400}?):(?P<number>\d{1,9}),"
    r" in (?P<function>[\w.<>]{1,120})"
)
NOTEBOOK_LINES = 400
_THREAD = pattern(
    r"Exception in thread (?P<thread>.{1,200}?):?\s*$|future: <Task finished name='(?P<task>.{1,100}?)' coro="
    r"|^Process (?P<process>\S{1,100}):\s*$"
)
_RANK = pattern(r"\[rank(\d{1,6})\]: ?$")
_GROUP = pattern(r"\(\d+ sub-exceptions?\)")
_IGNORED = ("Exception ignored ", "--- Logging error ---", "Error in atexit._run_exitfuncs")
_SKIPPED = 3
_BEFORE_FRAMES = 5
_SOURCE_LINES = 4


@dataclass(frozen=True)
class Traceback:
    """A traceback in a text, with those of the exceptions behind it.

    Attributes:
        exception: the exception that was raised, with its causes, contexts and members.
        first, end: its lines, as a range.
        thread: what it ended instead of the program: "thread prefetch", "task Task-3", "process Process-1"; or empty.
        rank: the rank in the prefix that torch's hook for uncaught exceptions puts before each line.
        ignored: Python or a library printed it and went on ("Exception ignored in", logging's own errors).
    """

    exception: ExceptionRecord
    first: int
    end: int
    thread: str = ""
    rank: int | None = None
    ignored: bool = False


@dataclass(frozen=True)
class _Block:
    """One exception of a chain: ``depth`` is the length of its prefix within an exception group."""

    exception: ExceptionRecord
    first: int
    end: int
    depth: int
    prefix: str


class _Chain:
    """The blocks of one chain, oldest first, each with its relation to the one before it; of long ones both ends."""

    def __init__(self, before: str, links: list[tuple[str, _Block]], members: list[_Block]) -> None:
        self.before, self.links, self.members = before, links, members

    @property
    def end(self) -> int:
        return (self.members or [self.links[-1][1]])[-1].end

    def traceback(self) -> Traceback:
        exception = self.links[0][1].exception
        for relation, block in self.links[1:]:
            if relation == "cause":
                exception = replace(block.exception, cause=exception)
            else:
                exception = replace(block.exception, context=exception)
        if self.members:
            exception = replace(exception, exceptions=tuple(block.exception for block in self.members[:MEMBERS]))
        thread, rank = _THREAD.search(self.before), _RANK.search(self.links[-1][1].prefix)
        return Traceback(
            exception,
            self.links[0][1].first,
            self.end,
            thread=f"{thread.lastgroup} {thread[thread.lastgroup]}" if thread and thread.lastgroup else "",
            rank=int(rank[1]) if rank else None,
            ignored=any(text in self.before for text in _IGNORED),
        )


def tracebacks(lines: Sequence[str], *, whole: bool = False, cut: bool = False) -> list[Traceback]:
    """Return the tracebacks in these lines, in their order; chained ones as one.

    Args:
        lines: of the text, without line ends.
        whole: that the text is a message, whose further lines belong to the exceptions in it.
        cut: that it is the end of a longer one, and may begin with the last lines of a traceback.
    """
    found: list[_Chain] = []
    at = 0
    if cut and (last := _last_lines(lines, whole=whole)) is not None:
        found.append(_Chain("", [("", last)], []))
        at = last.end
    while at < len(lines):
        block = (_of_notebook(lines, at) or _block(lines, at, whole=whole)) if HEADER in lines[at] else None
        if block is None and 'File "' in lines[at]:
            block = _of_syntax(lines, at)
        if block is None and is_frame(lines[at]):
            end = frames_end(lines, at)
            block = _without_beginning(lines, at, end, whole=whole)
            at = at if block is not None else end - 1
        if block is None:
            at += 1
            continue
        at = block.end
        if not (found and _joins(lines, found[-1], block)):
            found.append(_Chain(lines[block.first - 1] if block.first else "", [("", block)], []))
    return [chain.traceback() for chain in found]


def is_frame(line: str) -> bool:
    """Return whether a line is a frame of a traceback: ``File "train.py", line 7, in main``."""
    return 'File "' in line and _WHOLE_FRAME.match(line[:LINE_LIMIT]) is not None


def is_syntax_place(line: str) -> bool:
    """Return whether a line is the place of what Python cannot read, which has no function: ``File "t.py", line 3``."""
    return 'File "' in line and _SYNTAX_PLACE.match(line[:LINE_LIMIT]) is not None


def frames_end(lines: Sequence[str], first: int) -> int:
    """Return the line after the frames, with their source, that begin with the frame in line ``first``."""
    prefix = _prefix_of(lines[first])
    at = first + 1
    while at < len(lines) and HEADER not in lines[at]:
        own = own_text(lines[at][:LINE_LIMIT], prefix)
        # At least two spaces: a frame's line has two, its source four.
        if own is None or not (is_frame(own) or own.startswith("  ")):
            break
        at += 1
    return at


def open_frames(lines: Sequence[str]) -> tuple[int, tuple[Frame, ...]]:
    """Return the traceback in whose middle a text ends: its first line, and the frames; without any: there is none.

    Several processes may have printed it between each other: equal frames count once.
    """
    begins = [i for i, line in enumerate(lines) if HEADER in line] or [
        next((i for i, line in enumerate(lines) if is_frame(line)), len(lines))
    ]
    first = begins[-1]
    prefix = _head_of(lines, first)
    rest = [own_text(line[:LINE_LIMIT], prefix) for line in lines[first + 1 :] if line.strip()]
    # Where the indentation is lost, each other line is a frame.
    flat = not any(line and line[:1].isspace() for line in rest)
    flat = flat and 2 * sum(line is not None and is_frame(line) for line in rest) >= len(rest) - 1 > 1
    if first >= len(lines) or any(line is None for line in rest[:-1]):
        return len(lines), ()
    if not flat and not all(not line or line[:1].isspace() or is_frame(line) for line in rest):
        return len(lines), ()
    frames: list[Frame] = []
    for line in lines[first:]:
        found = _FRAME.search(line[:LINE_LIMIT])
        frame = Frame(found[1], int(found[2]), found[3] or "<module>") if found is not None and ", in" in line else None
        if frame is not None and frame not in frames[-MEMBERS:]:
            frames.append(frame)
    return first, tuple(frames[-FRAMES_LIMIT:])


def _head_of(lines: Sequence[str], first: int) -> str:
    """Return what is before each line of the traceback that begins in line ``first``."""
    if first >= len(lines):
        return ""
    if HEADER not in lines[first]:
        return _prefix_of(lines[first])
    frame = next((line for line in lines[first + 1 : first + 4] if is_frame(line)), "")
    return _prefix_of(frame) if frame else ""


def _without_beginning(lines: Sequence[str], first: int, end: int, *, whole: bool) -> _Block | None:
    """Return the exception whose frames are these lines, of a traceback whose first lines are not in the text.

    A program also prints stacks without an exception: the type must follow at once, and look like one.
    """
    prefix = _prefix_of(lines[first])
    own = own_text(lines[end][:LINE_LIMIT], prefix) if end < len(lines) else None
    record = typed(own) if own else None
    if record is None or not (ENDINGS.search(record.type) or _QUALIFIED.match(own or "")):
        return None
    block = _block(["", *lines[first : end + MESSAGE_LINES + 2]], 0, whole=whole, head=prefix)
    return replace(block, first=first, end=block.end + first - 1) if block is not None else None


def _last_lines(lines: Sequence[str], *, whole: bool) -> _Block | None:
    """Return the exception whose last lines, without any frame, the text begins with."""
    first = next((i for i, line in enumerate(lines[:_SOURCE_LINES]) if not line.startswith("    ")), 0)
    record = typed(lines[first][:LINE_LIMIT]) if first < len(lines) else None
    if record is None or not record.message or ENDINGS.search(record.type) is None:
        return None
    if record.type.endswith("Warning") or (record.type in ("Error", "Exception") and not record.module):
        return None  # any program's line
    end, text = message_below(lines, first, "", record.message, whole=whole)
    return _Block(replace(record, message=text), 0, end, 0, "")


def _prefix_of(frame: str) -> str:
    """Return what is before a frame's two spaces in its line: a rank's label, a time."""
    found = _WHOLE_FRAME.match(frame[:LINE_LIMIT])
    return found["prefix"].rstrip(" ") + " " if found is not None and found["prefix"].strip() else ""


def embedded(message: str) -> ExceptionRecord | None:
    """Return the exception whose traceback, or type and text, another exception's message contains; None: none.

    That is how an exception passes the border of a process, a compiler or a launcher.
    """
    if "\n" not in message:
        return None
    lines = [line[:LINE_LIMIT] for line in message.split("\n")]
    found = tracebacks(lines, whole=True)
    if found:
        return found[0].exception
    return _introduced(lines)


def _joins(lines: Sequence[str], chain: _Chain, block: _Block) -> bool:
    """Add a block to the chain before it, as its next link or a group's member; return whether it belongs there."""
    last = chain.links[-1][1]
    if block.depth > last.depth and _GROUP.search(last.exception.message):
        chain.members.append(block)
        return True
    relation = _relation(lines[chain.end : block.first])
    if relation is None or block.depth != last.depth or chain.members:
        return False
    chain.links.append((relation, block))
    if len(chain.links) > LINKS:
        del chain.links[LINKS // 2]
    return True


def _relation(between: Sequence[str]) -> str | None:
    """Return how the exception above these lines relates to the one below: "cause" or "context"; None: not at all."""
    if not 1 <= len(between) <= 6:
        return None
    text = "\n".join(between)
    return "cause" if CAUSE in text else "context" if CONTEXT in text else None


def _block(lines: Sequence[str], first: int, *, whole: bool, head: str | None = None) -> _Block | None:
    """Return the exception whose traceback's header is in line ``first``; None: it is cut off.

    Args:
        lines: of the text.
        first: the line of the header.
        whole: see `tracebacks`.
        head: what would be before the header, where that is missing.
    """
    head = lines[first][: lines[first].index(HEADER)] if head is None else head
    head = head.removesuffix("Original ").removesuffix("Exception Group ")
    prefix: str | None = None
    frames: list[Frame] = []
    skipped = 0
    at = first + 1
    # The indentation may be lost, as in text that was pasted.
    flat = at < len(lines) and (own_text(lines[at][:LINE_LIMIT], head) or "").startswith('File "')
    while at < len(lines):
        line = lines[at][:LINE_LIMIT]
        found = _FRAME.search(line)
        if found is not None and (prefix is None or own_text(line, prefix) is not None):
            if prefix is None:
                # loguru marks the frame that caught the exception.
                prefix = line[: found.start()].removesuffix("> ").removesuffix("  ")
                prefix = prefix if prefix.strip() or HEADER in lines[first] else ""
            frames.append(Frame(found[1], int(found[2]), (found[3] or "<module>").strip()))
            at += 1
            continue
        if line.lstrip().startswith(_BOX):
            _boxed(line, frames)
            at += 1
            continue
        own = own_text(_bounded(lines[at]), _framed(head) if prefix is None else prefix)
        if own and flat and frames and frames[-1].source is None and not passed_on(own):
            frames[-1] = replace(frames[-1], source=own.strip())
            at += 1
            continue
        if own is not None and frames and own.startswith("    ") and frames[-1].source is None and own.strip():
            frames[-1] = replace(frames[-1], source=own.strip())
        elif own is None or not own.strip() or own.startswith("  "):
            if not frames and at - first > _BEFORE_FRAMES:
                return None
        else:
            record = typed(own)
            if record is not None and (skipped == 0 or ENDINGS.search(record.type)):
                end, text = message_below(lines, at, prefix or "", record.message, whole=whole)
                kept = [*frames[:20], *frames[20 - FRAMES_LIMIT :]] if len(frames) > FRAMES_LIMIT else frames
                record = replace(record, message=text, frames=tuple(kept))
                return _Block(record, first, end, _depth(prefix or ""), prefix or "")
            skipped += 1
            if skipped > _SKIPPED:
                return None
        if HEADER in line:
            return None
        at += 1
    return None


def _of_syntax(lines: Sequence[str], first: int) -> _Block | None:
    """Return the error of a script that Python cannot read: its place, the source, a caret, without a header."""
    place = _SYNTAX_PLACE.match(lines[first][:LINE_LIMIT])
    if place is None:
        return None
    for at in range(first + 1, min(len(lines), first + _SYNTAX_LINES)):
        own = own_text(lines[at][:LINE_LIMIT], place["prefix"])
        record = typed(own) if own and not own[:1].isspace() else None
        if record is not None and record.type in ("SyntaxError", "IndentationError", "TabError"):
            frame = Frame(
                place["file"],
                int(place["line"]),
                "<module>",
                (own_text(lines[first + 1], place["prefix"]) or "").strip(),
            )
            return _Block(replace(record, frames=(frame,)), first, at + 1, 0, place["prefix"])
        if own is None or not own[:1].isspace():
            return None
    return None


def _of_notebook(lines: Sequence[str], first: int) -> _Block | None:
    """Return the exception of a traceback as IPython prints it: its type before the header, its message at the end."""
    head = _NOTEBOOK.fullmatch(lines[first][:LINE_LIMIT].rstrip())
    if head is None:
        return None
    frames: list[Frame] = []
    for at in range(first + 1, min(len(lines), first + NOTEBOOK_LINES)):
        line = lines[at][:LINE_LIMIT]
        cell = _CELL.match(line)
        if cell is not None:
            number = int(cell["line"] or cell["number"] or 1)
            frames.append(Frame(cell["file"] or f"In[{cell['cell']}]", number, cell["function"] or "<module>"))
        elif frames and line.startswith(("-->", "---->")):
            frames[-1] = replace(frames[-1], source=line.lstrip("->").strip().partition(" ")[2].strip() or None)
        elif line.startswith((f"{head['type']}: ", f"{head['type']}\n")) or line.rstrip() == head["type"]:
            record = typed(line)
            return _Block(replace(record, frames=tuple(frames)), first, at + 1, 0, "") if record is not None else None
    return None


def _bounded(line: str) -> str:
    """Return a line without its middle, if it is long: a message's reason is often at its end."""
    return line if len(line) <= LINE_LIMIT else f"{line[: LINE_LIMIT // 2]} ... {line[-LINE_LIMIT // 2 :]}"


def _boxed(line: str, frames: list[Frame]) -> None:
    """Add what a line of a box says: a frame, or the source of the last one."""
    frame, source = _BOXED_FRAME.search(line), _BOXED_SOURCE.search(line)
    if frame is not None:
        frames.append(Frame(frame[1], int(frame[2]), frame[3]))
    elif source is not None and frames:
        frames[-1] = replace(frames[-1], source=source[1].strip())


def _framed(head: str) -> str:
    """Return the prefix of a traceback's lines that the one of its header implies, for a traceback without frames."""
    return head if _RANK.search(head) else ""


def _depth(prefix: str) -> int:
    return len(prefix) if prefix.rstrip().endswith("|") else 0


def _introduced(lines: Sequence[str]) -> ExceptionRecord | None:
    """Return the exception in the line after ``... raised:``, which has no traceback of its own."""
    for at in range(2, len(lines) + 1):
        before, line = lines[at - 2], lines[at - 1]
        if not re.search(r"(raised|rror|xception|failed|reason|aused by)[^:]{0,40}:$", before.rstrip()):
            continue
        record = passed_on(line.strip())
        if record is not None:
            # A compiler's output is in a paragraph of its own.
            blank = "" if "Output:" not in lines[at:] else "Set TORCH"
            ends = (
                i for i, each in enumerate(lines[at:], at) if (each.startswith(blank) if blank else not each.strip())
            )
            end = next(ends, len(lines))
            return replace(record, message="\n".join([record.message, *lines[at:end]]).strip())
    return None

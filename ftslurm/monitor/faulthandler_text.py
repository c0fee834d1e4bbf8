"""faulthandler's text to frames, for Python 3.10 to 3.14 (CPython: Python/traceback.c); pure.

Its order is turned around: here the outermost frame comes first, as in a traceback.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# "Current thread 0x00007f2b1c3ff640 [name] (most recent call first):"; the name from 3.14 on.
_HEADER = re.compile(r"\n?(Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[(.{0,100})\])? \(most recent call first\):\n")
_FRAME = re.compile(r'  File (?:"(.*)"|\?\?\?), line (\d{1,9}|\?\?\?) in (.*)')
_OURS = ("/ftslurm/worker.py", "/ftslurm/boot/worker.py")
_RUNPY = ("<frozen runpy>", "/runpy.py")
CUT = "  ..."


class Frame(NamedTuple):
    """One call; line 0 where faulthandler does not know it."""

    file: str
    line: int
    function: str


class Thread(NamedTuple):
    """One thread, its frames outermost first.

    Attributes:
        cut: it is so deep that the outermost frames are missing.
        begun: it is in what ftslurm's worker began, whose own frames are left out: the script, or its start.
    """

    name: str
    current: bool
    main: bool
    cut: bool
    frames: tuple[Frame, ...]
    begun: bool = False


class Reader:
    """Parses texts, what many of them have in common only once: thousands of ranks have the same frames."""

    def __init__(self) -> None:
        self._stacks: dict[str, tuple[tuple[Frame, ...], bool]] = {}
        self._lines: dict[str, Frame | None] = {}

    def threads(self, text: str) -> tuple[Thread, ...]:
        """Return the threads of one process, in faulthandler's order, its main thread marked.

        Where the text holds several dumps of the process, the last one of each thread counts. The frames at the foot
        of the main thread that are ftslurm's own are left out.
        """
        found: dict[str, Thread] = {}
        # A second dump follows the first one without a blank line.
        text = text.replace("\nThread 0x", "\n\nThread 0x").replace("\nCurrent thread 0x", "\n\nCurrent thread 0x")
        for block in text.split("\n\n"):
            header = _HEADER.match(block)
            if header is not None:  # else 3.14's "Current thread's C stack trace", or no line of faulthandler's
                kind, ident, name = header.groups()
                frames, cut = self._stack(block[header.end() :])
                found.pop(ident, None)
                found[ident] = Thread(name or "", kind != "Thread", False, cut, frames)
        return _with_main(list(found.values()))

    def _stack(self, body: str) -> tuple[tuple[Frame, ...], bool]:
        if body not in self._stacks:
            lines = body.split("\n")
            frames = [frame for line in reversed(lines) if (frame := self._frame(line)) is not None]
            self._stacks[body] = (tuple(frames), CUT in lines)
        return self._stacks[body]

    def _frame(self, line: str) -> Frame | None:
        if line not in self._lines:
            found = _FRAME.fullmatch(line)
            number = int(found[2]) if found is not None and found[2] != "???" else 0
            self._lines[line] = Frame(found[1] or "???", number, found[3]) if found is not None else None
        return self._lines[line]


def _with_main(threads: list[Thread]) -> tuple[Thread, ...]:
    """Mark the main thread: the one that ftslurm's worker began, else the last, the oldest one."""
    if not threads:
        return ()
    start = 0
    for at in reversed(range(len(threads))):
        start = _begin(threads[at].frames)
        if start:
            break
    else:
        at = len(threads) - 1
    threads[at] = threads[at]._replace(main=True, frames=threads[at].frames[start:], begun=start > 0)
    return tuple(threads)


def _begin(frames: tuple[Frame, ...]) -> int:
    """How many of the outermost frames are ftslurm.worker's, and runpy's about it."""
    ours = max((i + 1 for i, frame in enumerate(frames[:8]) if frame.file.endswith(_OURS)), default=0)
    while 0 < ours < len(frames) and frames[ours].file.endswith(_RUNPY):
        ours += 1
    return ours

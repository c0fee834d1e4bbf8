"""Bounded reading of a log of any size: both ends, and the parts around lines that may matter.

A file is read once, in order, so that pipes and compressed files can be read, too. Of a file of ten gigabytes a few
megabytes stay in memory.
"""

from __future__ import annotations

import codecs
import os
import stat
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from ftslurm.dataclasses import dataclass
from ftslurm.sharedfs.bounded_read import Malformed, open_plain

CHUNK = 1 << 20
BLOCK = 16 * 1024
HEAD_BLOCKS, TAIL_BLOCKS = 8, 48
FIRST_PARTS, LAST_PARTS = 48, 64
"""Blocks kept of the middle: the first ones with an interesting line, and the last ones."""
OVERLAP = 64
NEEDLES = (
    b"Traceback (most recent call last)",
    b"slurmstepd: error:",
    b"srun: error:",
    b"Fatal Python error:",
    b" failed (exitcode:",
)
"""Texts around which the middle of a file is kept: few, long, and with a rare last character.

The whole file is searched for each.
"""
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Part:
    """Text without gaps; ``gap``: bytes left out before it."""

    text: str
    gap: int


@dataclass(frozen=True)
class Excerpt:
    """What was kept of a log.

    Attributes:
        parts: in order.
        size: bytes of the whole, after decompression.
        open_end: whether its last line has no end.
        problem: why the rest could not be read; empty: it was.
    """

    parts: tuple[Part, ...]
    size: int
    open_end: bool
    problem: str = ""


def read_path(path: Path, owners: frozenset[int]) -> Excerpt | None:
    """Read a plain file; None if there is none.

    Raises:
        Malformed: it is a link, special, another user's or unreadable; the text is the reason.
    """
    opened = open_plain(path, owners)
    if opened is None:
        return None
    try:
        return read_chunks(_chunks(opened[0]))
    finally:
        os.close(opened[0])


def read_stream(fd: int) -> Excerpt:
    """Read an open file or pipe to its end."""
    return read_chunks(_chunks(fd))


def is_stream(path: Path) -> bool:
    """Whether it is a pipe or a terminal, as of ``<(command)``."""
    mode = os.stat(path).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _chunks(fd: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(fd, CHUNK)
        except OSError as error:
            raise Malformed(f"cannot be read: {error.strerror or error}") from None
        if not data:
            return
        yield data


def read_chunks(chunks: Iterable[bytes]) -> Excerpt:
    """Return what is kept of a log's bytes: plain or gzip; UTF-8, or UTF-16 with a byte order mark."""
    keeper = _Keeper()
    problem = ""
    try:
        for chunk in _as_utf8(_plain(chunks)):
            keeper.add(chunk)
    except (zlib.error, EOFError) as error:
        problem = f"its compressed data ends early or is damaged ({error}); the part before that is used"
    return keeper.excerpt(problem)


def _plain(chunks: Iterable[bytes]) -> Iterator[bytes]:
    iterator = iter(chunks)
    first = next(iterator, b"")
    if len(first) < 2:
        first += next(iterator, b"")
    if not first.startswith(_GZIP):
        yield first
        yield from iterator
        return
    # Bounded output per step: a small file may decompress to very much.
    inflate = zlib.decompressobj(wbits=31)
    for data in _chain(first, iterator):
        rest = data
        while rest:
            if inflate.eof:
                inflate = zlib.decompressobj(wbits=31)
            yield inflate.decompress(rest, CHUNK)
            rest = inflate.unconsumed_tail or inflate.unused_data
    if not inflate.eof:
        raise EOFError("no end mark")


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _as_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks, b"")
    encoding = _utf16(first)
    if encoding is None:
        yield first
        yield from chunks
        return
    decode = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in _chain(first, chunks):
        yield decode.decode(chunk).encode("utf-8", "replace")


def _utf16(first: bytes) -> str | None:
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = first[:4096]
    odd, even = sample[1::2].count(0), sample[::2].count(0)
    if len(sample) >= 64 and max(odd, even) * 2 > 0.8 * len(sample) and min(odd, even) * 20 < len(sample):
        return "utf-16-le" if odd > even else "utf-16-be"
    return None


class _Keeper:
    """The blocks of a log that are kept."""

    def __init__(self) -> None:
        self.head: list[bytes] = []
        self.first: dict[int, bytes] = {}
        self.last: deque[tuple[int, bytes]] = deque(maxlen=LAST_PARTS)
        self.recent: deque[tuple[int, bytes]] = deque()  # data, each with the number of its first block
        self.count = 0
        self.size = 0
        self.rest = b""
        self.before = b""  # the end of the data that was searched already
        self.wanted_next = False

    def add(self, chunk: bytes) -> None:
        """Add the next data."""
        self.size += len(chunk)
        data = self.rest + chunk if self.rest else chunk
        whole = len(data) - len(data) % BLOCK
        if whole:
            self._blocks(data[:whole] if whole < len(data) else data)
        self.rest = data[whole:]

    def _blocks(self, data: bytes) -> None:
        """Keep the blocks of this data that have an interesting line, and those beside them."""
        marked = self._hits(data)
        number = len(data) // BLOCK
        if self.wanted_next:
            marked.add(0)
        self.wanted_next = number - 1 in marked
        wanted = {near for i in marked for near in (i - 1, i, i + 1)}
        for i in sorted(each for each in wanted if each < number):
            if i >= 0:
                self._keep(self.count + i, data[i * BLOCK : (i + 1) * BLOCK])
            elif i == -1 and self.recent:
                self._keep(self.count - 1, self.recent[-1][1][-BLOCK:])
        for i in range(min(number, max(0, HEAD_BLOCKS - self.count))):
            self.head.append(data[i * BLOCK : (i + 1) * BLOCK])
        self.recent.append((self.count, data))
        while len(self.recent) > 1 and self.count + number - self.recent[1][0] >= TAIL_BLOCKS:
            self.recent.popleft()
        self.count += number

    def _hits(self, data: bytes) -> set[int]:
        """Return the blocks with an interesting line; -1: one that begins in the data before."""
        found: set[int] = set()
        for needle in NEEDLES:
            at = data.find(needle)
            while at >= 0:
                found.add(at // BLOCK)
                # One hit in a block is enough.
                at = data.find(needle, (at // BLOCK + 1) * BLOCK)
            if needle in self.before + data[:OVERLAP]:
                found |= {-1, 0}
        self.before = data[-OVERLAP:]
        return found

    def _keep(self, index: int, block: bytes) -> None:
        if index < HEAD_BLOCKS or index in self.first or (self.last and self.last[-1][0] >= index):
            return
        if len(self.first) < FIRST_PARTS:
            self.first[index] = block
        else:
            self.last.append((index, block))

    def excerpt(self, problem: str) -> Excerpt:
        """Return what was kept."""
        kept = dict(enumerate(self.head)) | self.first | dict(self.last)
        for first, data in self.recent:
            blocks = range(max(first, self.count - TAIL_BLOCKS), first + len(data) // BLOCK)
            kept |= {i: data[(i - first) * BLOCK : (i - first + 1) * BLOCK] for i in blocks}
        if self.rest:
            kept[self.count] = self.rest
        parts: list[Part] = []
        run: list[bytes] = []
        expected = start = 0
        for index in sorted(kept):
            if index != expected and run:
                parts.append(_part(run, start, cut_after=True))
                run = []
            if not run:
                start = (index - expected) * BLOCK
            run.append(kept[index])
            expected = index + 1
        if run:
            parts.append(_part(run, start, cut_after=False))
        end = self.rest[-1:] or (self.recent[-1][1][-1:] if self.recent else b"")
        return Excerpt(tuple(parts), self.size, bool(end) and end not in (b"\n", b"\r"), problem)


def _part(blocks: list[bytes], gap: int, *, cut_after: bool) -> Part:
    data = b"".join(blocks)
    # Parts of lines would mislead.
    if gap:
        data = data.partition(b"\n")[2] or data
    if cut_after:
        data = data.rpartition(b"\n")[0] or data
    return Part(data.decode("utf-8", "replace"), gap)


def stdin_excerpt() -> Excerpt:
    """Read standard input to its end."""
    return read_stream(sys.stdin.fileno())

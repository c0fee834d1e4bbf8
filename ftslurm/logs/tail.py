"""The end of a log file, and what is appended to it: bytes as they are, also when it is rotated, truncated or missing.

A file is opened anew for each look: on NFS that is what makes another node's writes visible (nfs(5), "close-to-open
cache consistency"); a descriptor that stays open may show a size that is many seconds old.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

CHUNK = 1 << 16


class LogFile:
    """One log file, read from its last lines on.

    Args:
        path: of the file; it may not exist yet.
        lines: number of its last lines that are read first; None: all of it.
    """

    def __init__(self, path: str, lines: int | None) -> None:
        self.path = path
        self._lines = lines
        self._fd = -1
        self._offset = 0

    def read(self) -> Iterator[bytes]:
        """Yield what is new since the last call."""
        fd = _open(self.path)
        if fd < 0:
            # Removed, or not there yet: what was written before the removal can still be read.
            yield from self._rest()
            return
        if self._fd >= 0 and os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
            self._replace(fd)
        else:
            yield from self._rest()
            fresh = self._fd < 0
            self._replace(fd)
            self._offset = _start_of_last(fd, self._lines) if fresh and self._lines is not None else 0
        if os.fstat(fd).st_size < self._offset:
            # Truncated: what is there now is new.
            self._offset = 0
        yield from self._rest()

    def close(self) -> None:
        """Close it."""
        self._replace(-1)

    def _replace(self, fd: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd

    def _rest(self) -> Iterator[bytes]:
        while self._fd >= 0:
            try:
                chunk = os.pread(self._fd, CHUNK, self._offset)
            except OSError:
                # The server of a network filesystem does not have the removed file any more.
                return
            if not chunk:
                return
            self._offset += len(chunk)
            yield chunk


def _open(path: str) -> int:
    """Open a plain file; -1: there is none. A pipe or a device in its place is not opened for reading."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return -1
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return -1
    return fd


def _start_of_last(fd: int, lines: int) -> int:
    """Return the offset at which the last `lines` lines begin."""
    size = at = os.fstat(fd).st_size
    if lines == 0:
        return size
    # The newline at the very end ends the last line.
    wanted = lines + (size > 0 and os.pread(fd, 1, size - 1) == b"\n")
    while at > 0:
        length = min(CHUNK, at)
        chunk = os.pread(fd, length, at - length)
        found = chunk.count(b"\n")
        if found >= wanted:
            position = length
            for _ in range(wanted):
                position = chunk.rindex(b"\n", 0, position)
            return at - length + position + 1
        wanted -= found
        at -= length
    return 0

"""The agent's end of the node's named pipe, through which workers send what is rare.

The pipe is opened for reading *and* writing, which Linux defines for a fifo (fifo(7)): so there is always a writer, and
the end of the last client is neither an end of file nor a hang-up that would wake the agent again and again; and always
a reader, so that a client which opens it without blocking never finds nobody there.
"""

from __future__ import annotations

import os
import stat
from collections import Counter

from ftslurm.monitor.message import LIMIT

NAME = "pipe"
READ_BYTES = 65536  # as much as a pipe holds: one read hears all that was written before it


class Pipe:
    """Makes and reads the pipe `directory`/pipe, and sees to it that it stays there.

    Args:
        directory: node-local, made if it is missing; nobody but this user may write to it.

    Attributes:
        path, fd: the pipe; `fd` is readable (select) when lines have come, and changes when `check` says so.
        counts: "lines" and "bytes" that came, lines that were "overlong", how often the pipe was "remade" and could
            not be ("failed").

    Raises:
        ValueError: somebody else's, or something else, lies there.
        OSError: it cannot be made.
    """

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, NAME)
        self.counts: Counter[str] = Counter()
        self._directory = directory
        self._rest = b""  # the beginning of a line, at most LIMIT bytes
        self._skipping = False  # ... or of one that is too long
        self._kept: list[bytes] = []
        self.fd = _make(directory, self.path)

    def read(self) -> list[bytes]:
        """Return the lines that have come, without their newlines; never blocks, reads a bounded amount."""
        kept, self._kept = self._kept, []
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return kept
        self.counts["bytes"] += len(data)
        *whole, rest = data.split(b"\n")
        lines = []
        for piece in whole:
            line = self._rest + piece if not self._skipping else b""
            self._rest, self._skipping = b"", False
            if len(line) > LIMIT:
                self.counts["overlong"] += 1
            elif line:
                lines.append(line)
        self._rest = b"" if self._skipping else self._rest + rest
        if len(self._rest) > LIMIT:
            self.counts["overlong"] += 1
            self._rest, self._skipping = b"", True
        self.counts["lines"] += len(lines)
        return kept + lines

    def check(self) -> bool:
        """Make the pipe anew if somebody has removed it; True if `fd` is another one now.

        What the old one still held is returned by the next `read`. If it cannot be made, that is counted, and the old
        one stays.
        """
        try:
            if os.path.samestat(os.lstat(self.path), os.fstat(self.fd)):
                return False
        except OSError:
            pass
        try:
            fd = _make(self._directory, self.path)
        except (OSError, ValueError):
            self.counts["failed"] += 1
            return False
        self._kept = self.read()
        self._rest, self._skipping = b"", False
        os.close(self.fd)
        self.fd = fd
        self.counts["remade"] += 1
        return True

    def close(self) -> None:
        """Close and remove it."""
        try:
            if os.path.samestat(os.lstat(self.path), os.fstat(self.fd)):
                os.unlink(self.path)
        except OSError:
            pass
        os.close(self.fd)


def _make(directory: str, path: str) -> int:
    os.makedirs(directory, mode=0o700, exist_ok=True)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{directory}: expected a directory for the node's pipe, found {_kind(found.st_mode)}")
    if found.st_uid != os.geteuid():
        raise ValueError(f"{directory}: belongs to user {found.st_uid}: expected a directory of {os.geteuid()}")
    if found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise ValueError(f"{directory}: others may write to it (mode {mode:o}), so they could replace the node's pipe")
    _remove_own(path)
    os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    opened = os.fstat(fd)
    if not stat.S_ISFIFO(opened.st_mode) or opened.st_uid != os.geteuid():
        os.close(fd)
        raise ValueError(f"{path}: expected the pipe that was just made, found {_kind(opened.st_mode)}")
    os.fchmod(fd, 0o600)  # whatever the umask takes away
    return fd


def _remove_own(path: str) -> None:
    """Remove a pipe that an earlier agent left; refuse anything else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISFIFO(found.st_mode):
        raise ValueError(f"{path}: expected a named pipe, found {_kind(found.st_mode)}; remove it")
    if found.st_uid != os.geteuid():
        raise ValueError(f"{path}: is a pipe of user {found.st_uid}, who is not to be trusted")
    # Not opened: what an earlier round's processes still write goes nowhere.
    os.unlink(path)


def _kind(mode: int) -> str:
    names = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}
    return names.get(stat.S_IFMT(mode), "something else")

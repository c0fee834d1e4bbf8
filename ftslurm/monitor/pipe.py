"""The agent's end of the node's named pipe, through which workers send rare messages.

The pipe is opened for reading *and* writing, which Linux defines for a fifo (fifo(7)): so there is always a writer, and
the end of the last client is neither an end of file nor a hang-up that would wake the agent again and again; and always
a reader, so that a client's non-blocking open never fails for lack of a reader.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
from collections import Counter

from ftslurm.local_directory import make_private
from ftslurm.monitor.message import LIMIT

NAME = "pipe"
PIPE_BYTES = 1 << 20
"""What the pipe is to hold: torch's timer client, which never waits, fails when it is full. By default it is 64 KiB."""
_F_SETPIPE_SZ = 1031
"""fcntl(2); Python has the name from 3.10 on, but not every build of it."""


class Pipe:
    """Makes and reads the pipe `directory`/pipe, and restores it when it was removed or replaced.

    Args:
        directory: node-local, of the caller alone, made if it is missing; what lies there under the pipe's name goes.

    Attributes:
        path: of the pipe.
        fd: an epoll descriptor that is readable when lines have come; the same for this object's whole life.
        problem: why there is no pipe at `path` now; None while there is one.
        counts: "lines" and "bytes" that came, lines that were "overlong", how often the pipe was "remade" and could
            not be ("failed").
    """

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, NAME)
        self.problem: str | None = None
        self.counts: Counter[str] = Counter()
        self._directory = directory
        self._rest = b""  # the beginning of a line, at most LIMIT bytes
        self._skipping = False  # ... or of one that is too long
        self._kept: list[bytes] = []
        self._poll = select.epoll()
        self._fifo = -1
        self.fd = self._poll.fileno()
        self.check()

    def read(self) -> list[bytes]:
        """Return the lines that have come, without their newlines; never blocks, reads a bounded amount."""
        kept, self._kept = self._kept, []
        try:
            # As much as it holds: one read returns all that was written before it.
            data = os.read(self._fifo, PIPE_BYTES) if self._fifo >= 0 else b""
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

    def check(self) -> None:
        """Make the pipe if it is missing or was replaced.

        What the old one still held is returned by the next `read`. Where it cannot be made, `problem` holds the reason,
        and the old one is read on: a client may have it open.
        """
        if self._is_there():
            self.problem = None
            return
        try:
            fifo = _make(self._directory, self.path)
        except (OSError, ValueError) as error:
            self.counts["failed"] += 1
            self.problem = str(error)
            return
        self.problem = None
        self._kept = self.read()
        self._rest, self._skipping = b"", False
        self._poll.register(fifo, select.EPOLLIN)
        if self._fifo >= 0:
            self._poll.unregister(self._fifo)
            os.close(self._fifo)
            self.counts["remade"] += 1
        self._fifo = fifo

    def close(self) -> None:
        """Close and remove it."""
        if self._is_there():
            try:
                os.unlink(self.path)
            except OSError:
                pass
        if self._fifo >= 0:
            os.close(self._fifo)
        self._poll.close()

    def _is_there(self) -> bool:
        try:
            return self._fifo >= 0 and os.path.samestat(os.lstat(self.path), os.fstat(self._fifo))
        except OSError:
            return False


def discard(directory: str) -> None:
    """Discard all writes to the pipe in `directory`, so that no client meets a pipe without a reader.

    Raises:
        OSError: that cannot be done.
    """
    path = os.path.join(directory, NAME)
    _remove(path)
    os.symlink(os.devnull, path)


def _make(directory: str, path: str) -> int:
    make_private(directory)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{directory}: expected a directory for the node's pipe, found {_kind(found.st_mode)}")
    if found.st_uid != os.geteuid():
        raise ValueError(f"{directory}: belongs to user {found.st_uid}: expected a directory of {os.geteuid()}")
    if found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise ValueError(f"{directory}: others may write to it (mode {mode:o}), so they could replace the node's pipe")
    _remove(path)
    os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    opened = os.fstat(fd)
    if not stat.S_ISFIFO(opened.st_mode) or opened.st_uid != os.geteuid():
        os.close(fd)
        raise ValueError(f"{path}: expected the pipe that was just made, found {_kind(opened.st_mode)}")
    os.fchmod(fd, 0o600)  # whatever the umask takes away
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        # The limit of /proc/sys/fs/pipe-max-size, or of all pipes of this user (pipe(7)).
        pass
    return fd


def _remove(path: str) -> None:
    """Remove what lies there: a pipe that an earlier agent left, or another file in place of this one's.

    A pipe is not opened: what an earlier round's processes still write goes nowhere.
    """
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)  # noqa: PTH106
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


def _kind(mode: int) -> str:
    names = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}
    return names.get(stat.S_IFMT(mode), "something else")

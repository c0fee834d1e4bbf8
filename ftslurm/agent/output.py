"""Terminal output while the job runs: the agent's log lines, and the chosen ranks' output with a prefix.

Separate threads write it: srun's end of the pipe may be slow or stopped, and log files lie on the shared filesystem, so
neither may block the agent's loop, nor a hanging log file the log lines. The workers write their files themselves;
nothing is lost when the agent dies.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections import deque

from ftslurm.dataclasses import dataclass
from ftslurm.kernel import FileNotifier

MAX_WAITING = 10_000
CHUNK = 1 << 16
TURN = 16
"""Number of chunks of one file that are copied before the next file's turn."""
POLL_S = 0.2
LONGEST_LINE = 1 << 16


@dataclass
class _Follow:
    """A log file that is copied to the terminal."""

    path: str
    prefix: bytes
    stream: int
    fd: int = -1
    pending: bytes = b""


class Console:
    """Writes lines to stdout and stderr in the background.

    Args:
        node: this node's name, in front of the agent's own lines.
    """

    def __init__(self, node: str) -> None:
        self._tag = f"ftslurm: {node}: "
        self._terminal = _Terminal()
        self._lines: deque[str | threading.Event] = deque()
        self._dropped = 0
        self._more = threading.Semaphore(0)
        self._follower: _Follower | None = None
        threading.Thread(target=self._work, name="console", daemon=True).start()

    def log(self, text: str) -> None:
        """Log one line; it is dropped (and counted) if the output is blocked."""
        if len(self._lines) >= MAX_WAITING:
            self._dropped += 1
            return
        self._lines.append(self._tag + text + "\n")
        self._more.release()

    def follow(self, path: str, prefix: str, stream: int) -> None:
        """Copy lines appended to the file `path` to stdout (1) or stderr (2), each prefixed by `prefix`."""
        if self._follower is None:
            self._follower = _Follower(self._terminal)
        self._follower.send(_Follow(path, prefix.encode(), stream))

    def forget(self) -> None:
        """Copy the rest of all followed files, then follow none."""
        if self._follower is not None:
            self._follower.send(None)

    def drain(self, timeout_s: float) -> None:
        """Wait until all lines so far are written, at most twice `timeout_s` seconds."""
        if self._follower is not None:
            copied = threading.Event()
            self._follower.send(copied)
            copied.wait(timeout_s)
        written = threading.Event()
        self._lines.append(written)
        self._more.release()
        written.wait(timeout_s)

    def _work(self) -> None:
        while True:
            self._more.acquire()
            line = self._lines.popleft()
            if isinstance(line, threading.Event):
                line.set()
                continue
            self._terminal.write(2, line.encode("utf-8", "backslashreplace"))
            if self._dropped:
                count, self._dropped = self._dropped, 0
                self._terminal.write(
                    2, f"{self._tag}{count} lines were dropped here: the output was blocked\n".encode()
                )


class _Terminal:
    """Stdout and stderr, each written by one thread at a time; output to a closed one is discarded."""

    def __init__(self) -> None:
        self._locks = {1: threading.Lock(), 2: threading.Lock()}

    def write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        with self._locks[fd]:
            while view:
                try:
                    view = view[os.write(fd, view) :]
                except BlockingIOError:
                    # srun's pipe may be non-blocking: wait for it, this thread may block.
                    _wait_for([], [fd], None)
                except OSError:
                    # The reader is gone or the disk is full: the job continues without this output.
                    return


class _Follower:
    """The thread that copies log files; commands are a file to follow, None to forget all, an event to set."""

    def __init__(self, terminal: _Terminal) -> None:
        self._terminal = terminal
        self._commands: deque[_Follow | threading.Event | None] = deque()
        self._follows: list[_Follow] = []
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._notifier: FileNotifier | None = None
        threading.Thread(target=self._work, name="follower", daemon=True).start()

    def send(self, command: _Follow | threading.Event | None) -> None:
        """Queue the command."""
        self._commands.append(command)
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass

    # The thread

    def _work(self) -> None:
        more = False
        while True:
            if not more:
                self._wait()
            while self._commands:
                self._execute(self._commands.popleft())
            more = len([follow for follow in self._follows if self._copy(follow, TURN)]) > 0

    def _wait(self) -> None:
        fds = [self._wake_r]
        timeout: float | None = None
        if self._follows and self._notifier is not None:
            fds.append(self._notifier.fd)
        if self._follows and (self._notifier is None or any(follow.fd < 0 for follow in self._follows)):
            timeout = POLL_S
        ready = _wait_for(fds, [], timeout)
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        if self._notifier is not None and self._notifier.fd in ready:
            self._notifier.drain()

    def _execute(self, command: _Follow | threading.Event | None) -> None:
        if isinstance(command, _Follow):
            if not self._follows:
                self._start_notifier()
            self._follows.append(command)
            return
        for follow in self._follows:
            while self._copy(follow, TURN):
                pass
        if command is not None:
            command.set()
            return
        for follow in self._follows:
            if follow.pending:
                self._terminal.write(follow.stream, follow.prefix + follow.pending + b"\n")
            if follow.fd >= 0:
                os.close(follow.fd)
        self._follows.clear()
        self._stop_notifier()

    def _copy(self, follow: _Follow, chunks: int) -> bool:
        """Copy up to `chunks` chunks; return whether there may be more."""
        if follow.fd < 0 and not self._open(follow):
            return False
        for _ in range(chunks):
            chunk = _read(follow.fd)
            if not chunk:
                return False
            *lines, rest = (follow.pending + chunk).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            follow.pending = rest
            if lines:
                self._terminal.write(follow.stream, b"".join(follow.prefix + line + b"\n" for line in lines))
        return True

    def _open(self, follow: _Follow) -> bool:
        try:
            # The notifier comes first: later writes wake this thread, earlier ones are read below.
            if self._notifier is not None:
                self._notifier.add(follow.path)
        except FileNotFoundError:
            return False
        except OSError:
            # No inotify watch available (fs.inotify.max_user_watches): poll instead.
            self._stop_notifier()
        try:
            # O_NONBLOCK: a named pipe in its place must not block this thread.
            fd = os.open(follow.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            os.close(fd)
            return False
        follow.fd = fd
        return True

    def _start_notifier(self) -> None:
        try:
            self._notifier = FileNotifier()
        except OSError:
            pass

    def _stop_notifier(self) -> None:
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None


def _wait_for(readable: list[int], writable: list[int], timeout_s: float | None) -> list[int]:
    """Return which of these can be read or written; select(2) rejects descriptors above 1023."""
    poll = select.poll()
    for fd in readable:
        poll.register(fd, select.POLLIN)
    for fd in writable:
        poll.register(fd, select.POLLOUT)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, CHUNK)
    except OSError:
        return b""


def log_at_once(node: str, text: str) -> None:
    """Write lines of this node's agent to stderr if that does not block; used when the console itself has failed."""
    lines = "".join(f"ftslurm: {node}: {line}\n" for line in text.splitlines())
    ready = select.poll()
    ready.register(2, select.POLLOUT)
    try:
        if ready.poll(0):
            os.write(2, lines.encode("utf-8", "backslashreplace"))
    except OSError:
        pass

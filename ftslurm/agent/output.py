"""What the user sees while the job runs: the agent's own lines, and the chosen ranks' output with a prefix.

A thread of its own writes it: srun's end of the pipe may be slow or stopped, and log files lie on the shared
filesystem, so neither may hold up the agent's loop. The workers write their files themselves; nothing is lost when the
agent dies.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from dataclasses import dataclass

from ftslurm.agent.kernel import FileWatch

MAX_WAITING = 10_000
CHUNK = 1 << 16
POLL_S = 0.2
LONGEST_LINE = 1 << 16


@dataclass
class _Follow:
    """A log file that is copied to the terminal."""

    path: str
    prefix: bytes
    stream: int
    offset: int
    fd: int = -1
    pending: bytes = b""


class Console:
    """Writes lines to stdout and stderr in the background.

    Args:
        node: this node's name, in front of the agent's own lines.
    """

    def __init__(self, node: str) -> None:
        self._tag = f"ftslurm: {node}: "
        self._lines: deque[str] = deque()
        self._commands: deque[tuple[str, _Follow | None]] = deque()
        self._follows: list[_Follow] = []
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._idle = threading.Event()
        self._dropped = 0
        self._watch: FileWatch | None = None
        self._thread = threading.Thread(target=self._work, name="console", daemon=True)
        self._thread.start()

    def log(self, text: str) -> None:
        """Tell the user one line; dropped (and counted) when nobody takes the lines any more."""
        if len(self._lines) >= MAX_WAITING:
            self._dropped += 1
            return
        self._lines.append(self._tag + text + "\n")
        self._nudge()

    def follow(self, path: str, prefix: str, stream: int) -> None:
        """Copy what is appended to the file `path` to stdout (1) or stderr (2), each line behind `prefix`."""
        self._commands.append(("follow", _Follow(path, prefix.encode(), stream, 0)))
        self._nudge()

    def forget(self) -> None:
        """Copy what is left of all followed files, then follow none."""
        self._commands.append(("forget", None))
        self._nudge()

    def drain(self, timeout_s: float) -> None:
        """Wait until everything said so far is written, at most `timeout_s` seconds."""
        self._idle.clear()
        self._commands.append(("idle", None))
        self._nudge()
        self._idle.wait(timeout_s)

    def _nudge(self) -> None:
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass

    # The thread

    def _work(self) -> None:
        while True:
            self._wait()
            try:
                while self._lines:
                    _write(2, self._lines.popleft().encode("utf-8", "backslashreplace"))
                if self._dropped:
                    count, self._dropped = self._dropped, 0
                    _write(2, f"{self._tag}{count} lines were dropped here: the output was not taken\n".encode())
                while self._commands:
                    self._obey(*self._commands.popleft())
                for follow in self._follows:
                    self._copy(follow)
            except OSError:
                # The terminal is gone: the job goes on without it.
                self._lines.clear()

    def _wait(self) -> None:
        fds = [self._wake_r]
        timeout: float | None = None
        if self._follows and self._watch is not None:
            fds.append(self._watch.fd)
        if self._follows and (self._watch is None or any(follow.fd < 0 for follow in self._follows)):
            timeout = POLL_S
        ready, _, _ = select.select(fds, [], [], timeout)
        if self._wake_r in ready:
            try:
                os.read(self._wake_r, 4096)
            except BlockingIOError:
                pass
        if self._watch is not None and self._watch.fd in ready:
            self._watch.drain()

    def _obey(self, command: str, follow: _Follow | None) -> None:
        if follow is not None:
            if self._watch is None:
                try:
                    self._watch = FileWatch()
                except OSError:
                    pass
            self._follows.append(follow)
        elif command == "forget":
            for old in self._follows:
                self._copy(old, last=True)
                if old.fd >= 0:
                    os.close(old.fd)
            self._follows.clear()
            if self._watch is not None:
                self._watch.close()
                self._watch = None
        else:
            for old in self._follows:
                self._copy(old)
            self._idle.set()

    def _copy(self, follow: _Follow, last: bool = False) -> None:
        if follow.fd < 0 and not self._open(follow):
            return
        while chunk := _read(follow.fd):
            *lines, rest = (follow.pending + chunk).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            follow.pending = rest
            if lines:
                _write(follow.stream, b"".join(follow.prefix + line + b"\n" for line in lines))
        if last and follow.pending:
            _write(follow.stream, follow.prefix + follow.pending + b"\n")
            follow.pending = b""

    def _open(self, follow: _Follow) -> bool:
        try:
            # The watch comes first: what is written after it wakes us, what was written before is read below.
            if self._watch is not None:
                self._watch.add(follow.path)
            follow.fd = os.open(follow.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        return True


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, CHUNK)
    except OSError:
        return b""


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # srun's pipe may be non-blocking: wait for it, we are in a thread that may.
            select.select([], [fd], [])


def complain(text: str) -> None:
    """Write one line to stderr at once, for what happens before there is a console."""
    sys.stderr.write(f"ftslurm: {text}\n")
    sys.stderr.flush()

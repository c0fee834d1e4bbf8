"""Terminal output while the job runs: the agent's log lines, and the chosen ranks' output with a prefix.

Separate threads write it: srun's end of the pipe may be slow or stopped, and log files lie on the shared filesystem, so
neither may block the agent's loop, nor a hanging log file the log lines. The workers write their files themselves;
nothing is lost when the agent dies.
"""

from __future__ import annotations

import math
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable

from ftslurm.agent.terminal import Terminal, last_state, wait_for
from ftslurm.agent.worker_launch import Filtered
from ftslurm.dataclasses import dataclass
from ftslurm.kernel import FileNotifier
from ftslurm.sharedfs.ownership import open_own_log
from ftslurm.terminal import DEBUG, ERROR, INFO, WARNING, is_shown
from ftslurm.text import size

MAX_WAITING = 10_000
CHUNK = 1 << 16
TURN = 16
"""Number of chunks of one file that are copied before the next file's turn."""
POLL_S = 0.2
LONGEST_LINE = 1 << 20
"""Bytes of a line from which on it is shown in parts, so that a file without line ends needs no more memory."""
ORDER_S = 0.2
"""Seconds that a line of the agent waits for what the ranks had printed before."""
DRAIN_MOST_S = 60.0
"""Seconds that a slow reader gets at the end for what is left."""


@dataclass
class _Follow:
    """A log file that is copied to the terminal.

    Attributes:
        filtered: the file that chosen lines are also copied to.
        pending: the beginning of a line.
        bar: the newest state of a progress bar that was not shown yet.
        bar_s: when one was shown last, monotonic seconds.
    """

    path: str
    prefix: bytes
    stream: int
    filtered: _FilteredFile | None = None
    fd: int = -1
    pending: bytes = b""
    bar: bytes | None = None
    bar_s: float = -math.inf


class Lines:
    """The agent's own lines, each with a level of `ftslurm.terminal`."""

    def log(self, text: str, level: int = INFO) -> None:
        """Log one line, unless lines of that level are left out."""
        raise NotImplementedError

    def error(self, text: str) -> None:
        """Log what is not as the job needs it."""
        self.log(text, ERROR)

    def warn(self, text: str) -> None:
        """Log what may matter."""
        self.log(text, WARNING)

    def debug(self, text: str) -> None:
        """Log what shows what the agent does."""
        self.log(text, DEBUG)


class LinesAtOnce(Lines):
    """Lines that are written where they arise, once the console itself has failed."""

    def __init__(self, node: str) -> None:
        self._node = node

    def log(self, text: str, level: int = INFO) -> None:
        """See `Lines`."""
        if is_shown(level):
            log_at_once(self._node, text)

    @property
    def answers(self) -> dict[str, Callable[[str], None]]:
        """By name the methods that take the place of the console's."""
        return {"log": self.log, "error": self.error, "warn": self.warn, "debug": self.debug}


class Console(Lines):
    """Writes lines to stdout and stderr in the background.

    Args:
        node: this node's name, in front of the agent's own lines.
    """

    def __init__(self, node: str) -> None:
        self._tag = f"ftslurm: {node}: "
        self._terminal = Terminal()
        self._lines: deque[str | threading.Event] = deque()
        self._dropped = 0
        self._more = threading.Semaphore(0)
        self._follower: _Follower | None = None
        threading.Thread(target=self._work, name="console", daemon=True).start()

    def log(self, text: str, level: int = INFO) -> None:
        """See `Lines`; it is dropped (and counted) if the output is blocked."""
        if not is_shown(level):
            return
        if len(self._lines) >= MAX_WAITING:
            self._dropped += 1
            return
        self._lines.append(self._tag + text + "\n")
        self._more.release()

    def follow(self, path: str, prefix: str, stream: int, filtered: Filtered | None = None) -> None:
        """Copy lines appended to the file `path` to stdout (1) or stderr (2), each prefixed by `prefix`.

        Args:
            filtered: lines with one of its texts are also copied to its file; None: there is none.
        """
        if self._follower is None:
            self._follower = _Follower(self._terminal)
        copies = _FilteredFile(filtered, self.warn) if filtered is not None else None
        self._follower.send(_Follow(path, prefix.encode("utf-8", "surrogateescape"), stream, copies))

    def forget(self) -> None:
        """Copy the rest of all followed files, then follow none."""
        if self._follower is not None:
            self._follower.send(None)

    def drain(self, timeout_s: float) -> None:
        """Wait until all lines so far are written, as long as the reader takes something within `timeout_s` seconds.

        The reader gets `DRAIN_MOST_S` in all; of what is left then, a line names the files.
        """
        until_s = time.monotonic() + DRAIN_MOST_S
        if self._follower is not None:
            copied = threading.Event()
            self._follower.send(copied)
            if not self._await(copied, timeout_s, until_s) and (left := self._follower.left(timeout_s)):
                shown = "; ".join(f"{size(number)} of {path}" for path, number in left.items())
                self.warn(f"the output is blocked: not shown here: {shown}")
        written = threading.Event()
        self._lines.append(written)
        self._more.release()
        self._await(written, timeout_s, until_s)

    def _await(self, event: threading.Event, timeout_s: float, until_s: float) -> bool:
        """Wait for the event while something is being written; return whether it came."""
        before = -1
        while before != self._terminal.written and time.monotonic() < until_s:
            before = self._terminal.written
            if event.wait(timeout_s):
                return True
        return event.is_set()

    def _work(self) -> None:
        turn = _Turn()
        turn.set()
        while True:
            self._more.acquire()
            line = self._lines.popleft()
            if isinstance(line, threading.Event):
                line.set()
                continue
            # Else the end of a rank would come before its last lines. A follower that is late is not waited for again.
            if self._follower is not None and turn.is_set():
                turn = _Turn()
                self._follower.send(turn)
                turn.wait(ORDER_S)
            self._terminal.write(2, line.encode("utf-8", "backslashreplace"))
            if self._dropped:
                count, self._dropped = self._dropped, 0
                self._terminal.write(
                    2, f"{self._tag}{count} lines were dropped here: the output was blocked\n".encode()
                )


class _Turn(threading.Event):
    """Is set when each followed file has had a turn."""


class _FilteredFile:
    """The file that gets copies of the lines with one of some texts; without it, the job goes on."""

    def __init__(self, wanted: Filtered, log: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._texts = tuple(text.encode("utf-8", "surrogateescape") for text in wanted.texts)
        self._log = log
        self._is_broken = False

    def add(self, prefix: bytes, lines: list[bytes]) -> None:
        """Append those of the lines that have one of the texts."""
        found = [prefix + line + b"\n" for line in lines if any(text in line for text in self._texts)]
        if not found or self._is_broken:
            return
        try:
            # Opened for each: several ranks append to it, and it may be removed.
            fd = open_own_log(self._wanted.path, self._wanted.root)
            try:
                os.write(fd, b"".join(found))
            finally:
                os.close(fd)
        except OSError as error:
            self._is_broken = True
            self._log(f"{self._wanted.path}: {error.strerror}: lines are no longer copied to it")


class _Follower:
    """The thread that copies log files; commands are a file to follow, None to forget all, an event to set."""

    def __init__(self, terminal: Terminal) -> None:
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

    def left(self, timeout_s: float) -> dict[str, int]:
        """Return the followed files that are not copied to their ends, and how many bytes are missing.

        Files that take longer than `timeout_s` seconds for their sizes, in a directory that hangs, are left out.
        """
        found: dict[str, int] = {}
        # Not in the caller's thread: on a filesystem that does not respond, fstat does not return.
        reader = threading.Thread(target=self._measure, args=(found,), name="sizes", daemon=True)
        reader.start()
        reader.join(timeout_s)
        return dict(found)

    def _measure(self, found: dict[str, int]) -> None:
        for follow in tuple(self._follows):
            try:
                missing = os.fstat(follow.fd).st_size - os.lseek(follow.fd, 0, os.SEEK_CUR) if follow.fd >= 0 else 0
            except OSError:
                continue
            if missing > 0:
                found[follow.path] = missing

    # The thread

    def _work(self) -> None:
        more = False
        while True:
            if not more:
                self._wait()
            while self._commands:
                self._execute(self._commands.popleft())
            more = len([follow for follow in self._follows if self._copy(follow, TURN)]) > 0
            self._show_bars()

    def _wait(self) -> None:
        fds = [self._wake_r]
        now = time.monotonic()
        due = [self._due_s(follow) for follow in self._follows if follow.bar is not None]
        timeout: float | None = max(0.0, min(due) - now) if due else None
        if self._follows and self._notifier is not None:
            fds.append(self._notifier.fd)
        if self._follows and (self._notifier is None or any(follow.fd < 0 for follow in self._follows)):
            timeout = min(POLL_S, POLL_S if timeout is None else timeout)
        ready = wait_for(fds, [], timeout)
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        if self._notifier is not None and self._notifier.fd in ready:
            self._notifier.drain()

    def _due_s(self, follow: _Follow) -> float:
        return follow.bar_s + self._terminal.bar_interval_s(follow.stream)

    def _show_bars(self) -> None:
        now = time.monotonic()
        for follow in self._follows:
            if follow.bar is not None and self._due_s(follow) <= now:
                self._terminal.show_bar(follow.stream, follow.prefix + follow.bar)
                follow.bar, follow.bar_s = None, now

    def _execute(self, command: _Follow | threading.Event | None) -> None:
        if isinstance(command, _Follow):
            if not self._follows:
                self._start_notifier()
            self._follows.append(command)
            return
        for follow in self._follows:
            while self._copy(follow, TURN) and not isinstance(command, _Turn):
                pass
        if command is not None:
            command.set()
            return
        for follow in self._follows:
            follow.pending = last_state(follow.pending)
            if follow.pending and follow.filtered is not None:
                follow.filtered.add(follow.prefix, [follow.pending])
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
            lines = [last_state(line) for line in lines]
            if lines:
                follow.bar = None
            if b"\r" in rest:
                follow.bar = last_state(rest) or None
                # Earlier states are forgotten; that of a bar which ends by the return may still be completed.
                rest = last_state(rest) + (b"\r" if rest.endswith(b"\r") else b"")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            follow.pending = rest
            if lines and follow.filtered is not None:
                follow.filtered.add(follow.prefix, lines)
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

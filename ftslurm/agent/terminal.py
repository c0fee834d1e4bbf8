"""Stdout and stderr of the agent: whole lines, and the newest states of progress bars."""

from __future__ import annotations

import os
import select
import threading

BAR_S, BAR_IN_FILE_S = 1.0, 10.0
"""Seconds between two states of a progress bar on a terminal, where it is one line, and elsewhere, each a line."""
ERASE = b"\r\x1b[K"
AT_ONCE = 1 << 13
"""Bytes of one write: a reader that is slow shows by the next one that it goes on."""


class Terminal:
    """Stdout and stderr, each written by one thread at a time; output to a closed one is discarded."""

    def __init__(self) -> None:
        self._locks = {1: threading.Lock(), 2: threading.Lock()}
        if _is_one_file(1, 2):
            # A long line takes several writes: one to the other stream must not come between them.
            self._locks[2] = self._locks[1]
        self._is_tty = {fd: os.isatty(fd) for fd in self._locks}
        self._has_bar = False
        self.written = 0

    def bar_interval_s(self, fd: int) -> float:
        """Return the least time between two states of a progress bar."""
        return BAR_S if self._is_tty[fd] else BAR_IN_FILE_S

    def show_bar(self, fd: int, data: bytes) -> None:
        """Show the state of a progress bar: on a terminal in place of the last one, else as a line."""
        if not self._is_tty[fd]:
            self.write(fd, data + b"\n")
            return
        try:
            # 0: the terminal does not know it, as below `script` or docker.
            columns = os.get_terminal_size(fd).columns or 80
        except OSError:
            columns = 80
        # A line that wraps could not be erased; a colour must not go on behind the cut.
        shown = data.decode("utf-8", "replace")[: max(1, columns - 1)].encode()
        self.write(fd, shown + (b"\x1b[0m" if b"\x1b[" in data else b""))
        self._has_bar = True

    def write(self, fd: int, data: bytes) -> None:
        """Write whole lines."""
        if self._has_bar and self._is_tty[fd]:
            self._has_bar = False
            data = ERASE + data
        view = memoryview(data)
        with self._locks[fd]:
            while view:
                try:
                    number = os.write(fd, view[:AT_ONCE])
                    self.written += number
                    view = view[number:]
                except BlockingIOError:
                    # srun's pipe may be non-blocking: wait for it, this thread may block.
                    wait_for([], [fd], None)
                except OSError:
                    # The reader is gone or the disk is full: the job continues without this output.
                    return


def last_state(line: bytes) -> bytes:
    """Return what a line of a terminal would show in the end: the text after its last carriage return (pure).

    Sequences that move the cursor, as of several bars below each other, are left out; colours stay.
    """
    if b"\r" in line:
        states = [state for state in line.split(b"\r") if state.strip()]
        line = states[-1] if states else b""
    if b"\x1b[" in line:
        import re

        line = re.sub(rb"\x1b\[[0-9;?]*[A-HJKSTfhlsu]", b"", line)
    return line


def _is_one_file(fd: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(fd, other)
    except OSError:
        # A closed one.
        return False


def wait_for(readable: list[int], writable: list[int], timeout_s: float | None) -> list[int]:
    """Return which of these can be read or written; select(2) rejects descriptors above 1023."""
    poll = select.poll()
    for fd in readable:
        poll.register(fd, select.POLLIN)
    for fd in writable:
        poll.register(fd, select.POLLOUT)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]

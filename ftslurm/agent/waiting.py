"""What an agent's process waits for: descriptors of its parts and workers, and signals, which wake it by a pipe."""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Iterable, Iterator

MOST_READY = 1024
"""Sources reported by one wait; the others are ready in the next one."""


class Waiting:
    """Waits for all sources at once; a source is any object by which its owner knows it again.

    Attributes:
        ready: the sources of the last wait that are ready.
    """

    def __init__(self) -> None:
        # Without `selectors`, which costs 0.1 MB of memory.
        self._epoll = select.epoll()
        self._sources: dict[int, object] = {}
        self._signals: deque[int] = deque()
        self._wake_r = -1
        self.ready: list[object] = []

    def handle(self, numbers: Iterable[int]) -> None:
        """Collect these signals from now on."""
        self._wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The pipe only wakes the loop: it may be full when thousands of orphans end at once.
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda number, _: self._signals.append(number))
        self.listen(self._wake_r, self)

    def signals(self) -> Iterator[int]:
        """Yield the signals that have arrived."""
        while self._signals:
            yield self._signals.popleft()

    def listen(self, fd: int | None, source: object) -> None:
        """Wait for that descriptor of a source, too; None: the source has none, or is disabled."""
        if fd is not None and fd >= 0:
            self._epoll.register(fd, select.EPOLLIN)
            self._sources[fd] = source

    def forget(self, source: object) -> None:
        """No longer wait for that source."""
        for fd in [fd for fd, known in self._sources.items() if known is source]:
            del self._sources[fd]
            try:
                self._epoll.unregister(fd)
            except OSError:
                # Closed already, which removes it.
                pass

    def wait(self, timeout_s: float | None) -> None:
        """Wait until a source is `ready` or a signal arrives, at most `timeout_s` seconds (None: without limit)."""
        # A negative time-out would be none at all.
        ready = self._epoll.poll(None if timeout_s is None else max(0.0, timeout_s), MOST_READY)
        self.ready = [self._sources[fd] for fd, _ in ready if fd in self._sources]
        if self in self.ready:
            drain(self._wake_r)


def drain(fd: int) -> None:
    """Empty a pipe that only wakes."""
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass

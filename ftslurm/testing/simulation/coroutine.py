"""Code that waits in the middle of a call: a thread that runs only while the simulation waits for it.

The state machines are plain functions that call the filesystem; to stop one between two of its calls, and let others
run meanwhile, its stack must be kept. Exactly one thread runs at any moment, so everything stays deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ftslurm.testing.memoryfs import Crash

_idle: list[Coroutine] = []


class Coroutine:
    """One stack of its own; get one with `strand`, for they are used again."""

    def __init__(self) -> None:
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._work: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._killed = False
        threading.Thread(target=self._live, name="strand", daemon=True).start()

    def run(self, work: Callable[[], None]) -> bool:
        """Run `work` until it parks or ends; True when it has ended.

        Raises:
            BaseException: what `work` raised.
        """
        self._work = work
        return self.resume()

    def resume(self) -> bool:
        """Go on behind the place where the work parked; see `run`."""
        self._go.release()
        self._back.acquire()
        if self._work is not None:
            return False
        error, self._error = self._error, None
        _idle.append(self)
        if error is not None:
            raise error
        return True

    def park(self) -> None:
        """Wait here until somebody calls `resume`; only for the work itself.

        Raises:
            Crash: the work's process was killed meanwhile.
        """
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Crash

    def kill(self) -> None:
        """Let parked work end where it is."""
        self._killed = True
        try:
            self.resume()
        except Crash:
            pass
        finally:
            self._killed = False

    def _live(self) -> None:
        while True:
            self._go.acquire()
            assert self._work is not None
            try:
                self._work()
            except BaseException as error:
                self._error = error
            self._work = None
            self._back.release()


def strand() -> Coroutine:
    """Return a strand without work."""
    return _idle.pop() if _idle else Coroutine()

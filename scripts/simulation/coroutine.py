"""Coroutines for plain functions: threads of which exactly one runs at any time.

The state machines are plain functions that call the filesystem; to suspend one between two of its calls, and let others
run meanwhile, its stack must be kept. Since exactly one thread runs at any time, the simulation is deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ftslurm.testing.memoryfs import Crash

_idle: list[Coroutine] = []


class Coroutine:
    """A function with its own stack; obtained with `get_coroutine`, since threads are reused."""

    def __init__(self) -> None:
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._work: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._killed = False
        threading.Thread(target=self._live, name="coroutine", daemon=True).start()

    def run(self, work: Callable[[], None]) -> bool:
        """Run `work` until it parks or ends; return whether it has ended.

        Raises:
            BaseException: an exception of `work`.
        """
        self._work = work
        return self.resume()

    def resume(self) -> bool:
        """Continue parked work; see `run`."""
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
        """Suspend until `resume` is called; only called by the work itself.

        Raises:
            Crash: the work's process was killed meanwhile.
        """
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Crash

    def kill(self) -> None:
        """End parked work at its current point."""
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


def get_coroutine() -> Coroutine:
    """Return an idle coroutine."""
    return _idle.pop() if _idle else Coroutine()

"""Watchdog of the agent's loop: a thread that detects when an iteration of the loop is stuck.

It takes no action. A stuck loop is counted in the node record, and the loop's stack goes to stderr once, so that the
stuck call can be found.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from ftslurm.terminal import print_error
from ftslurm.text import duration

STUCK_S = 10.0


class LoopWatchdog:
    """Watches the thread that makes it, from `start` to `stop`.

    `working` and `waiting` are stores of one attribute, so a turn of the loop costs nothing for them.

    Args:
        stuck_s: a turn that takes longer is stuck, in seconds.
        monotonic: the clock, in seconds.
        report: called once for each such turn, on the watchdog's thread, with the seconds that it has taken so far.
            Default: the stack of the loop goes to stderr.
    """

    def __init__(
        self,
        stuck_s: float = STUCK_S,
        monotonic: Callable[[], float] = time.monotonic,
        report: Callable[[float], None] | None = None,
    ) -> None:
        self.stuck = 0
        """How many turns were stuck."""
        self.longest_s = 0.0
        """The longest of them, as far as it was measured, in seconds."""
        self._stuck_s = stuck_s
        self._monotonic = monotonic
        self._watched = threading.get_ident()
        self._report = report or self._print_stack
        self._since: float | None = None  # the turn's start, which also names the turn; None while the loop waits
        self._reported: float | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def working(self) -> None:
        """The work of an iteration begins."""
        self._since = self._monotonic()

    def waiting(self) -> None:
        """The work is done; the loop waits for events."""
        self._since = None

    def start(self) -> None:
        """Start the thread; it wakes twice in ``stuck_s``."""
        self._thread = threading.Thread(target=self._run, name="ftslurm-guard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it does not outlive this by more than one `check`."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def check(self) -> bool:
        """Check the loop once; return whether it is stuck now. For the thread, and for tests."""
        since = self._since
        if since is None:
            return False
        taken_s = self._monotonic() - since
        if taken_s < self._stuck_s:
            return False
        self.longest_s = max(self.longest_s, taken_s)
        if self._reported != since:
            self._reported = since
            self.stuck += 1
            self._report(taken_s)
        return True

    def _run(self) -> None:
        while not self._end.wait(self._stuck_s / 2):
            try:
                self.check()
            except Exception:
                # Stderr may be gone; the count is right all the same.
                pass

    def _print_stack(self, taken_s: float) -> None:
        lines = [f"ftslurm: the agent's loop has been stuck for {duration(taken_s)}, most recent call first:"]
        frame = sys._current_frames().get(self._watched)
        while frame is not None:
            # Without the source lines: reading those could hang as the loop does.
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
        print_error(*lines)

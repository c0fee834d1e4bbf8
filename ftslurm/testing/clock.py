"""A manually advanced clock: both of an agent's clocks, for tests and simulations."""

from __future__ import annotations

START_NS = 1_700_000_000_000_000_000


class VirtualClock:
    """Replaces `time.monotonic` (as `now`) and `time.time_ns` (as `now_ns`).

    Args:
        start_s: initial value of `now`, in seconds.
        start_ns: initial value of `now_ns`, in nanoseconds since the epoch.
    """

    def __init__(self, start_s: float = 0.0, start_ns: int = START_NS) -> None:
        self._start_s = start_s
        self._start_ns = start_ns
        # Counted in nanoseconds, so that a million small steps add up to the same as one large step.
        self._elapsed_ns = 0

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return self._start_s + self._elapsed_ns / 1e9

    def now_ns(self) -> int:
        """Return the wall clock in nanoseconds since the epoch."""
        return self._start_ns + self._elapsed_ns

    def advance(self, seconds: float) -> None:
        """Advance by `seconds` (0 or more).

        Raises:
            ValueError: they are negative.
        """
        if seconds < 0:
            raise ValueError(f"expected 0 or more seconds, found {seconds}")
        self._elapsed_ns += round(seconds * 1e9)

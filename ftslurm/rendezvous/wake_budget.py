"""How long a woken agent ticks fast: a limit for the load that wakes cause on the shared directory."""

from __future__ import annotations

from collections.abc import Callable

WAKE_S = 1.0
"""Time for which a woken agent ticks fast, in seconds; the change may not be visible here at once."""
WAKE_BUDGET_S, WAKE_SHARE = 10.0, 0.1
"""Limit for repeated wake-ups without a change: an agent ticks fast for this many seconds in a row, then for this share
of the time."""


class WakeBudget:
    """The wakes of one agent.

    Args:
        now: monotonic clock, seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until = float("-inf")
        self._budget_s = WAKE_BUDGET_S
        self._at = now()

    @property
    def awake(self) -> bool:
        """Whether the agent ticks fast now."""
        return self._now() < self._until

    def wake(self) -> None:
        """Tick fast for `WAKE_S`, unless the budget is used up."""
        now = self._now()
        self._budget_s = min(WAKE_BUDGET_S, self._budget_s + WAKE_SHARE * (now - self._at))
        self._at = now
        more_s = now + WAKE_S - max(now, self._until)
        if more_s <= self._budget_s:
            self._budget_s -= more_s
            self._until = now + WAKE_S

    def refund(self) -> None:
        """The last wake was justified: refund the rest of its time."""
        self._budget_s += max(0.0, self._until - self._now())
        self._until = float("-inf")

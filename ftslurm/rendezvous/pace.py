"""How often an agent reads and writes the shared directory, also when it is woken again and again."""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.dataclasses import dataclass

QUIET_HEARTBEATS = 10
"""The intervals of an agent that is heard by datagrams, in heartbeat intervals."""

SIGN_LEAST_S = 0.1
"""Shortest interval of signs of life, in seconds, unless heartbeats are nearly as frequent."""


@dataclass(frozen=True)
class Pace:
    """Intervals of the membership, in seconds; those of coordinators and transitions grow with the number of nodes.

    Attributes:
        heartbeat_s: longest interval between two writes of the node record, and two reads of the coordinator's.
        follow_s: interval at which a follower reads the state while its workers run.
        thorough_s: interval at which that read bypasses the hint and all caches.
        coordinate_s: interval at which the coordinator reads the node records.
        transition_s: interval of every agent while a round forms or ends.
        quiet_s: longest interval between two writes of the record of an agent that is heard, two reads of it, and two
            of that agent's thorough reads of the state.
    """

    heartbeat_s: float = 3.0
    follow_s: float = 1.0
    thorough_s: float = 10.0
    coordinate_s: float = 0.1
    transition_s: float = 0.02
    quiet_s: float = 30.0

    def sign_s(self, nodes: int) -> float:
        """Return the interval of signs of life by datagrams; in a large run longer, up to twice."""
        return max(min(SIGN_LEAST_S, self.heartbeat_s / 4), self.heartbeat_s / 8) * min(2.0, 1.0 + nodes / 1024)


LARGE_RUN_NODES = 64
"""Number of nodes at which the intervals of coordinators and transitions double, so that the filesystem's load is about
the same for any size."""


def interval_factor(nodes: int) -> float:
    """Return by how much these intervals are longer in a run of so many nodes."""
    return 1.0 + nodes / LARGE_RUN_NODES


WAKE_S = 1.0
"""Time for which a woken agent ticks fast, in seconds; the change may not be visible here at once."""
WAKE_BUDGET_S, WAKE_SHARE = 10.0, 0.1
"""Limit for repeated wake-ups without a change: an agent ticks fast for this many seconds in a row, then for this share
of the time."""


class WakeBudget:
    """How long one agent, when woken, ticks fast: a limit for the load that wakes cause on the shared directory.

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

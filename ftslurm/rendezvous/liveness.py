"""Time for which a node's counter has not changed, counting only time in which the observer could read it.

Clocks of different hosts are never compared. Time in which the observer's own filesystem calls stalled or failed does
not count, so neither a stall nor an outage of the filesystem makes a node silent.
"""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass
class _LastChange:
    incarnation: str
    counter: int
    since: float


class Liveness:
    """Silence of each node, in seconds of one observer's `ObservedTime`.

    Attributes:
        unproven: the nodes whose record has not changed since this observer first read it.
    """

    def __init__(self) -> None:
        self._last_changes: dict[str, _LastChange] = {}
        self.unproven: set[str] = set()

    def update(self, node: str, incarnation: str, counter: int, now: float) -> float:
        """Note the counter of `node` read at `now` (seconds of `ObservedTime`); return how long it has been silent."""
        last = self._last_changes.get(node)
        if last is None or (last.incarnation, last.counter) != (incarnation, counter):
            self._last_changes[node] = _LastChange(incarnation, counter, now)
            if last is None:
                self.unproven.add(node)
            else:
                self.unproven.discard(node)
            return 0.0
        return now - last.since

    def heard(self, node: str, incarnation: str, at: float) -> None:
        """Note that this agent was alive at `at` (seconds of `ObservedTime`), as it has proven otherwise."""
        last = self._last_changes.get(node)
        if last is not None and last.incarnation == incarnation:
            last.since = max(last.since, at)
            self.unproven.discard(node)

    def restart(self, node: str, now: float) -> None:
        """Note activity of the node other than its counter, which restarts its silence at 0."""
        if node in self._last_changes:
            self._last_changes[node].since = now

    def restart_all(self, now: float) -> None:
        """Restart the silence of every node at 0."""
        for last in self._last_changes.values():
            last.since = now

"""Time for which a node's counter has not changed, counting only time in which the observer could read it.

Clocks of different hosts are never compared. Time in which the observer's own filesystem calls stalled or failed does
not count, so neither a stall nor an outage of the filesystem makes a node silent.
"""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.dataclasses import dataclass


class Attention:
    """Clock of the time in which this observer could observe: its own stalls and failed observations do not count.

    While a full disk refuses writes but serves reads, no node can publish; counting that time would make all nodes
    silent at once. So a failed observation discards the time counted since this observer's last successful write.

    Args:
        now: monotonic clock, seconds.
        prompt_s: the longest interval between two calls of `note` that counts; in a longer one the observer was
            stalled, stopped or suspended. `note` is called at each filesystem call, so an observation of thousands of
            files, each read promptly, counts.
    """

    def __init__(self, now: Callable[[], float], prompt_s: float) -> None:
        self._now = now
        self._prompt_s = prompt_s
        self._last = now()
        self._counted_s = 0.0
        self._proven_s = 0.0
        self._failing_since: float | None = None

    @property
    def outage_s(self) -> float:
        """Time (seconds by the clock) since an observation last succeeded; 0.0 if the last one did."""
        return 0.0 if self._failing_since is None else self._now() - self._failing_since

    def succeeded(self, wrote: bool) -> None:
        """End a successful observation.

        Args:
            wrote: it wrote to the filesystem, so the time until now counts permanently.
        """
        if wrote:
            self._proven_s = self._counted_s
        self._failing_since = None

    def failed(self) -> None:
        """End an observation that failed."""
        self._counted_s = self._proven_s
        if self._failing_since is None:
            self._failing_since = self._last

    def note(self) -> float:
        """Record that the observer is running; return the seconds counted so far."""
        now = self._now()
        gap = now - self._last
        if 0.0 < gap <= self._prompt_s:
            self._counted_s += gap
        self._last = now
        return self._counted_s


@dataclass
class _LastChange:
    incarnation: str
    counter: int
    since: float


class Liveness:
    """Silence of each node, in seconds of one observer's `Attention`.

    Attributes:
        unproven: the nodes whose record has not changed since this observer first read it.
    """

    def __init__(self) -> None:
        self._last_changes: dict[str, _LastChange] = {}
        self.unproven: set[str] = set()

    def update(self, node: str, incarnation: str, counter: int, now: float) -> float:
        """Note the counter of `node` read at `now` (seconds of `Attention`); return how long it has been silent."""
        last = self._last_changes.get(node)
        if last is None or (last.incarnation, last.counter) != (incarnation, counter):
            self._last_changes[node] = _LastChange(incarnation, counter, now)
            if last is None:
                self.unproven.add(node)
            else:
                self.unproven.discard(node)
            return 0.0
        return now - last.since

    def restart(self, node: str, now: float) -> None:
        """Note activity of the node other than its counter, which restarts its silence at 0."""
        if node in self._last_changes:
            self._last_changes[node].since = now

    def restart_all(self, now: float) -> None:
        """Restart the silence of every node at 0."""
        for last in self._last_changes.values():
            last.since = now

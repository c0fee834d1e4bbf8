"""How long a node's counter has stood still while the observer itself could see.

Hosts' clocks are never compared. An observer whose own filesystem calls stalled or failed has not seen anything in that
time, so neither a stall nor an outage of the filesystem makes a node silent.
"""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.dataclasses import dataclass


class Attention:
    """A clock of the time in which this observer could see: its own stalls and failed looks are left out.

    While a full disk refuses writes and still answers reads, no node can publish: time that the observer counted then
    would make all nodes silent at once. So a look that ends in an error takes back what was counted since this observer
    itself could last write.

    Args:
        now: monotonic clock, seconds.
        prompt_s: the longest time between two of its notes that counts; in a longer one it was stalled, stopped or
            suspended. It notes each filesystem call, so a look at thousands of files, each read promptly, counts.
    """

    def __init__(self, now: Callable[[], float], prompt_s: float) -> None:
        self._now = now
        self._prompt_s = prompt_s
        self._last = now()
        self._seen_s = 0.0
        self._proven_s = 0.0
        self._failing_since: float | None = None

    @property
    def outage_s(self) -> float:
        """For how long (seconds by the clock) no look has succeeded; 0.0 when the last one did."""
        return 0.0 if self._failing_since is None else self._now() - self._failing_since

    def succeeded(self, wrote: bool) -> None:
        """End a look.

        Args:
            wrote: it has written to the filesystem, so the time until now counts whatever comes.
        """
        if wrote:
            self._proven_s = self._seen_s
        self._failing_since = None

    def failed(self) -> None:
        """End a look that met an error."""
        self._seen_s = self._proven_s
        if self._failing_since is None:
            self._failing_since = self._last

    def note(self) -> float:
        """Say that the observer is awake; return the seconds in which it was."""
        now = self._now()
        gap = now - self._last
        if 0.0 < gap <= self._prompt_s:
            self._seen_s += gap
        self._last = now
        return self._seen_s


@dataclass
class _Seen:
    incarnation: str
    counter: int
    since: float


class Liveness:
    """Silence of each node, in seconds of one observer's `Attention`.

    Attributes:
        unproven: the nodes that have not changed since this observer first knew of them.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self.unproven: set[str] = set()

    def look(self, node: str, incarnation: str, counter: int, now: float) -> float:
        """Note what was read of `node` at `now` (attentive seconds); return for how many of them it has been silent."""
        seen = self._seen.get(node)
        if seen is None or (seen.incarnation, seen.counter) != (incarnation, counter):
            self._seen[node] = _Seen(incarnation, counter, now)
            if seen is None:
                self.unproven.add(node)
            else:
                self.unproven.discard(node)
            return 0.0
        return now - seen.since

    def heard(self, node: str, now: float) -> None:
        """Note a sign of life other than its counter: its silence begins anew."""
        if node in self._seen:
            self._seen[node].since = now

    def renew(self, now: float) -> None:
        """Let the silence of every node begin anew."""
        for seen in self._seen.values():
            seen.since = now

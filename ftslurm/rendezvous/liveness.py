"""Who is silent: how long a node's counter has stood still while the observer itself could see.

Hosts' clocks are never compared. An observer whose own filesystem calls stalled has not seen anything in that time,
so a stall of the filesystem makes nobody silent.
"""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.dataclasses import dataclass


class Attention:
    """A clock of the time in which this observer could see: its own stalls are left out.

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
    """Silence of each node, in seconds of one observer's `Attention`."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, node: str, incarnation: str, counter: int, now: float) -> float:
        """Note what was read of `node` at `now` (attentive seconds); return for how many of them it has been silent."""
        seen = self._seen.get(node)
        if seen is None or (seen.incarnation, seen.counter) != (incarnation, counter):
            self._seen[node] = _Seen(incarnation, counter, now)
            return 0.0
        return now - seen.since

    def heard(self, node: str, now: float) -> None:
        """Note a sign of life other than its counter: its silence begins anew."""
        if node in self._seen:
            self._seen[node].since = now

"""Who is silent: how long a node's counter has stood still while the observer itself could see.

Hosts' clocks are never compared. An observer whose own filesystem calls stalled has not seen anything in that time,
so a stall of the filesystem makes nobody silent.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Seen:
    incarnation: str
    counter: int
    silent_s: float
    last_look: float


class Liveness:
    """Silence of each node, by one observer's monotonic clock.

    Args:
        prompt_s: the longest gap between two looks that counts; in a longer one the observer was stalled, stopped or
            suspended, and has seen nothing of it.
    """

    def __init__(self, prompt_s: float) -> None:
        self._prompt_s = prompt_s
        self._seen: dict[str, _Seen] = {}

    def look(self, node: str, incarnation: str, counter: int, now: float) -> float:
        """Note what was read of `node` at `now` (seconds) and return for how many seconds it has been silent."""
        seen = self._seen.get(node)
        if seen is None or (seen.incarnation, seen.counter) != (incarnation, counter):
            self._seen[node] = _Seen(incarnation, counter, 0.0, now)
            return 0.0
        gap = now - seen.last_look
        if 0.0 < gap <= self._prompt_s:
            seen.silent_s += gap
        seen.last_look = now
        return seen.silent_s

    def heard(self, node: str) -> None:
        """Note a sign of life other than its counter: its silence begins anew."""
        if node in self._seen:
            self._seen[node].silent_s = 0.0

    def forget(self) -> None:
        """Start afresh, as a new observer."""
        self._seen.clear()

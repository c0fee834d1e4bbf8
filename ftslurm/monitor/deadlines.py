"""A heap of deadlines that can be moved and dropped (pure)."""

from __future__ import annotations

import heapq
import itertools

Key = int | tuple[int, str]
"""A local rank, or a timer: the process that armed it, and its scope."""


class Deadlines:
    """At most one deadline for each key.

    A deadline that moves away leaves its entry in the heap, which is put right when it comes to the top: something
    that is re-armed a thousand times a second costs a dictionary's store each time.
    """

    def __init__(self) -> None:
        self._when: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers = itertools.count()  # keys need not be comparable

    def __contains__(self, key: Key) -> bool:
        return key in self._when

    def set(self, key: Key, when: float) -> None:
        """Give `key` the deadline `when`, instead of the one that it may have."""
        before = self._when.get(key)
        self._when[key] = when
        if before is None or when < before:
            self._push(key, when)

    def drop(self, key: Key) -> None:
        """Forget the deadline of `key`, if it has one."""
        self._when.pop(key, None)

    @property
    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap:
            entered, _, key = self._heap[0]
            when = self._when.get(key)
            if when == entered:
                return when
            heapq.heappop(self._heap)
            if when is not None and when > entered:
                # Moved away since; an earlier one has an entry of its own. Twice the same does no harm.
                self._push(key, when)
        return None

    def pop_due(self, now: float) -> list[Key]:
        """Take out and return what has a deadline at or before `now`, earliest first."""
        due: list[Key] = []
        while (when := self.next) is not None and when <= now:
            key = heapq.heappop(self._heap)[2]
            del self._when[key]
            due.append(key)
        return due

    def _push(self, key: Key, when: float) -> None:
        if len(self._heap) > 64 + 4 * len(self._when):
            # Mostly keys that were dropped long before they were due.
            self._heap = [(other, next(self._numbers), k) for k, other in self._when.items() if k != key]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (when, next(self._numbers), key))

"""Deadlines that can be moved and dropped (pure)."""

from __future__ import annotations

Key = int | tuple[int, str]
"""A local rank, or a timer: the process that armed it, and its scope."""


class Deadlines:
    """At most one deadline for each key.

    No heap: a node has some hundred of them at most, and one that is re-armed a thousand times a second costs two
    stores each time; the earliest one is computed on demand.
    """

    def __init__(self) -> None:
        self._when: dict[Key, float] = {}
        self._earliest: float | None = None
        self._known = True

    def __contains__(self, key: Key) -> bool:
        return key in self._when

    def set(self, key: Key, when: float) -> None:
        """Give `key` the deadline `when`, instead of the one that it may have."""
        self._when[key] = when
        self._known = False

    def drop(self, key: Key) -> None:
        """Forget the deadline of `key`, if it has one."""
        self._when.pop(key, None)
        self._known = False

    @property
    def next(self) -> float | None:
        """The earliest deadline."""
        if not self._known:
            self._earliest = min(self._when.values(), default=None)
            self._known = True
        return self._earliest

    def pop_due(self, now: float) -> list[Key]:
        """Remove and return the keys with a deadline at or before `now`, earliest first."""
        if self.next is None or self.next > now:
            return []
        due = sorted(((when, key) for key, when in self._when.items() if when <= now), key=lambda one: one[0])
        for _, key in due:
            self.drop(key)
        return [key for _, key in due]

"""The slots of a node in which standby workers are started, and when a slot is given up (pure)."""

from __future__ import annotations

STANDBY_DEATHS = 3
"""Number of standby workers that may die in one slot; after that their imports are taken to be the cause."""


class StandbySlots:
    """The slots of one node.

    Args:
        slots: number of workers of the node; 0: it keeps no standby workers.
    """

    def __init__(self, slots: int) -> None:
        self._chances = dict.fromkeys(range(slots), STANDBY_DEATHS)
        self._empty = set(self._chances)

    def __bool__(self) -> bool:
        return bool(self._chances)

    def on_ended(self, local_rank: int, by_itself: bool = True) -> None:
        """The standby worker of that slot has ended, or could not be started.

        Args:
            by_itself: False: it was found to be unusable, and the next one imports less.
        """
        self._chances[local_rank] -= by_itself
        self._empty.add(local_rank)

    def on_emptied(self) -> None:
        """All standby workers have become workers, or are being killed."""
        self._empty = set(self._chances)

    def take(self) -> tuple[int, ...]:
        """Return the slots in which one is to be started now."""
        empty, self._empty = self._empty, set()
        return tuple(sorted(slot for slot in empty if self._chances[slot] > 0))

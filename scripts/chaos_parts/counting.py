"""The correct numbers of the counting job, independent of faults (pure)."""

from __future__ import annotations

ITEMS = 24
"""Numbers added in each step, distributed over the ranks, so that the sum is the same for every world size."""


def item(step: int, index: int) -> int:
    """Return one of the numbers that a step adds."""
    return (31 * step + 17 * index) % 1009 + 1


def part(step: int, rank: int, world_size: int) -> int:
    """Return the sum of the numbers that a rank adds in a step."""
    return sum(item(step, index) for index in range(rank, ITEMS, world_size))


def total(step: int) -> int:
    """Return the sum of all numbers of the steps 1 to `step`."""
    return sum(part(each, 0, 1) for each in range(1, step + 1))

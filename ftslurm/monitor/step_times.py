"""Persistently slow ranks, by histograms of the intervals between steps (pure). Observing is not acting.

What this can see depends on the training. In synchronous training a step ends for all when it ends for the slowest:
the *intervals* of all ranks become those of the slowest, and none stands out, however slow one is. A rank does stand
out where steps are not tied together: asynchronous or local training, work between steps that only some ranks wait for.
So "no slow rank" proves nothing; but a rank that is named was slower than the others, over many steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.heartbeat_page import EDGES_S

FACTOR = 1.5
LEAST = 20


@dataclass(frozen=True)
class Histogram:
    """Intervals counted in the buckets of the heartbeat page, see `ftslurm.monitor.heartbeat_page.EDGES_S`."""

    counts: tuple[int, ...] = ()

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int]]) -> Histogram:
        """Take pairs of bucket and count, as node files carry them; what is no bucket or no count is left out."""
        counts = [0] * len(EDGES_S)
        for at, number in pairs:
            if 0 <= at < len(counts) and number > 0:
                counts[at] = number
        return cls(tuple(counts))

    @property
    def intervals(self) -> int:
        """How many intervals were counted."""
        return sum(self.counts)

    def quantile(self, part: float) -> float:
        """Return the interval in seconds that ``part`` (0 to 1) of all do not exceed, interpolated in its bucket.

        Half a bucket off at most, which is a fifth of the value. In the last bucket, which has no upper edge, its
        lower one; 0 with nothing counted.
        """
        wanted = min(max(part, 0.0), 1.0) * self.intervals
        below = 0
        for i, number in enumerate(self.counts):
            if number and below + number >= wanted:
                low = EDGES_S[i]
                high = EDGES_S[i + 1] if i + 1 < len(EDGES_S) else low
                return low + (high - low) * (wanted - below) / number
            below += number
        return 0.0

    @property
    def median_s(self) -> float:
        """The interval in the middle, in seconds."""
        return self.quantile(0.5)


@dataclass(frozen=True)
class SlowRank:
    """A rank that is slower than the others; both times in seconds: its own median, and the median of theirs."""

    rank: int
    median_s: float
    others_s: float


def slow_ranks(histograms: Mapping[int, Histogram], factor: float = FACTOR, least: int = LEAST) -> list[SlowRank]:
    """Return the ranks that are persistently slower than the others, the slowest first.

    Persistently: half of a rank's intervals are longer than ``factor`` times what is usual, so that a few long steps
    (checkpoints, evaluation) name no rank.

    Args:
        histograms: by rank.
        factor: how many times as long as the median of the other ranks' medians.
        least: ranks with fewer intervals are left out, both as slow ones and as the others.
    """
    medians = {rank: each.median_s for rank, each in histograms.items() if each.intervals >= least}
    if len(medians) < 2:
        return []
    ordered = sorted(medians.values())
    found = []
    for rank, median_s in medians.items():
        others_s = _median_without(ordered, median_s)
        if median_s > factor * others_s:
            found.append(SlowRank(rank, median_s, others_s))
    return sorted(found, key=lambda slow: (-slow.median_s, slow.rank))


def _median_without(ordered: Sequence[float], left_out: float) -> float:
    """The median of sorted values, one of them left out; only asked for those above it, so that its place is known."""
    middle, odd = divmod(len(ordered) - 1, 2)
    upper = middle if odd else middle - 1

    def at(i: int) -> float:
        return ordered[i] if ordered[i] < left_out else ordered[i + 1]

    return (at(upper) + at(middle)) / 2

"""The nodes' clocks: comparison of times of two nodes, and its uncertainty (pure).

Each agent measures its clock against the shared filesystem's server (`ftslurm.sharedfs.clock`) and writes the result
into its node record and each round's file. The error that remains after the correction is the uncertainty; failures
of two nodes are ordered only if they differ by more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftslurm.dataclasses import dataclass, field

ASSUMED_NS = 50_000_000
"""Assumed error of an unmeasured clock: generous for NTP in a cluster."""
DRIFT = 20e-6
"""Drift of a clock since its measurement: that of a free-running crystal; NTP keeps it lower."""
TOGETHER_NS = 2_000_000_000
"""The nodes begin a round within this time; if their clocks disagree by more, the measured errors are too small."""


@dataclass(frozen=True)
class Reading:
    """A node's clock in a round: the remaining correction of its times, in nanoseconds, and its error."""

    shift_ns: int
    error_ns: int
    at_ns: int | None
    known: bool


UNKNOWN = Reading(0, ASSUMED_NS, None, known=False)


@dataclass(frozen=True)
class Doubt:
    """The least difference by which one of two times is certainly later; ``known``: both clocks were measured."""

    ns: int
    known: bool


@dataclass(frozen=True)
class Clocks:
    """The nodes' clocks.

    Attributes:
        readings: by round and node.
        started: when each node began each round, on the common clock as far as known.
        ahead_ns: offset ahead of the others' clocks, of nodes whose clock is far off.
        moved_ns: by round and node, the correction of its times for that.
    """

    readings: Mapping[tuple[int, str], Reading] = field(default_factory=dict)
    started: Mapping[tuple[int, str], int] = field(default_factory=dict)
    ahead_ns: Mapping[str, int] = field(default_factory=dict)
    moved_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)

    def comparable_ns(self, number: int, node: str, time_ns: int) -> int:
        """Return a node's time on the common clock."""
        return time_ns + self._reading(number, node).shift_ns

    def error_ns(self, number: int, node: str, time_ns: int) -> Doubt:
        """Return the error of a node's time."""
        reading = self._reading(number, node)
        age_ns = 0 if reading.at_ns is None else abs(time_ns - reading.at_ns)
        return Doubt(reading.error_ns + int(age_ns * DRIFT), reading.known)

    def between(self, number: int, one: tuple[str, int], other: tuple[str, int]) -> Doubt:
        """Return the uncertainty of the order of two events, each a node and its time."""
        if one[0] == other[0]:
            return Doubt(0, known=True)
        a, b = self.error_ns(number, *one), self.error_ns(number, *other)
        doubt = Doubt(a.ns + b.ns, a.known and b.known)
        starts = [self.started.get((number, node)) for node, _ in (one, other)]
        if starts[0] is None or starts[1] is None:
            return doubt
        apart_ns = abs(starts[0] - starts[1])
        return doubt if apart_ns <= TOGETHER_NS + doubt.ns else Doubt(apart_ns, known=False)

    def _reading(self, number: int, node: str) -> Reading:
        return self.readings.get((number, node), UNKNOWN)


def far_off(clocks: Clocks) -> Iterable[dict[str, object]]:
    """Describe the clocks that are far off, for the report's ``clocks``."""
    for node, ahead_ns in sorted(clocks.ahead_ns.items(), key=lambda pair: -abs(pair[1])):
        yield {"node": node, "ahead_s": ahead_ns / 1e9}

"""Ranks that are late at collectives, and so keep the others waiting (pure). Observing is not acting.

In synchronous training a slow rank makes all steps equally long, so that step times show nothing
(`ftslurm.monitor.step_times`). It shows in its arrivals: the time from the end of its last step to its calls of
collectives, in which it waits for no other rank, or for none that the others do not wait for, too.

A rank is named only if that is significant. In each step, ranks are ordered by their lateness. Without a slow rank,
every order is as likely as any other, and a rank's mean place varies around the middle by a known amount, or more if
one step is like the step before (a disturbance that lasts); it has to be `SIGNIFICANT` times as far behind. It must be
late in every group in which it is compared: one that waits in one group for the slow rank arrives late in its other
groups, but not in that one. Ranks that also call point-to-point operations, as in a pipeline, wait for certain ranks,
and none of them is named.

What it cannot see: a device that is slow while its host is not, as a host may call collectives long before its device
reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.arrivals import positions
from ftslurm.records.arrivals import RankArrivals
from ftslurm.text import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LEAST_STEPS = 30
SIGNIFICANT = 5.0
"""Standard deviations of the mean place: by chance, one rank in 3 million. Two ranks reach it in 30 steps at best."""
LEAST_COST = 0.02
"""Of the step: what a rank may cost the others at most, if they wait in each collective; one below it is not worth a
look."""
LEAST_LATE, LEAST_LATE_US = 0.005, 200
"""Of the step, and in microseconds: the least lateness at one collective."""
FEW = 3
"""Ranks of a group in which the places of one determine those of the others."""
FINDINGS_SHOWN = 3
STEADY_PARTS = 3
"""Equal parts of the sampled steps, in each of which it must be late: a short disturbance is no slow rank."""


@dataclass(frozen=True)
class LateRank:
    """A rank that arrives late.

    Attributes:
        late_s: by how much, usually, in seconds: the median over the steps of its largest lateness in each.
        share: of the compared steps, the part in which it arrived late.
        step_s: usual duration of a step, seconds.
        steps: number of compared steps.
    """

    rank: int
    late_s: float
    share: float
    step_s: float
    steps: int


@dataclass(frozen=True)
class Lateness:
    """What the arrivals show.

    Attributes:
        late: the latest rank first.
        compared: number of ranks that were compared in enough steps.
    """

    late: tuple[LateRank, ...] = ()
    compared: int = 0


def lateness(arrivals: Iterable[RankArrivals]) -> Lateness:
    """Return which ranks are late; each rank is given once."""
    ranks = {one.rank: one for one in arrivals}
    groups: dict[str, dict[int, Sequence[tuple[int, ...]]]] = {}
    for rank, one in ranks.items():
        for group in one.groups:
            groups.setdefault(group.group, {})[rank] = group.steps
    found: dict[int, list[_Compared]] = {}
    for members in groups.values():
        for rank, compared in _compare(members).items():
            if len(compared.late_us) >= LEAST_STEPS:
                found.setdefault(rank, []).append(compared)
    late = []
    for rank, comparisons in found.items():
        one = ranks[rank]
        if not one.transfers and all(_is_late(each, one.step_us) for each in comparisons):
            worst = max(comparisons, key=lambda each: each.median_us)
            share = sum(us >= _least_us(one.step_us) / 2 for us in worst.late_us) / len(worst.late_us)
            late.append(LateRank(rank, worst.median_us / 1e6, share, one.step_us / 1e6, len(worst.late_us)))
    return Lateness(tuple(sorted(late, key=lambda each: (-each.late_s, each.rank))), len(found))


class _Compared:
    """One rank within one group: its lateness in each compared step, and its place there, from the middle on.

    Attributes:
        late_us: its largest lateness at a collective, in each step.
        cost_us: its lateness at all collectives together.
        likeness: correlation of the places in one step with those in the next, without a slow rank's doing.
    """

    def __init__(self) -> None:
        self.late_us: list[float] = []
        self.cost_us: list[float] = []
        self.places: list[float] = []
        self.variance = 0.0
        self.likeness = 0.0

    @property
    def median_us(self) -> float:
        return _median(self.late_us)

    @property
    def significance(self) -> float:
        """How far behind it is, in standard deviations. Source: the variance of a mean of an AR(1) process."""
        likeness = min(max(self.likeness, 0.0), 0.99)
        variance = self.variance * (1 + likeness) / (1 - likeness)
        return sum(self.places) / variance**0.5 if variance else 0.0


def as_dicts(found: Lateness, nodes: Mapping[int, str], findings: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return the late ranks for JSON, each with what health checks found on its node.

    Args:
        found: the ranks.
        nodes: the node of each rank.
        findings: by node, as texts.
    """
    return [
        {
            "rank": each.rank,
            "node": nodes[each.rank],
            "late_s": each.late_s,
            "share": round(each.share, 3),
            "step_s": each.step_s,
            "steps": each.steps,
            "findings": list(findings.get(nodes[each.rank], ()))[:FINDINGS_SHOWN],
        }
        for each in found.late
        if each.rank in nodes
    ]


def phrase(late: Mapping[str, Any]) -> str:
    """Return one of `as_dicts` as text, without the rank."""
    often = f"in {late['share']:.0%} of {late['steps']} sampled steps (a step: {duration(late['step_s'])})"
    found = "".join(f"; on its node: {text}" for text in late["findings"])
    return f"arrives {duration(late['late_s'])} late at collectives {often}{found}"


def _is_late(one: _Compared, step_us: int) -> bool:
    least_us = _least_us(step_us)
    if one.significance < SIGNIFICANT or one.median_us < least_us or _median(one.cost_us) < LEAST_COST * step_us:
        return False
    size = len(one.late_us) // STEADY_PARTS
    parts = (one.late_us[at * size : (at + 1) * size] for at in range(STEADY_PARTS))
    return all(_median(part) >= least_us / 2 for part in parts)


def _least_us(step_us: int) -> float:
    return max(LEAST_LATE * step_us, LEAST_LATE_US)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _compare(members: Mapping[int, Sequence[tuple[int, ...]]]) -> dict[int, _Compared]:
    """Compare the ranks of one group in each step that the same collectives of theirs belong to."""
    steps: dict[tuple[int, int], dict[int, Sequence[int]]] = {}
    for rank, listed in members.items():
        for first, last, *arrivals in listed:
            if len(arrivals) == len(positions(last - first + 1)):
                steps.setdefault((first, last), {})[rank] = arrivals
    found: dict[int, _Compared] = {}
    for (first, last), present in sorted(steps.items()):
        if 2 * len(present) < len(members) or len(present) < 2:
            continue
        late_us = _lateness(present)
        for rank, place in _places({rank: max(each) for rank, each in late_us.items()}):
            one = found.setdefault(rank, _Compared())
            one.late_us.append(max(late_us[rank]))
            one.cost_us.append(sum(late_us[rank]) / len(late_us[rank]) * (last - first + 1))
            one.places.append(place - (len(present) + 1) / 2)
            one.variance += (len(present) ** 2 - 1) / 12
    _compute_likeness(found)
    return found


def _compute_likeness(found: Mapping[int, _Compared]) -> None:
    """A slow rank is always behind, which is no likeness of steps: it is computed from the other ranks' places.

    Their median, as another one of them may be slow, too. Of two or three ranks, the others mirror the rank itself:
    there it is computed from its own places.
    """
    total = sum(sum(one.places) for one in found.values())
    number = sum(len(one.places) for one in found.values())
    for rank, one in found.items():
        if len(found) > FEW:
            mean = (total - sum(one.places)) / max(1, number - len(one.places))
            one.likeness = _median([_likeness(other.places, mean) for at, other in found.items() if at != rank])
        else:
            one.likeness = _likeness(one.places, sum(one.places) / len(one.places))
            # Around their own mean, few places are less alike than they are (Kendall 1954).
            one.likeness += (1 + 3 * one.likeness) / len(one.places)


def _likeness(places: Sequence[float], mean: float) -> float:
    """Return the correlation of places with the next ones, around their mean."""
    variance = sum((place - mean) ** 2 for place in places)
    products = sum((before - mean) * (after - mean) for before, after in pairwise(places))
    return products / variance if variance > 0 else 0.0


def _lateness(present: Mapping[int, Sequence[int]]) -> dict[int, list[float]]:
    """Return each rank's lateness behind the others at each kept collective of one step, microseconds."""
    found: dict[int, list[float]] = {rank: [] for rank in present}
    for at in range(min(map(len, present.values()))):
        ordered = sorted(arrivals[at] for arrivals in present.values())
        for rank, arrivals in present.items():
            found[rank].append(arrivals[at] - _others_median(ordered, arrivals[at]))
    return found


def _others_median(ordered: Sequence[int], own: int) -> float:
    """Return the median of sorted values without one of them."""
    number = len(ordered) - 1
    middle = number // 2

    def at(i: int) -> int:
        return ordered[i] if ordered[i] < own else ordered[i + 1]

    return at(middle) if number % 2 else (at(middle - 1) + at(middle)) / 2


def _places(values: Mapping[int, float]) -> list[tuple[int, float]]:
    """Return each rank's place among them, from 1; equal values share the mean of their places."""
    ordered = sorted(values, key=values.__getitem__)
    found = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or values[ordered[end]] != values[ordered[start]]:
            place = (start + 1 + end) / 2
            found += [(rank, place) for rank in ordered[start:end]]
            start = end
    return found

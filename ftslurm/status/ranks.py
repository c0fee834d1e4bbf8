"""The ranks of the running round: their training steps, ranks that are behind, slow ranks (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.step_times import LEAST, Histogram, slow_ranks

Dict = dict[str, Any]
Number = TypeVar("Number", int, float)

BEHIND_STEPS = 2
COUNTS = 2**53
STEPS = 2**63


@dataclass(frozen=True)
class Rank:
    """One rank, from its node's last record.

    Attributes:
        node: where it runs.
        step: the last training step that it reported; None before the first.
        pace: the intervals between its steps.
        age_s: by how much this record may be older than the newest of all records, in seconds.
    """

    node: str
    step: int | None
    pace: Histogram
    age_s: float


def rank_of(node: str, step: int | None, intervals: Sequence[tuple[int, int]], age_s: float) -> Rank:
    """Return a `Rank` from the values of a node record, without impossible counts."""
    pairs = [(at, number) for at, number in intervals if number < COUNTS]
    return Rank(
        node, None if step is None else max(-STEPS, min(step, STEPS)), Histogram.from_pairs(pairs), max(0.0, age_s)
    )


def steps(ranks: Mapping[int, Rank], world_size: int) -> Dict:
    """Return the key "steps" of `ftslurm.status.summary`."""
    known = [rank.step for rank in ranks.values() if rank.step is not None]
    return {
        "first": min(known, default=None),
        "last": max(known, default=None),
        "reporting": len(known),
        "of": world_size,
        "step_s": _step_s(ranks),
        "compared": sum(rank.pace.intervals >= LEAST for rank in ranks.values()),
    }


def behind(ranks: Mapping[int, Rank], heartbeat_s: float) -> list[Dict]:
    """Return the ranks whose step is behind that of the others, the last first.

    Nodes publish at different times: a rank is behind only by more time than lies between their records.
    """
    known = {number: rank.step for number, rank in ranks.items() if rank.step is not None}
    step_s = _step_s(ranks)
    if len(known) < 2 or not step_s:
        return []
    usual = _middle(known.values())
    found = []
    for number, step in known.items():
        # A step is sampled once per heartbeat interval, and published with the next heartbeat.
        slack_s = 2 * heartbeat_s + ranks[number].age_s
        if usual - step >= BEHIND_STEPS and (usual - step) * step_s > slack_s:
            found.append({"rank": number, "node": ranks[number].node, "step": step, "usual": usual})
    return sorted(found, key=lambda each: (each["step"], each["rank"]))


def slow(ranks: Mapping[int, Rank]) -> list[Dict]:
    """Return the ranks that are persistently slower than the others, see `ftslurm.monitor.step_times`."""
    found = slow_ranks({number: rank.pace for number, rank in ranks.items()})
    return [
        {"rank": each.rank, "node": ranks[each.rank].node, "median_s": each.median_s, "others_s": each.others_s}
        for each in found
    ]


def _step_s(ranks: Mapping[int, Rank]) -> float | None:
    medians = [rank.pace.median_s for rank in ranks.values() if rank.pace.intervals]
    return _middle(medians) if medians else None


def _middle(values: Iterable[Number]) -> Number:
    """Return the upper median; importing the module statistics takes longer than the rest of the command."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


__all__ = ["Rank", "behind", "rank_of", "slow", "steps"]

"""The ranks of the running round: their training steps, ranks that are behind, slow ranks (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.step_times import LEAST, Histogram, slow_ranks
from ftslurm.records.arrivals import ArrivalsRecord
from ftslurm.records.node import RankVitals

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
        optimizer_step: as in `ftslurm.records.node.RankVitals`.
    """

    node: str
    step: int | None
    pace: Histogram
    age_s: float
    optimizer_step: int | None = None


def rank_of(node: str, vitals: RankVitals, age_s: float) -> Rank:
    """Return a `Rank` from the values of a node record, without impossible counts."""
    pairs = [(at, number) for at, number in vitals.intervals if number < COUNTS]
    made = _bounded(vitals.optimizer_step)
    return Rank(node, _bounded(vitals.step), Histogram.from_pairs(pairs), max(0.0, age_s), made)


def _bounded(step: int | None) -> int | None:
    return None if step is None else max(-STEPS, min(step, STEPS))


def steps(ranks: Mapping[int, Rank], world_size: int) -> Dict:
    """Return the key "steps" of `ftslurm.status.summary`."""
    known = [rank.step for rank in ranks.values() if rank.step is not None]
    made = [rank.optimizer_step for rank in ranks.values() if rank.optimizer_step is not None]
    return {
        "first": min(known, default=None),
        "last": max(known, default=None),
        "reporting": len(known),
        "of": world_size,
        "step_s": _step_s(ranks),
        "compared": sum(rank.pace.intervals >= LEAST for rank in ranks.values()),
        "optimizer": {"first": min(made), "last": max(made), "ranks": len(made)} if made and not known else None,
    }


def behind(ranks: Mapping[int, Rank], heartbeat_s: float) -> list[Dict]:
    """Return the ranks whose step is behind that of the others, the last first.

    Nodes publish at different times: a rank is behind only by more time than lies between their records, at the pace of
    the fastest rank. An old record proves nothing: the steps since then are not known.
    """
    known = {number: rank.step for number, rank in ranks.items() if rank.step is not None}
    step_s = min((rank.pace.median_s for rank in ranks.values() if rank.pace.intervals), default=0.0)
    if len(known) < 2 or not step_s:
        return []
    usual = _middle(known.values())
    found = []
    for number, step in known.items():
        # A step is sampled once per heartbeat interval, and published with the next heartbeat.
        sampled_s = 2 * heartbeat_s
        slack_s = sampled_s + ranks[number].age_s
        if ranks[number].age_s <= sampled_s and usual - step >= BEHIND_STEPS and (usual - step) * step_s > slack_s:
            found.append({"rank": number, "node": ranks[number].node, "step": step, "usual": usual})
    return sorted(found, key=lambda each: (each["step"], each["rank"]))


def slow(ranks: Mapping[int, Rank]) -> list[Dict]:
    """Return the ranks that are persistently slower than the others, see `ftslurm.monitor.step_times`."""
    found = slow_ranks({number: rank.pace for number, rank in ranks.items()})
    return [
        {"rank": each.rank, "node": ranks[each.rank].node, "median_s": each.median_s, "others_s": each.others_s}
        for each in found
    ]


def late(arrivals: Iterable[ArrivalsRecord], findings: Mapping[str, Sequence[str]]) -> Dict:
    """Return the key "late" of `ftslurm.status.summary`; `findings` of health checks, by node."""
    nodes = {each.rank: (record.node, each) for record in arrivals for each in record.ranks}
    if not nodes:
        return {"compared": 0, "ranks": []}
    from ftslurm.monitor.lateness import as_dicts, lateness

    found = lateness(each for _, each in nodes.values())
    return {
        "compared": found.compared,
        "ranks": as_dicts(found, {rank: node for rank, (node, _) in nodes.items()}, findings),
    }


def _step_s(ranks: Mapping[int, Rank]) -> float | None:
    medians = [rank.pace.median_s for rank in ranks.values() if rank.pace.intervals]
    return _middle(medians) if medians else None


def _middle(values: Iterable[Number]) -> Number:
    """Return the upper median; importing the module statistics takes longer than the rest of the command."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]

"""When a rank arrives at its collectives, by torch's flight recorder and the ends of the rank's steps (pure).

An arrival is the time from the end of the rank's last step to its call of the collective. Ranks that train together end
their steps together, so their arrivals can be compared without comparing the clocks of their nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from ftslurm.dataclasses import dataclass
from ftslurm.records.arrivals import GroupArrivals, RankArrivals
from ftslurm.records.codec import BadFile, Mismatch, parse_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STEPS_KEPT = 48
GROUPS_KEPT = 3
"""A rank's groups with the most collectives: a file of eight ranks has some 50 KB."""
LONGEST_US = 24 * 3600 * 10**6


@dataclass(frozen=True)
class Call:
    """A collective, or with `transfer` a point-to-point operation, that a rank has called at `time_ns`."""

    group: str
    number: int
    time_ns: int
    transfer: bool = False


def read_calls(data: bytes, where: str) -> list[Call]:
    """Return the calls in a document of torch's flight recorder; those of an unknown form are left out.

    Raises:
        BadFile: it is no such document; `where` names it.
    """
    try:
        # Each entry is reduced as soon as it is read: a document of 2,000 entries takes 1 MB as text, and 4 as objects.
        document = parse_json(data, _reduced)
    except Mismatch as error:
        raise BadFile(f"{where}: {error}") from None
    entries = document.get("entries", []) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise BadFile(f"{where}: expected a JSON object with entries")
    return [entry for entry in entries if isinstance(entry, Call)]


def _reduced(value: dict[str, Any]) -> object:
    group = value.get("process_group")
    number, time_ns = value.get("collective_seq_id"), value.get("time_created_ns")
    if not isinstance(group, list) or not group or type(number) is not int or type(time_ns) is not int:
        return value
    return Call(str(group[0])[:200], number, time_ns, value.get("is_p2p") is True)


def arrivals_of(rank: int, calls: Sequence[Call], step_ends: Sequence[int]) -> RankArrivals | None:
    """Return a rank's arrivals in its newest complete steps; None: there are none.

    Args:
        rank: its number.
        calls: what its recorder holds, oldest first.
        step_ends: when its newest steps ended, nanoseconds since the epoch, ascending, by the same clock as the calls.
    """
    if len(step_ends) < 2:
        return None
    steps: dict[str, dict[int, list[Call]]] = {}
    # Calls before the first end are of an unknown step, and the oldest step may have lost its first calls.
    oldest_ns = calls[0].time_ns if calls else 0
    for call in calls:
        at = bisect_right(step_ends, call.time_ns) - 1
        if call.transfer or not 0 <= at < len(step_ends) - 1 or step_ends[at] < oldest_ns:
            continue
        steps.setdefault(call.group, {}).setdefault(at, []).append(call)
    busiest = sorted(steps, key=lambda group: (-sum(map(len, steps[group].values())), group))[:GROUPS_KEPT]
    groups = tuple(
        GroupArrivals(group, tuple(_step(called, step_ends[at]) for at, called in steps[group].items())[-STEPS_KEPT:])
        for group in busiest
    )
    between = sorted(after - before for before, after in pairwise(step_ends))
    transfers = any(call.transfer for call in calls)
    return RankArrivals(rank, between[len(between) // 2] // 1000, groups, transfers) if groups else None


def positions(number: int) -> list[int]:
    """Return which of a step's collectives are kept, by their place: the first two, the middle one, the last."""
    return sorted({0, min(1, number - 1), number // 2, number - 1})


def _step(calls: Sequence[Call], began_ns: int) -> tuple[int, ...]:
    kept = (calls[at] for at in positions(len(calls)))
    times = (min((call.time_ns - began_ns) // 1000, LONGEST_US) for call in kept)
    return (calls[0].number, calls[-1].number, *times)


def joined(older: RankArrivals | None, newer: RankArrivals) -> RankArrivals:
    """Return both samples of a rank as one, without more steps than are kept; a step may be in both."""
    if older is None:
        return newer
    known = {one.group: one for one in newer.groups}
    groups = []
    for one in newer.groups:
        before = next((old for old in older.groups if old.group == one.group), None)
        first = one.steps[0][0]
        kept = tuple(step for step in before.steps if step[0] < first) if before is not None else ()
        groups.append(GroupArrivals(one.group, (*kept, *one.steps)[-STEPS_KEPT:]))
    groups += [old for old in older.groups if old.group not in known][: GROUPS_KEPT - len(groups)]
    return RankArrivals(newer.rank, newer.step_us, tuple(groups), older.transfers or newer.transfers)

"""A job that was stopped from outside while no rank moved: the usual end of a hang that nothing watched for (pure).

By the stacks that the agents collect before such a stop, and by what they measured until then. A rank is still if it
did not move for much longer than ever before in its round. A job whose ranks moved was healthy, as far as is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.stack_classifier import WORKS
from ftslurm.monitor.stacks_file import RankStacks
from ftslurm.monitor.triage import ODD, Group, Triage, describe, has_finished, triage
from ftslurm.text import clip, duration, ranges

LEAST_STILL_S, FACTOR = 6.0, 2.0
"""A rank that did not move for so many seconds, and so many times as long as the longest time before, is still."""
GROUPS_NAMED = 3
RANKS_SHOWN = 24
ADVICE = (
    "With --hang-timeout, or ftslurm.heartbeat() in the script, a round whose ranks do not move any more ends by "
    "itself, with the stacks of all ranks, and can be restarted."
)


@dataclass(frozen=True)
class Standstill:
    """That the ranks of a round did not move.

    Attributes:
        seconds: for how long; of the rank that moved last, without those that still moved.
        moving: the few ranks that moved while all others waited.
        triage: of all ranks' stacks.
        text: all that as a sentence.
        by_records: whether the records of the ranks' collectives show it.
    """

    seconds: float
    moving: tuple[int, ...]
    triage: Triage
    text: str
    by_records: bool = False


def standstill(
    stacks: Mapping[int, RankStacks],
    found: Triage | None = None,
    more: str = "",
    by_records: str = "",
    idle_s: Mapping[int, float | None] | None = None,
) -> Standstill | None:
    """Judge the stacks of a round that was stopped from outside; None: ranks moved, or that is unknown.

    Args:
        stacks: by rank, of those that were alive.
        found: their triage, with the ranks that had finished before.
        more: what the suspect's own output adds.
        by_records: what the records of the ranks' collectives show, in place of their locations.
        idle_s: by these records, for how long ranks had called no collective: a call is a movement, too.
    """
    known = {rank: one.still for rank, one in stacks.items() if one.stop is not None and one.still is not None}
    if not known or len(known) < len(stacks):
        return None
    called = {rank: seconds for rank, seconds in (idle_s or {}).items() if seconds is not None}
    times = {rank: (min(seconds, called.get(rank, seconds)), longest) for rank, (seconds, longest) in known.items()}
    still = {rank: seconds for rank, (seconds, longest) in times.items() if _is_still(seconds, longest)}
    moving = tuple(sorted(set(known) - set(still)))
    if not still:
        return None
    found, seconds = found or triage(stacks.values()), min(still.values())
    if moving and not _waited_for(found, moving):
        return None
    text = _text(seconds, moving, len(stacks), by_records or _where(found))
    if len(stacks) == 1 and len(found.groups) == 1:
        text = f"rank {found.groups[0].ranks[0]} had not moved for {duration(seconds)}: {_where(found)}"
    return Standstill(seconds, moving, found, f"{text}; {more}" if more else text)


def _is_still(seconds: float, longest: float) -> bool:
    return seconds >= max(LEAST_STILL_S, FACTOR * longest)


def _waited_for(found: Triage, moving: tuple[int, ...]) -> bool:
    """Whether all others wait in a collective for these ranks."""
    suspects = {rank for group in found.suspects for rank in group.ranks}
    rest = [group for group in found.groups if group not in found.suspects]
    waits = all(group.activity is not None and group.activity.kind != WORKS for group in rest)
    return found.verdict == ODD and waits and set(moving) <= suspects


def _text(seconds: float, moving: tuple[int, ...], of: int, where: str) -> str:
    if not moving:
        return f"no rank had moved for {duration(seconds)}: {where}"
    if len(moving) == 1:
        return f"only rank {moving[0]} had moved for {duration(seconds)}: {where}"
    return f"{of - len(moving)} of {of} ranks had not moved for {duration(seconds)}: {where}"


def _where(found: Triage) -> str:
    suspects = found.suspects
    rest = [group for group in found.groups if group not in suspects and not has_finished(group)]
    parts = [_named(group) for group in suspects[:GROUPS_NAMED]]
    if suspects and len(rest) == 1:
        parts.append(f"the other{'s' if len(rest[0].ranks) > 1 else ''} {describe(rest[0])}")
    elif not suspects and len(rest) == 1:
        every = "all " if len(rest[0].ranks) > 1 else f"rank {rest[0].ranks[0]} "
        parts.append(f"{every}{describe(rest[0])}")
    else:
        parts += [_named(group) for group in rest[:GROUPS_NAMED]]
    left_out = max(0, len(suspects) - GROUPS_NAMED) + max(0, len(rest) - GROUPS_NAMED)
    return ", ".join(parts) + (f", and {left_out} more places" if left_out else "")


def _named(group: Group) -> str:
    ranks = ranges(group.ranks)
    where = f" on {group.nodes[0]}" if len(group.nodes) == 1 else ""
    return f"rank{'s' if len(group.ranks) > 1 else ''} {clip(ranks, RANKS_SHOWN)}{where} {describe(group)}"

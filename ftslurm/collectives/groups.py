"""The process groups, with the calls of those of their ranks that have a record (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftslurm.collectives.calls import Call, GroupCalls, RankCalls
from ftslurm.dataclasses import replace


class Member(NamedTuple):
    """A rank's calls in a group."""

    rank: RankCalls
    calls: GroupCalls


class Group(NamedTuple):
    """A group with the calls of those of its ranks that have a record."""

    name: str
    description: str
    members: Sequence[int] | None
    known: dict[int, Member]


def group_calls(group: Group) -> dict[int, dict[int, Call]]:
    """Return the calls of a group by their numbers, and those by ranks."""
    table: dict[int, dict[int, Call]] = {}
    for rank, member in sorted(group.known.items()):
        for seq, call in member.calls.calls.items():
            table.setdefault(seq, {})[rank] = call
    return table


def groups_of(ranks: Mapping[int, RankCalls]) -> list[Group]:
    """Return the groups with the calls of their members; of one name, those with other members are other groups."""
    named: dict[tuple[str, str], list[Member]] = defaultdict(list)
    for rank in ranks.values():
        for calls in rank.groups:
            named[calls.backend, calls.name].append(Member(rank, calls))
    groups: list[Group] = []
    for members in named.values():
        parts: dict[Sequence[int] | None, dict[int, Member]] = {}
        for member in members:
            parts.setdefault(member.calls.members, {})[member.rank.rank] = member
        # Where one rank knows the members, they are those of the others that it lists.
        for number, member in list(parts.get(None, {}).items()):
            home = next((known for known in parts if known and number in known), None)
            if home is not None:
                parts[home][number] = member
                del parts[None][number]
        for known, of in parts.items():
            # Without members: worlds of their own, whose ranks have other numbers.
            if of and (known is None or len(known)):
                first = next(iter(of.values())).calls
                groups.append(Group(first.name, first.description, known, of))
    return groups


def with_idle(group: Group, ranks: Mapping[int, RankCalls]) -> dict[int, Member]:
    """Return the members with those that have certainly made no call in the group."""
    first = next(iter(group.known.values())).calls
    none = replace(first, calls={}, waits_in=None, last=0, transfers=(), transfers_whole=True)
    idle = (ranks[rank] for rank in group.members or () if rank in ranks and rank not in group.known)
    return {**group.known, **{one.rank: Member(one, none) for one in idle if one.whole and one.problem is None}}

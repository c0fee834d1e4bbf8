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
    # Torch counts the groups of a script alike on all ranks. With gloo, a rank that was asked lists none.
    unknown = any(member.calls.members is None for members in named.values() for member in members)
    listed = _listed(ranks) if unknown else {}
    groups: list[Group] = []
    for (_, name), members in named.items():
        parts: dict[Sequence[int] | None, dict[int, Member]] = {}
        for member in members:
            parts.setdefault(member.calls.members, {})[member.rank.rank] = member
        # Where one rank knows the members, they are those of the others that it lists.
        for number, member in list(parts.get(None, {}).items()):
            home = next((known for known in (*parts, *listed.get(name, ())) if known and number in known), None)
            if home is not None:
                parts.setdefault(home, {})[number] = member
                del parts[None][number]
        for known, of in parts.items():
            # Without members: worlds of their own, whose ranks have other numbers.
            if of and (known is None or len(known)):
                first = next(iter(of.values())).calls
                groups.append(Group(first.name, first.description, known, of))
    return groups


def _listed(ranks: Mapping[int, RankCalls]) -> dict[str, list[Sequence[int]]]:
    """Return the members of groups by their names, as ranks list them."""
    # All ranks share the tuple of a group, which may be long.
    found = {(name, id(members)): members for rank in ranks.values() for name, members in rank.lists}
    listed: dict[str, list[Sequence[int]]] = defaultdict(list)
    for (name, _), members in found.items():
        listed[name].append(members)
    return listed


def with_idle(group: Group, ranks: Mapping[int, RankCalls]) -> dict[int, Member]:
    """Return the members with those that have certainly made no call in the group."""
    first = next(iter(group.known.values())).calls
    none = replace(first, calls={}, waits_in=None, last=0, transfers=(), transfers_whole=True)
    idle = (ranks[rank] for rank in group.members or () if rank in ranks and rank not in group.known)
    return {**group.known, **{one.rank: Member(one, none) for one in idle if one.whole and one.problem is None}}

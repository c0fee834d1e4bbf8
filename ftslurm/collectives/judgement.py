"""Which rank the others wait for, by the records of all ranks: the root of what stands still in all groups (pure).

A rank that has not joined a call of one group may itself wait in another group for a third rank. The reason is where
such a chain ends: at calls that differ, at a rank that waits for no other, at a process that has ended, or at a call
that all have made, so that the transport under it is at fault. The records do not tell which thread waits: of a rank
whose stack shows that it works, a call that is not done is work in flight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftslurm.collectives.calls import RankCalls
from ftslurm.collectives.comparison import findings
from ftslurm.collectives.finding import (
    ABORTED,
    DIFFERENT,
    LEFT,
    MATCHED,
    UNKNOWN,
    Aborted,
    Finding,
)
from ftslurm.dataclasses import dataclass, replace

APART, CYCLE, NOTHING = "apart", "cycle", "nothing"
ROOTS_WEIGHED = 64
"""Roots of which the ranks that wait for them are counted through all groups."""
_NO_ROOT = (MATCHED, UNKNOWN)
MORE_KEPT = 8


@dataclass(frozen=True)
class Judgement:
    """What the records show.

    Attributes:
        kind: that of the root's finding, `CYCLE`: ranks wait for each other in several groups, `APART`: all ranks wait,
            in groups of which the members are not known, or `NOTHING`: no call has been waited in.
        culprits: the ranks that the root names; empty: it names none, as where two stand against two.
        root: the finding; None: `NOTHING`.
        chain: the findings that depend on it, the most ranks first; of `CYCLE` and `APART`, what it consists of.
        others: further roots, independent of it.
        missing: ranks of which there is no record, with the reason.
        certain: whether the root is the reason for sure.
        ranks: the number of ranks with a record.
    """

    kind: str
    culprits: tuple[int, ...] = ()
    root: Finding | None = None
    chain: tuple[Finding, ...] = ()
    others: tuple[Finding, ...] = ()
    missing: Mapping[int, str] | None = None
    certain: bool = False
    ranks: int = 0

    @property
    def missing_ranks(self) -> Collection[int]:
        """The ranks of which there is no record."""
        return (self.missing or {}).keys()

    @property
    def decides(self) -> bool:
        """Whether it may take the place of a judgement by stacks."""
        if self.root is None or self.kind == UNKNOWN or not self.certain:
            return False
        return bool(self.culprits) or self.kind in (*DIFFERENT, ABORTED, APART, CYCLE, MATCHED)


def judge(
    ranks: Iterable[RankCalls],
    *,
    gone: Collection[int] = (),
    busy: Collection[int] = (),
    blocked: Collection[int] = (),
    aborted: Collection[Aborted] = (),
) -> Judgement:
    """Judge the records of the ranks of one round.

    Args:
        ranks: of each rank of which a record was taken, or was to be taken.
        gone: ranks whose processes had ended.
        busy: ranks whose stacks show that they do not wait for others.
        blocked: ranks whose stacks show that they wait for others, in whatever.
        aborted: ranks that gloo aborted because of what came from another one.
    """
    known = {rank.rank: rank for rank in ranks}
    seen = {rank for rank, one in known.items() if one.problem is None}
    found = findings(known, gone, [each for each in aborted if each.rank not in seen])
    missing = {rank: one.problem for rank, one in known.items() if one.problem is not None and rank not in gone}
    missing |= {each.rank: "gloo aborted it" for each in aborted if each.rank not in seen}
    plain = Judgement(NOTHING, missing=missing, ranks=sum(one.problem is None for one in known.values()))
    if not found:
        return plain
    waits_in = _by_rank(found, frozenset(busy))
    roots = [each for each in found if _is_root(each, waits_in)]
    if not roots:
        cycle = _cycle(found, waits_in)
        return replace(plain, kind=CYCLE, culprits=_odd(cycle), root=cycle[0], chain=tuple(cycle), certain=True)
    if not missing and not gone and _are_apart(roots, seen - waits_in.keys()):
        apart = sorted(found, key=lambda each: (-len(each.waiting), min(each.waiting)))
        return replace(plain, kind=APART, root=apart[0], chain=tuple(apart[:MORE_KEPT]), certain=True)
    reach = _reach(roots, found)
    roots.sort(
        key=lambda each: (
            each.kind != ABORTED,
            each.kind in _NO_ROOT,
            not each.certain,
            -reach[id(each)],
            each.seq,
            each.name,
        )
    )
    root = roots[0]
    culprits = _culprits(root, waits_in, frozenset(blocked))
    chain = sorted(_depending(root, found), key=lambda each: -len(each.waiting))
    return replace(
        plain,
        kind=root.kind,
        culprits=culprits,
        root=root,
        chain=tuple(chain[:MORE_KEPT]),
        others=tuple(roots[1 : 1 + MORE_KEPT]),
        certain=root.certain,
    )


def _by_rank(found: Sequence[Finding], busy: frozenset[int]) -> dict[int, list[Finding]]:
    waits_in: dict[int, list[Finding]] = defaultdict(list)
    for each in found:
        for rank in each.waiting - busy:
            waits_in[rank].append(each)
    return waits_in


def _are_apart(roots: Sequence[Finding], others: Collection[int]) -> bool:
    """Return whether ranks wait in several groups, of which it is not known who else is in them, and none does not."""
    return len(roots) > 1 and not others and all(each.kind == UNKNOWN and each.size is None for each in roots)


def _free(finding: Finding, waits_in: Mapping[int, Sequence[Finding]]) -> list[int]:
    """Return the awaited ranks that wait for no other in another group."""
    return [rank for rank in sorted(finding.awaited) if not any(each is not finding for each in waits_in.get(rank, ()))]


def _is_root(finding: Finding, waits_in: Mapping[int, Sequence[Finding]]) -> bool:
    return not finding.awaited or finding.kind == LEFT or bool(_free(finding, waits_in))


def _culprits(root: Finding, waits_in: Mapping[int, Sequence[Finding]], blocked: frozenset[int]) -> tuple[int, ...]:
    if root.kind in DIFFERENT:
        most, rest = root.parties[0].ranks, [rank for party in root.parties[1:] for rank in party.ranks]
        # The records of too few ranks give no majority.
        majority = len(most) > len(rest) and len(most) >= len(rest) + len(root.unknown)
        return tuple(sorted(rest)) if majority else ()
    waiting = [rank for party in root.parties if party.operations for rank in party.ranks if rank not in root.awaited]
    if root.kind == ABORTED:
        # Against one other rank, either may be the wrong one; against several that agree, it is this one.
        alone = len(waiting) > 1 and root.aborted is not None
        return (root.aborted.rank,) if alone and root.aborted is not None else ()
    if root.kind == LEFT:
        # One rank that has more to do than all the others is the odd one.
        return tuple(sorted(root.awaited)) if len(root.awaited) <= len(waiting) else tuple(sorted(waiting))
    free = _free(root, waits_in)
    # A rank that waits, too, in something that is not recorded, waits perhaps for one of the others.
    free = [rank for rank in free if rank not in blocked] or free
    # One rank that waits for most others may as well be the one that is wrong.
    return tuple(free) if 0 < len(root.awaited) <= len(waiting) else ()


def _depending(root: Finding, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose awaited ranks wait in the root, or in one that depends on it."""
    by_awaited: dict[int, list[Finding]] = defaultdict(list)
    for each in found:
        for rank in each.awaited:
            by_awaited[rank].append(each)
    reached: dict[int, Finding] = {id(root): root}
    left = [root]
    ranks_seen: set[int] = set()
    while left:
        for rank in left.pop().waiting - ranks_seen:
            ranks_seen.add(rank)
            for each in by_awaited.get(rank, ()):
                if id(each) not in reached:
                    reached[id(each)] = each
                    left.append(each)
    return [each for each in reached.values() if each is not root]


def _reach(roots: Sequence[Finding], found: Sequence[Finding]) -> dict[int, int]:
    """Return for each root how many ranks wait for it."""
    ordered = sorted(roots, key=lambda each: -len(each.waiting))
    reach = {id(each): len(each.waiting) for each in ordered}
    for each in ordered[:ROOTS_WEIGHED]:
        ranks = set(each.waiting)
        for other in _depending(each, found):
            ranks |= other.waiting
        reach[id(each)] = len(ranks)
    return reach


def _cycle(found: Sequence[Finding], waits_in: Mapping[int, Sequence[Finding]]) -> list[Finding]:
    """Return findings of which each awaits a rank that waits in the next, and the last one in the first."""
    at = max(found, key=lambda each: (len(each.waiting), -each.seq))
    path: list[Finding] = []
    while all(each is not at for each in path):
        path.append(at)
        at = next(each for rank in sorted(at.awaited) for each in waits_in.get(rank, ()) if each is not at)
    begin = next(i for i, each in enumerate(path) if each is at)
    return path[begin:]


def _odd(cycle: Sequence[Finding]) -> tuple[int, ...]:
    """Return the fewer of the ranks that are in both of two groups and took them in another order than the others."""
    if len(cycle) != 2:
        return ()
    one, other = cycle
    # Who is awaited in the one and waits in the other has to do with both.
    ahead, behind = sorted(one.awaited & other.waiting), sorted(other.awaited & one.waiting)
    if len(ahead) == len(behind) or not ahead or not behind:
        return ()
    return tuple(ahead if len(ahead) < len(behind) else behind)

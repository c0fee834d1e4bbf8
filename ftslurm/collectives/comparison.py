"""What stands still, group by group: calls with one number that differ, ranks that did not join (pure).

A group's collectives have numbers that every rank counts alike, so that records taken at different moments can be
compared: what two ranks called as #118 does not change any more. A call is *waited in* when it is not done a while
after it was made. That is a fact, whoever is to blame; it may be a call of work in flight for which nobody waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ftslurm.collectives.aborted import of_aborted
from ftslurm.collectives.calls import Call, RankCalls
from ftslurm.collectives.finding import (
    ABSENT,
    DIFFERENT,
    LEFT,
    MATCHED,
    NOT_STARTED,
    OPERATION,
    SIZE,
    UNKNOWN,
    WAITS_NS,
    Aborted,
    Finding,
    Party,
)
from ftslurm.collectives.groups import Group, groups_of, with_idle
from ftslurm.collectives.operation import Operation, differ
from ftslurm.collectives.transfers import of_transfers
from ftslurm.dataclasses import replace


def findings(
    ranks: Mapping[int, RankCalls], gone: Collection[int] = (), aborted: Collection[Aborted] = ()
) -> list[Finding]:
    """Return what stands still, in no order.

    Args:
        ranks: of all ranks of which a record was taken, or was to be taken.
        gone: ranks whose processes had ended.
        aborted: ranks that gloo aborted because of what came.
    """
    found: list[Finding] = []
    groups = groups_of(ranks)
    for group in groups:
        one = _of_collectives(group, ranks, frozenset(gone))
        found += [one] if one is not None else []
        if any(member.calls.transfers for member in group.known.values()):
            found += of_transfers(
                group.name, group.description, group.members, with_idle(group, ranks), frozenset(gone)
            )
    if aborted:
        of_them = [of_aborted(each, groups, found) for each in aborted]
        found += [one for one in of_them if one is not None]
    return found


def _of_collectives(group: Group, ranks: Mapping[int, RankCalls], gone: frozenset[int]) -> Finding | None:
    waits = dict(_waiting(group))
    if not waits:
        return None
    at = min(waits.values())
    different = _different(group, waits, at)
    if different is not None and (different.certain or _ends_at(group, different.seq)):
        return replace(different, certain=True)
    plain = _not_joined(group, ranks, gone, waits, at)
    if plain.kind == MATCHED and all(group.known[rank].calls.waits_in is None for rank in waits):
        # All calls are done, whatever has ended the ranks.
        return different
    # A difference that the group got over, or has not come to, explains less than a rank that is not there.
    return different if different is not None and plain.kind in (MATCHED, UNKNOWN) else plain


def _waiting(group: Group) -> Iterable[tuple[int, int]]:
    newest = max(calls.last for _, calls in group.known.values())
    for rank, (of, calls) in group.known.items():
        if calls.waits_in is not None:
            created_ns = calls.calls[calls.waits_in].created_ns
            if not created_ns or of.time_ns - created_ns >= WAITS_NS:
                yield rank, calls.waits_in
        elif of.broken and of.newest == (calls.backend, calls.name) and calls.last == newest in calls.calls:
            # A call is done if another one has followed to it: in its group on some rank, or in any of this rank.
            yield rank, calls.last


def _ends_at(group: Group, seq: int) -> bool:
    """Whether an error may have ended a rank in a call, although others have got over theirs of that number.

    In gloo the rank that sends more than the other one waits for, or less, may go on.
    """
    return any(
        of.broken and of.newest == (calls.backend, calls.name) and calls.last == seq
        for of, calls in group.known.values()
    )


def _different(group: Group, waits: Mapping[int, int], at: int) -> Finding | None:
    """Return the first number with which ranks made calls that differ."""
    table: dict[int, dict[tuple[Operation, ...], list[int]]] = {}
    for rank, member in group.known.items():
        for seq, call in member.calls.calls.items():
            table.setdefault(seq, {}).setdefault(call.operations, []).append(rank)
    # Of several, the one that is waited in: the others are older, or have not come to pass.
    for seq in sorted(table, key=lambda seq: (seq != at, seq)):
        if len(table[seq]) > 1:
            parties, kind = _parties(table[seq])
            if kind is not None:
                return _difference(group, waits, seq, parties, kind, certain=seq == at)
    return None


def _parties(
    by_operations: Mapping[tuple[Operation, ...], Sequence[int]],
) -> tuple[list[tuple[tuple[Operation, ...], list[int]]], str | None]:
    """Return the ranks by what they called as far as it differs, the largest party first; and in what it does."""
    parties: list[tuple[tuple[Operation, ...], list[int]]] = []
    kind: str | None = None
    for operations, ranks in sorted(by_operations.items(), key=lambda one: (-len(one[1]), min(one[1]))):
        same = next((party for party in parties if _differ(party[0], operations) is None), None)
        if same is not None:
            same[1].extend(ranks)
            continue
        kind = kind or (_differ(parties[0][0], operations) if parties else None)
        parties.append((operations, list(ranks)))
    return sorted(parties, key=lambda party: (-len(party[1]), min(party[1]))), kind


def _differ(one: Sequence[Operation], other: Sequence[Operation]) -> str | None:
    if len(one) != len(other):
        return OPERATION if one[0].name != other[0].name else SIZE
    found = [differ(a, b) for a, b in zip(one, other, strict=True)]
    return next((kind for kind in DIFFERENT if kind in found), None)


def _difference(
    group: Group,
    waits: Mapping[int, int],
    seq: int,
    parties: Sequence[tuple[tuple[Operation, ...], list[int]]],
    kind: str,
    *,
    certain: bool,
) -> Finding:
    involved = {rank for _, ranks in parties for rank in ranks}
    waiting = frozenset(rank for rank, at in waits.items() if at >= seq)
    shown = tuple(Party(tuple(sorted(ranks)), operations, _done(group, ranks, seq)) for operations, ranks in parties)
    others = tuple(rank for rank in group.members or () if rank not in involved)
    return Finding(
        kind,
        group.name,
        group.description,
        _size(group),
        seq,
        shown,
        waiting,
        frozenset(),
        tuple(rank for rank in others if rank not in group.known),
        certain=certain,
        waited_ns=_waited_ns(group, waits, seq),
        reordered=_reordered(group, seq, parties) if kind == OPERATION else None,
    )


def _reordered(group: Group, seq: int, parties: Sequence[tuple[tuple[Operation, ...], list[int]]]) -> int | None:
    """Return the number with which the ranks of a second party call what those of the first call as `seq`."""
    (most, many), (odd, few) = parties[:2]
    ours, theirs = group.known[few[0]].calls.calls, group.known[many[0]].calls.calls
    found = (number for number, call in ours.items() if number > seq and _differ(call.operations, most) is None)
    number = next(found, None)
    same = number is not None and number in theirs and _differ(theirs[number].operations, odd) is None
    return number if same else None


def _done(group: Group, ranks: Iterable[int], seq: int) -> bool | None:
    done = {call.done for rank in ranks if (call := group.known[rank].calls.calls.get(seq)) is not None}
    return done.pop() if len(done) == 1 else None


def _size(group: Group) -> int | None:
    return len(group.members) if group.members is not None else None


def _waited_ns(group: Group, waits: Mapping[int, int], seq: int) -> int:
    waited = [0]
    for rank, at in waits.items():
        member = group.known[rank]
        call = member.calls.calls.get(at)
        if at >= seq and call is not None and not call.done and call.created_ns:
            waited.append(member.rank.time_ns - call.created_ns)
    return max(waited)


def _not_joined(
    group: Group, ranks: Mapping[int, RankCalls], gone: frozenset[int], waits: Mapping[int, int], at: int
) -> Finding:
    """Return who has not made the call that the group waits in."""
    members = group.members if group.members is not None else sorted(group.known)
    waiting = [rank for rank, seq in waits.items() if seq == at]
    absent: list[int] = []
    left: list[int] = []
    unknown: list[int] = []
    through: list[int] = []
    for rank in members:
        known = group.known.get(rank)
        if known is not None and known.calls.last >= at:
            call = known.calls.calls.get(at)
            (through if call is not None and call.done else unknown if call is None else []).append(rank)
        elif rank in gone:
            left.append(rank)
        elif known is not None or (rank in ranks and ranks[rank].whole and ranks[rank].problem is None):
            absent.append(rank)
        else:
            unknown.append(rank)
    at_it = set(waiting)
    through = [rank for rank in through if rank not in at_it]
    if group.members is None and not absent:
        # Whether a rank that left no record is one of them is not known, but it is the most likely reason. Of several,
        # most have perhaps nothing to do with the group.
        left = sorted(gone - set(group.known))
        left = left if len(left) == 1 else []
    kind = LEFT if left else ABSENT if absent else UNKNOWN if unknown or group.members is None else MATCHED
    late = _not_started(group, waiting, at) if kind == MATCHED else ()
    kind = NOT_STARTED if late else kind
    operations = group.known[waiting[0]].calls.calls[at].operations
    elsewhere = {*absent, *left, *through, *late, *unknown}
    here = sorted(rank for rank in group.known if rank not in elsewhere)
    parts = ((here, False), (sorted(late), False), (through, True))
    parties = [Party(tuple(those), operations, done) for those, done in parts if those]
    parties += [Party(tuple(those)) for those in (left, absent) if those]
    awaited = left or absent or late
    last = {rank: call for rank in awaited[:8] if (call := _last_done(group, rank)) is not None}
    return Finding(
        kind,
        group.name,
        group.description,
        _size(group),
        at,
        tuple(parties),
        frozenset(waits),
        frozenset(awaited),
        tuple(unknown),
        last,
        kind == ABSENT or (kind == LEFT and group.members is not None) or (kind == MATCHED and not through),
        _waited_ns(group, waits, at),
    )


def _not_started(group: Group, waiting: Sequence[int], at: int) -> tuple[int, ...]:
    """Return the few ranks whose devices have not begun with the call, while those of all others have."""
    started = {rank: group.known[rank].calls.calls[at].started for rank in waiting}
    late = tuple(rank for rank, it in started.items() if it is False)
    begun = sum(it is True for it in started.values())
    return late if begun and len(late) <= begun and len(late) + begun == len(started) else ()


def _last_done(group: Group, rank: int) -> Call | None:
    known = group.known.get(rank)
    done = [call for call in known.calls.calls.values() if call.done] if known is not None else []
    return done[-1] if done else None

"""Sends and receives that wait: without a counterpart, or with one of another size (pure).

Each pair of ranks has its own order, but the recorder's numbers count all transfers of a rank in a group. So what is
compared are the transfers that two ranks have open with each other. With gloo there are none: it does not record them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ftslurm.collectives.calls import Transfer
from ftslurm.collectives.finding import DTYPE, LEFT, MATCHED, SIZE, TRANSFER, UNKNOWN, WAITS_NS, Finding, Party
from ftslurm.collectives.groups import Member
from ftslurm.collectives.operation import RECV, SEND

Pair = tuple[int, int]
"""Source and destination, by global numbers."""


def of_transfers(
    name: str,
    description: str,
    members: Sequence[int] | None,
    known: Mapping[int, Member],
    gone: frozenset[int],
) -> list[Finding]:
    """Return the pairs of ranks of which one waits for the other; see `ftslurm.collectives.comparison`."""
    opened: dict[tuple[str, Pair], list[Transfer]] = defaultdict(list)
    made: dict[tuple[str, Pair], list[Transfer]] = defaultdict(list)
    waits: dict[tuple[str, Pair], int] = {}
    for rank, member in known.items():
        for transfer in member.calls.transfers:
            pair = _pair(transfer, members)
            kind = transfer.operation.name
            if pair is None or pair[0 if kind == SEND else 1] != rank:
                continue
            made[kind, pair].append(transfer)
            if not transfer.done:
                opened[kind, pair].append(transfer)
                age_ns = member.rank.time_ns - transfer.created_ns
                if age_ns >= WAITS_NS:
                    waits[kind, pair] = max(age_ns, waits.get((kind, pair), 0))
    found = []
    for (kind, pair), age_ns in waits.items():
        other = SEND if kind == RECV else RECV
        if opened[other, pair] and kind == SEND and (other, pair) in waits:
            continue  # It is judged with the receive.
        own, peer = (pair[0], pair[1]) if kind == SEND else (pair[1], pair[0])
        mine, theirs = opened[kind, pair][0], next(iter(opened[other, pair]), None)
        if theirs is None and peer in known and _all_known(known, own, peer):
            # What the other side made and is done with is of another size, if it is there at all.
            index = made[kind, pair].index(mine)
            theirs = made[other, pair][index] if index < len(made[other, pair]) else None
        judged, certain = _judged(mine, theirs, peer in known, peer in gone)
        parties = [Party((own,), (mine.operation,))]
        parties += [Party((peer,), (theirs.operation,) if theirs is not None else ())]
        awaited = frozenset({peer}) if judged in (TRANSFER, LEFT) else frozenset()
        unknown = (peer,) if judged == UNKNOWN else ()
        waiting = frozenset({own} if theirs is None or theirs.done else {own, peer})
        found.append(
            Finding(
                judged,
                name,
                description,
                len(members) if members is not None else None,
                mine.number,
                tuple(parties),
                waiting,
                awaited,
                unknown,
                certain=certain or (judged == TRANSFER and peer in known and _all_known(known, own, peer)),
                waited_ns=age_ns,
            )
        )
    return found


def _judged(mine: Transfer, theirs: Transfer | None, known: bool, gone: bool) -> tuple[str, bool]:
    if theirs is None:
        # A counterpart that is overwritten in the record was done, and so would be this one.
        return (LEFT, True) if gone else (TRANSFER, False) if known else (UNKNOWN, False)
    if mine.operation.sizes != theirs.operation.sizes:
        return SIZE, True
    return (DTYPE, True) if mine.operation.kinds != theirs.operation.kinds else (MATCHED, True)


def _all_known(known: Mapping[int, Member], *ranks: int) -> bool:
    return all(rank in known and known[rank].calls.transfers_whole for rank in ranks)


def _pair(transfer: Transfer, members: Sequence[int] | None) -> Pair | None:
    peers = transfer.operation.peers
    if peers is None or members is None or max(peers) >= len(members):
        return None
    return members[peers[0]], members[peers[1]]

"""The calls of one rank by process group, from its record: the newest ones and those it waits in, no more (pure).

A judgement looks at all ranks at once, so that of 16,384 records little of each may stay in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ftslurm.collectives.operation import COALESCED, Operation, operation
from ftslurm.dataclasses import dataclass, replace
from ftslurm.records.flight import DUMP, Collective, FlightRecord

BEFORE, OPEN = 12, 24
"""Calls of a group that are kept before the first one that is not done, and from it on."""
DEFAULT_GROUP = "default_pg"


class Call(NamedTuple):
    """A collective; `operations` are several where they were coalesced into one.

    `started`: None: the backend does not tell.
    """

    seq: int
    operations: tuple[Operation, ...]
    done: bool
    started: bool | None
    created_ns: int


class Transfer(NamedTuple):
    """A send or a receive."""

    number: int
    operation: Operation
    done: bool
    created_ns: int


@dataclass(frozen=True)
class GroupCalls:
    """The calls in one process group.

    Attributes:
        backend: "gloo", "nccl": a group with two of them counts the collectives of each.
        name: torch's name of the group, description: its ``group_desc``.
        members: its ranks, by global numbers, in the group's order; None: not known.
        calls: by their numbers; the newest ones.
        waits_in: the number of the first one that is not done; None: all are.
        last: the number of the newest one; 0: none yet.
        transfers: sends and receives, oldest first.
        transfers_whole: whether none of them is left out.
    """

    backend: str
    name: str
    description: str
    members: Sequence[int] | None
    calls: dict[int, Call]
    waits_in: int | None
    last: int
    transfers: tuple[Transfer, ...] = ()
    transfers_whole: bool = True


@dataclass(frozen=True)
class RankCalls:
    """The calls of a rank.

    Attributes:
        time_ns: when its record was taken.
        groups: none where there is no record.
        whole: whether a group that is missing here was never used.
        problem: why there is no record; None: there is one.
        broken: whether an error may have ended its newest call, so that it looks as if it was done.
        newest: backend and name of the group in which it made that call; None: it is a transfer, or there is none.
        lists: names and members of groups that it lists, also of those in which it has made no call.
        idle_s: seconds from its newest call to the record; None: it has made none.
    """

    rank: int
    node: str
    time_ns: int
    groups: tuple[GroupCalls, ...] = ()
    whole: bool = False
    problem: str | None = None
    broken: bool = False
    newest: tuple[str, str] | None = None
    lists: tuple[tuple[str, Sequence[int]], ...] = ()
    idle_s: float | None = None


def as_of(one: RankCalls, time_ns: int) -> RankCalls:
    """Return the calls that a rank had made at a time, by its own clock."""
    groups = tuple(_group_as_of(group, time_ns) for group in one.groups)
    return one if groups == one.groups else replace(one, groups=groups, broken=False)


def _group_as_of(group: GroupCalls, time_ns: int) -> GroupCalls:
    calls = {number: call for number, call in group.calls.items() if call.created_ns <= time_ns}
    if len(calls) == len(group.calls):
        return group
    waits_in = group.waits_in if group.waits_in in calls else None
    return replace(group, calls=calls, waits_in=waits_in, last=max(calls, default=min(group.calls) - 1))


def calls_of(record: FlightRecord, world: int | None) -> RankCalls:
    """Return the calls in a rank's record.

    Args:
        record: it.
        world: the number of ranks of its round; None: not known.
    """
    trace = record.trace
    if trace is not None and not trace.entries and not trace.pg_config:
        return RankCalls(
            record.rank, record.node, record.time_ns, problem="torch's flight recorder has recorded nothing"
        )
    if trace is None:
        return RankCalls(record.rank, record.node, record.time_ns, problem=record.trouble or "no record")
    by_group: dict[tuple[str, str], list[Collective]] = {}
    newest: Collective | None = None
    for entry in trace.entries:
        if not entry.process_group[0]:
            # Torch names each group of a script; the peer heartbeat has one without a name.
            continue
        key = _key(entry)
        newest = entry if newest is None or entry.time_created_ns >= newest.time_created_ns else newest
        before = by_group.setdefault(key, [])
        if before and _begins_anew(before[-1], entry):
            # destroy_process_group and a new init_process_group: the names begin at 0 again.
            before.clear()
        before.append(entry)
    groups = tuple(_group(record, world, key, entries) for key, entries in by_group.items())
    # An entry that was left out, or overwritten, may have been the only one of its group.
    whole = not trace.left_out and all(min(group.calls, default=1) == 1 for group in groups)
    # Connections break when a rank ends, by itself or by ftslurm, and gloo retires what waits for them.
    broken = record.source == DUMP or record.after is not None
    last = _key(newest) if newest is not None and not newest.is_p2p else None
    listed = ((name, config.ranks) for name, config in trace.pg_config.items() if name and record.rank in config.ranks)
    lists = tuple((name, _one_for_all(members)) for name, members in listed)
    idle_s = None if newest is None else max(0, record.time_ns - newest.time_created_ns) / 1e9
    where = (record.rank, record.node, record.time_ns)
    return RankCalls(*where, groups, whole, broken=broken, newest=last, lists=lists, idle_s=idle_s)


def _key(entry: Collective) -> tuple[str, str]:
    return entry.profiling_name.rpartition(":")[0], entry.process_group[0]


def _begins_anew(before: Collective, entry: Collective) -> bool:
    return entry.collective_seq_id < before.collective_seq_id or entry.op_id < before.op_id


def _group(record: FlightRecord, world: int | None, key: tuple[str, str], entries: Sequence[Collective]) -> GroupCalls:
    parts: dict[int, list[Collective]] = {}
    transfers: dict[int, list[Collective]] = {}
    for entry in entries:
        number = entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id
        (transfers if entry.is_p2p else parts).setdefault(number, []).append(entry)
    calls = {seq: _call(seq, of) for seq, of in sorted(parts.items())}
    waits_in = next((seq for seq, call in calls.items() if not call.done), None)
    last = max(calls, default=0)
    kept = _kept(list(calls), waits_in)
    sent = [each for number in sorted(transfers) for each in _transfers(number, transfers[number])]
    first = min(transfers, default=1)
    description = entries[-1].process_group[1]
    return GroupCalls(
        key[0],
        key[1],
        description,
        _members(record, world, key[1], description),
        {seq: calls[seq] for seq in kept},
        waits_in,
        last,
        tuple(sent),
        first <= 1,
    )


def _kept(numbers: Sequence[int], waits_in: int | None) -> Sequence[int]:
    if waits_in is None:
        return numbers[-BEFORE:]
    at = numbers.index(waits_in)
    return numbers[max(0, at - BEFORE) : at + OPEN]


def _call(seq: int, entries: Sequence[Collective]) -> Call:
    whole = next((entry for entry in entries if _is_whole(entry)), None)
    parts = [entry for entry in entries if entry is not whole] or list(entries)
    # Parts of a coalesced operation are never completed by themselves.
    done = _done(whole) if whole is not None else all(_done(entry) for entry in parts)
    started = {_started(entry) for entry in ([whole] if whole is not None else parts)}
    return Call(
        seq,
        tuple(operation_of(entry) for entry in parts),
        done,
        started.pop() if len(started) == 1 else None,
        min(entry.time_created_ns for entry in parts),
    )


def _transfers(number: int, entries: Sequence[Collective]) -> list[Transfer]:
    whole = next((entry for entry in entries if _is_whole(entry)), None)
    return [
        Transfer(number, operation_of(entry), _done(whole if whole is not None else entry), entry.time_created_ns)
        for entry in entries
        if entry is not whole
    ]


def operation_of(entry: Collective) -> Operation:
    """Return what an entry is about."""
    sizes = (entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes)
    return operation(entry.profiling_name, *sizes)


def _is_whole(entry: Collective) -> bool:
    return entry.profiling_name.rpartition(":")[2] == COALESCED


def _done(entry: Collective) -> bool:
    return entry.retired or entry.state == "completed"


def _started(entry: Collective) -> bool | None:
    # Gloo does not tell, and NCCL only with TORCH_NCCL_ENABLE_TIMING: "scheduled" on all ranks says nothing.
    return entry.state in ("started", "completed") if entry.profiling_name.startswith("nccl:") else None


@lru_cache(maxsize=65536)
def _one_for_all(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same tuple for all members of a group: 16,384 ranks may list some thousand each."""
    return ranks


def _members(record: FlightRecord, world: int | None, name: str, description: str) -> Sequence[int] | None:
    """Return the ranks of a group; None: not known. None at all: a world of its own, its ranks have other numbers."""
    trace = record.trace
    config = trace.pg_config.get(name) if trace is not None else None
    known = config.ranks if config is not None else ()
    if description != DEFAULT_GROUP:
        return _one_for_all(known) if record.rank in known else None
    # Gloo has no names there: one entry, of its first group until a second one is made.
    unnamed = trace.pg_config.get("") if trace is not None else None
    known = known or (unnamed.ranks if unnamed is not None else ())
    if known and world is not None and len(known) != world:
        # Several worlds in one round.
        return ()
    return range(world) if world is not None else known or None

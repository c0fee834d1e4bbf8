"""Ranks that gloo aborted because what came from another rank was longer than what they had called for (pure).

Such a rank leaves no record: its process ends before it can be asked. Its stacks tell which function it had called, and
gloo how many bytes came and were expected; the records of the other ranks tell the call, unless there are several.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ftslurm.collectives.calls import Call
from ftslurm.collectives.finding import ABORTED, DIFFERENT, Aborted, Finding, Party
from ftslurm.collectives.groups import Group as GroupOfRanks
from ftslurm.collectives.groups import group_calls
from ftslurm.collectives.operation import Operation

_BITS = re.compile(r"\d+$")
"""In the name of a dtype, as of ``bfloat16``."""


class _Candidate(NamedTuple):
    group: GroupOfRanks
    seq: int
    calls: Mapping[int, Call]

    @property
    def operation(self) -> Operation:
        return next(iter(self.calls.values())).operations[0]


def of_aborted(aborted: Aborted, groups: Collection[GroupOfRanks], found: Collection[Finding]) -> Finding | None:
    """Return the call that does not match that of a rank which gloo aborted; None: it is not certain.

    Args:
        aborted: the rank.
        groups: all groups, with the calls of the others.
        found: what stands still; where records of others differ, these tell more.
    """
    if any(each.kind in DIFFERENT and each.certain for each in found):
        return None
    possible = list(_candidates(aborted, groups))
    # The parts into which gloo divides a tensor are rounded, so that this is no proof.
    fitting = [each for each in possible if _fits(each.operation, aborted)] or possible
    if len(fitting) != 1:
        return None
    group, seq, calls = fitting[0]
    operations = next(iter(calls.values())).operations
    alike = tuple(sorted(rank for rank, call in calls.items() if call.operations == operations))
    done = {calls[rank].done for rank in alike}
    return Finding(
        ABORTED,
        group.name,
        group.description,
        len(group.members) if group.members is not None else None,
        seq,
        (Party(alike, operations, done.pop() if len(done) == 1 else None), Party((aborted.rank,))),
        frozenset(alike),
        frozenset(),
        aborted=aborted,
    )


def _candidates(aborted: Aborted, groups: Collection[GroupOfRanks]) -> Iterator[_Candidate]:
    """Return the calls of that function that the rank may have been in, one of each group to which it may belong.

    The partner sends all its data before it waits, so that its newest call may be the one behind; what came was longer
    than expected, so that the longer one of the two is taken. Of two alike, the number is not known: 0.
    """
    for group in groups:
        if aborted.rank in group.known or (group.members is not None and aborted.rank not in group.members):
            continue
        calls = group_calls(group)
        named = [seq for seq, of in calls.items() if _is_named(next(iter(of.values())).operations[0], aborted)]
        newest = [_Candidate(group, seq, calls[seq]) for seq in sorted(named)[-2:]]
        newest = [each for each in newest if _may_send(each, aborted.came)] or newest
        if newest:
            longest = max(reversed(newest), key=lambda each: _elements(each.operation))
            alike = len(newest) > 1 and newest[0].operation == newest[1].operation
            yield longest._replace(seq=0) if alike else longest


def _is_named(operation: Operation, aborted: Aborted) -> bool:
    return aborted.function.lstrip("_").startswith(operation.name)


def _fits(operation: Operation, aborted: Aborted) -> bool:
    """Whether the rank's tensor had a whole number of elements, if the others' is longer as the message says."""
    elements = _elements(operation)
    return elements > 0 and aborted.came > 0 and elements * aborted.expected % aborted.came == 0


def _may_send(candidate: _Candidate, came: int) -> bool:
    """Whether gloo may have sent so many bytes at once: a tensor, or one of two parts of it for each rank."""
    operation = candidate.operation
    bits = _BITS.search(operation.dtypes[0]) if operation.dtypes else None
    whole = _elements(operation) * (int(bits[0]) // 8 if bits is not None else 1)
    ranks = len(candidate.group.members or candidate.group.known) + (candidate.group.members is None)
    return came <= whole <= came * 2 * ranks


def _elements(operation: Operation) -> int:
    return sum(operation.sizes or ())


__all__ = ["Aborted", "of_aborted"]

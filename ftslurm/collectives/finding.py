"""One group of ranks that stands still, as the triage of collectives finds it (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.collectives.calls import DEFAULT_GROUP, Call
from ftslurm.collectives.operation import ROOTED, Operation
from ftslurm.dataclasses import dataclass

OPERATION, SIZE, DTYPE = "operation", "size", "dtype"
ABORTED, ABSENT, LEFT, UNKNOWN, NOT_STARTED, MATCHED, TRANSFER = (
    "aborted",
    "absent",
    "left",
    "unknown",
    "not-started",
    "matched",
    "transfer",
)
DIFFERENT = (OPERATION, SIZE, DTYPE)
WAITS_NS = 10**9
"""A call that is younger may be done in the next moment."""


@dataclass(frozen=True)
class Party:
    """Ranks that did the same.

    Attributes:
        operations: what they called with the number; empty: nothing.
        done: whether that call was done; None: on some of them.
    """

    ranks: tuple[int, ...]
    operations: tuple[Operation, ...] = ()
    done: bool | None = False


@dataclass(frozen=True)
class Aborted:
    """How a rank was aborted.

    Attributes:
        rank: its number.
        function: the function of ``torch.distributed`` in which it was; empty: not known.
        came, expected: bytes, of the whole or of a part.
    """

    rank: int
    function: str
    came: int
    expected: int


@dataclass(frozen=True)
class Finding:
    """One group that stands still.

    Attributes:
        kind: `OPERATION`, `SIZE`, `DTYPE`: ranks called with one number what differs so; `ABSENT`: ranks did not make
            the call that others wait in; `LEFT`: as their processes had ended; `UNKNOWN`: nothing is known of ranks;
            `NOT_STARTED`: the devices of ranks have not begun with it; `MATCHED`: all made the same call;
            `TRANSFER`: a send or a receive without its counterpart; `ABORTED`: gloo aborted a rank, as what came was
            longer than what it had called for.
        name, description: of the group.
        size: number of its ranks; None: not known.
        seq: the number of the call.
        parties: the largest first, those that made no call last.
        waiting: the ranks that wait in this group, in this call or in a later one.
        awaited: the ranks that others wait for.
        unknown: members of which nothing is known.
        last: of awaited ranks, their last call in the group that was done, as far as known.
        certain: whether it is the reason for sure that the group stands still.
        created_ns: when the first of those waiting made the call, by its node's clock.
        waited_ns: since then, until the record was taken.
        reordered: the number with which the odd ranks call what the others call as `seq`, and the others what these
            call; None: there is no such number.
        aborted: of `ABORTED`, how.
    """

    kind: str
    name: str
    description: str
    size: int | None
    seq: int
    parties: tuple[Party, ...]
    waiting: frozenset[int]
    awaited: frozenset[int]
    unknown: tuple[int, ...] = ()
    last: Mapping[int, Call] | None = None
    certain: bool = True
    waited_ns: int = 0
    reordered: int | None = None
    aborted: Aborted | None = None

    @property
    def operation(self) -> Operation | None:
        """What most ranks called."""
        return next((party.operations[0] for party in self.parties if party.operations), None)

    @property
    def rooted(self) -> bool:
        """Whether the operation has a root, which may differ without a trace in the records."""
        found = self.operation
        return found is not None and found.name in ROOTED


def is_default(finding: Finding) -> bool:
    """Whether it is about the group of all ranks."""
    return finding.description == DEFAULT_GROUP

"""Time-outs of collectives as torch's NCCL watchdog prints them: which operation, its number, and the ranks (pure).

``[rank3]:[E… ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1234,
OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600052 milliseconds before timing out.``
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.pattern import pattern
from ftslurm.text import duration, plural, ranges

LIMIT = 64 * 1024  # characters of an output's end that are read
_CAUGHT = "atchdog caught collective operation timeout"
_TIMEOUT = pattern(
    rf"(?P<before>[^\n]{{0,300}}?){_CAUGHT}(?:: WorkNCCL\((?P<work>[^\n]{{1,300}}?)\)"
    r" ran for (?P<ran>\d{1,12}) milliseconds)?"
)
_FIELD = pattern(r"(SeqNum|OpType|NumelIn|NumelOut)=(\w+)")
_LABEL = pattern(r"\A\s*\[rank(\d{1,6})\]:")
# The number in a group that is not the default one is not the rank's.
_RANK = pattern(r"\[(?:PG [^\]]{0,40}\(default_pg\) |PG ID 0 PG GUID 0[^\]]{0,20} )?Rank (\d{1,6})\]")
_OTHER_GROUP = pattern(r"\[PG (?:ID )?[1-9]")


@dataclass(frozen=True)
class CollectiveTimeout:
    """A collective whose time was over on a rank.

    Attributes:
        rank: of the whole job; None: the line does not name it.
        operation: torch's name of its type; empty: unknown.
        number: of the collective in its process group; None: unknown.
        elements: of its input; None: unknown.
        ran_s: time that it had taken, in seconds; None: unknown.
    """

    rank: int | None = None
    operation: str = ""
    number: int | None = None
    elements: int | None = None
    ran_s: float | None = None

    @property
    def call(self) -> str:
        """``ALLREDUCE #1234 of 4096 elements``."""
        text = self.operation or "a collective"
        text += "" if self.number is None else f" #{self.number}"
        return text + ("" if self.elements is None else f" of {plural(self.elements, 'element')}")

    @property
    def text(self) -> str:
        """``ALLREDUCE #1234 of 4096 elements timed out after 10 min``."""
        after = "" if self.ran_s is None else f" after {duration(self.ran_s)}"
        return f"{self.call} timed out{after}"


def timeout_in(line: str) -> CollectiveTimeout | None:
    """Return the time-out that a line states; None: none."""
    found = _TIMEOUT.search(line) if _CAUGHT in line else None
    if found is None:
        return None
    fields = dict(_FIELD.findall(found["work"] or ""))
    return CollectiveTimeout(
        rank=rank_in(line, found["before"]),
        operation=fields.get("OpType", ""),
        number=int(fields["SeqNum"]) if fields.get("SeqNum", "").isdecimal() else None,
        elements=int(fields["NumelIn"]) if fields.get("NumelIn", "").isdecimal() else None,
        ran_s=int(found["ran"]) / 1000 if found["ran"] else None,
    )


def rank_in(line: str, before: str | None = None) -> int | None:
    """Return the rank of the whole job that a line of torch's process group names; None: none.

    Args:
        line: of the output.
        before: the part of it in which the rank is sought; None: all of it.
    """
    label = _LABEL.match(line)
    named = None if _OTHER_GROUP.search(line) else _RANK.search(line if before is None else before)
    rank = label or named
    return int(rank[1]) if rank else None


def timeout_of(text: str) -> CollectiveTimeout | None:
    """Return the first time-out in the end of an output that names its operation, else any; None: there is none."""
    text = text[-LIMIT:]
    if _CAUGHT not in text:
        return None
    found = [each for each in map(timeout_in, text.splitlines()) if each is not None]
    return next((each for each in found if each.operation), found[0] if found else None)


def difference(timeouts: Mapping[int, CollectiveTimeout]) -> str:
    """``rank 2 was in _ALLGATHER_BASE #1234 of 4096 elements, ranks 0-1, 3 in ALLREDUCE #1234 of 4096 elements``.

    Empty if all ranks were in the same collective, or too little is known. The smallest group comes first.

    Args:
        timeouts: by rank.
    """
    groups = _by_call(timeouts)
    if len(groups) < 2:
        return ""
    shown = [f"{_ranks(ranks)}{' was' if len(ranks) == 1 and not i else ' were' if not i else ''} in {call}"
             for i, (call, ranks) in enumerate(groups[:3])]  # fmt: skip
    return ", ".join(shown) + (f", and {len(groups) - 3} more" if len(groups) > 3 else "")


def is_mismatch(timeouts: Mapping[int, CollectiveTimeout]) -> bool:
    """Return whether ranks were in different operations as the same collective of their sequence."""
    numbered: dict[int, set[str]] = {}
    for each in timeouts.values():
        if each.operation and each.number is not None:
            numbered.setdefault(each.number, set()).add(each.operation)
    return any(len(operations) > 1 for operations in numbered.values())


def odd_rank(timeouts: Mapping[int, CollectiveTimeout]) -> int | None:
    """Return the rank that alone was in another collective than the at least two others, which were in one; or None."""
    groups = _by_call(timeouts)
    alone = len(groups) == 2 and len(groups[0][1]) == 1 < len(groups[1][1])
    return groups[0][1][0] if alone else None


def _by_call(timeouts: Mapping[int, CollectiveTimeout]) -> list[tuple[str, list[int]]]:
    """Return the collectives with their ranks, the fewest ranks first."""
    calls: dict[str, list[int]] = {}
    for rank, each in timeouts.items():
        if each.operation and each.number is not None:
            calls.setdefault(each.call, []).append(rank)
    return sorted(calls.items(), key=lambda each: (len(each[1]), min(each[1])))


def _ranks(numbers: Iterable[int]) -> str:
    text = ranges(numbers)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"

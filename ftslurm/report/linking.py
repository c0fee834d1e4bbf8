"""What a round has from the other rounds: whether the job recovered, its cost, the same failure before (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftslurm.dataclasses import dataclass, replace
from ftslurm.report.alike import ALL

if TYPE_CHECKING:
    from ftslurm.report.verdict import RoundVerdict

EARLIER_KEPT = 20


@dataclass(frozen=True)
class Cost:
    """The cost of an ended round: time until the next one began, steps that it repeated, None if unknown."""

    until_next_round_s: float | None
    steps_repeated: int | None
    requeued: bool


def linked(rounds: Sequence[RoundVerdict]) -> Iterator[RoundVerdict]:
    """Add what follows from the other rounds: recovery, its cost, the same failure in earlier rounds."""
    by_signature: dict[str, list[int]] = {}
    of_all: dict[str, tuple[int, str]] = {}
    for i, this in enumerate(rounds):
        first = this.first
        if first is not None:
            earlier = by_signature.setdefault(first.signature, [])
            first = replace(first, same_as_rounds=tuple(earlier[-EARLIER_KEPT:]))
            earlier.append(this.number)
            if first.alike is not None and first.alike["scope"] == ALL:
                of_all[first.signature] = this.number, str(first.alike["subject"])
            elif first.alike is None and first.signature in of_all:
                # In this round, the others were stopped before they came there.
                number, subject = of_all[first.signature]
                first = replace(first, remarks=(*first.remarks, f"in round {number}, {subject} failed so"))
        over = i + 1 < len(rounds) and this.outcome != "succeeded"
        cost = _cost(this, rounds[i + 1]) if over else None
        yield replace(this, first=first, recovered=over and first is not None, cost=cost)


def _cost(this: RoundVerdict, after: RoundVerdict) -> Cost:
    first = this.first
    failed_ns = first.time_ns if first is not None and first.time_ns is not None else this.ended_ns
    step = first.step if first is not None and first.step is not None else this.last_step
    if step is None and this.optimizer_steps is not None:
        step = this.optimizer_steps[1]
    again = begun_again(this, after)
    gap_ns = None if failed_ns is None or after.started_ns is None else max(0, after.started_ns - failed_ns)
    return Cost(
        None if gap_ns is None else gap_ns / 1e9,
        None if step is None or again is None else max(0, step - again),
        requeued=this.attempt != after.attempt,
    )


def begun_again(this: RoundVerdict, after: RoundVerdict) -> int | None:
    """Return the first step of a later round, as a number that can be compared with those of `this`; None: unknown.

    The count that an optimizer keeps goes on from a checkpoint. One that begins with 1 shows nothing: the round began
    anew, or the script restores the weights alone, or the optimizer keeps no count.
    """
    if this.last_step is not None:
        return after.first_step
    made = after.optimizer_steps
    return made[0] if this.optimizer_steps is not None and made is not None and made[0] > 1 else None

"""A round's outcome, nodes, size and times, as recorded, else by all files; and what it has from others (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftslurm.dataclasses import dataclass, replace
from ftslurm.report.alike import ALL
from ftslurm.report.facts import UNNAMED, History, RoundFiles, Snapshot
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.lost_nodes import WORLD_LIMIT

if TYPE_CHECKING:
    from ftslurm.report.round_verdict import RoundVerdict

EARLIER_KEPT = 20


def outcome_of(
    snapshot: Snapshot, files: RoundFiles, entry: History | None, found: Sequence[FailedWorker], *, newest: bool
) -> str:
    """Return the recorded outcome; where none was recorded, the outcome according to all files."""
    if entry is not None and entry.outcome not in ("running", "unknown"):
        return entry.outcome
    closed = snapshot.state.closed if snapshot.state else None
    if newest and closed is not None and closed.outcome == "stopped":
        return "stopped"
    if found:
        return "failed"
    outcomes = {n.outcome for n in files.nodes}
    if outcomes == {"succeeded"} and _all_there(files, entry):
        return "succeeded"
    if newest and closed is None:
        return "stopped" if outcomes == {"stopped"} else "running"
    return closed.outcome if newest and closed is not None else "unknown"


def _all_there(files: RoundFiles, entry: History | None) -> bool:
    world = world_size_of(files, entry)
    return world is None or world == len({w.rank for n in files.nodes for w in n.workers})


def attempt_of(files: RoundFiles, entry: History | None) -> str | None:
    """Return the name of the attempt that formed the round."""
    if entry is not None and entry.attempt:
        return entry.attempt
    return next((n.attempt for n in files.nodes if n.attempt), None)


def nodes_of(files: RoundFiles, entry: History | None) -> tuple[str, ...]:
    """Return the nodes of the round."""
    if entry is not None and entry.nodes:
        return entry.nodes
    return tuple(n.node for n in files.nodes if n.node != UNNAMED)


def world_size_of(files: RoundFiles, entry: History | None) -> int | None:
    """Return the number of ranks, as far as one that can be true is recorded."""
    sizes = [entry.world_size if entry else None] + [n.world_size for n in files.nodes]
    return next((s for s in sizes if s is not None and 0 < s <= WORLD_LIMIT), None)


def started_ns(files: RoundFiles, entry: History | None) -> int | None:
    """Return when the round was formed, else when its first node began."""
    if entry is not None and entry.formed_ns is not None:
        return entry.formed_ns
    return min((n.started_ns for n in files.nodes if n.started_ns is not None), default=None)


def ended_ns(files: RoundFiles, entry: History | None, outcome: str) -> int | None:
    """Return when the round ended; None: it runs, or that is not known."""
    if entry is not None and entry.ended_ns is not None:
        return entry.ended_ns
    if outcome == "running":
        return None
    return max((n.ended_ns for n in files.nodes if n.ended_ns is not None), default=None)


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

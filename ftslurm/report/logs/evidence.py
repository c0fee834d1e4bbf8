"""What may have ended a process by a log's lines: an exception, a crash, or another reason (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ftslurm.pattern import pattern
from ftslurm.report.logs.reasons import STRONG, Reason
from ftslurm.report.logs.tracebacks import Crash, Raised

Evidence = Raised | Crash | Reason
_DIGITS = pattern(r"\d+")


class Found(NamedTuple):
    """A possible failure: an exception, a crash or another reason, of a rank or an unknown one."""

    number: int
    rank: int | None
    thing: Evidence
    tail: str


def is_strong(thing: Evidence) -> bool:
    """Return whether it explains a failure without an end that agrees."""
    return not isinstance(thing, Reason) or thing.strength == STRONG


def code_of(thing: Evidence) -> int | None:
    """Return the exit code that it leads to; None: not known."""
    return thing.code if isinstance(thing, Reason) else None


def kind_of(thing: Evidence) -> str:
    """Return the kind of the failure, as in an error record."""
    if isinstance(thing, Raised):
        return "exception"
    return "signal" if isinstance(thing, Crash) else thing.kind


def signal_of(thing: Evidence) -> str | None:
    """Return the name of the signal of a process that ends by it; None: not known."""
    return None if isinstance(thing, Raised) else thing.signal


def headline_of(thing: Evidence) -> str:
    """Return what is equal for two failures of the same kind at the same place."""
    if isinstance(thing, Raised):
        place = thing.exception.frames[-1].place if thing.exception.frames else ""
        # Of torn tracebacks, lines of others may be in the message.
        first = thing.headline.split("\n", 1)[0]
        return f"{first}|{place}"
    # Each rank's line may have its own number.
    return thing.signal or "" if isinstance(thing, Crash) else _DIGITS.sub("0", thing.message)


def last_line_of(thing: Evidence) -> int:
    """Return the number of its last line."""
    return thing.number if isinstance(thing, Reason) else thing.end


def first_line(raised: Raised) -> str:
    """Return the first line of an exception's message; of an empty one its type."""
    return raised.exception.message.strip().split("\n", 1)[0] or raised.exception.type


def least_torn(found: Sequence[Found]) -> list[Found]:
    """Return those of equal exceptions that most ranks raised at one place, if ranks that write at once tore the rest.

    The first one has a usual number of frames: of two ranks in one traceback there are more, of a part of one fewer.
    """
    raised = [(each, each.thing) for each in found if isinstance(each.thing, Raised)]
    if len(raised) < len(found) or len({first_line(thing) for _, thing in raised}) > 1:
        return []
    (usual, count), *_ = Counter(headline_of(thing) for _, thing in raised).most_common(1)
    if count * 2 <= len(raised):
        return []
    frames = sorted(len(thing.exception.frames) for _, thing in raised)
    middle = frames[len(frames) // 2]
    there = [(each, thing) for each, thing in raised if headline_of(thing) == usual]
    return [each for each, _ in sorted(there, key=lambda pair: abs(len(pair[1].exception.frames) - middle))]

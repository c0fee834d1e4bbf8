"""Equal exceptions of ranks that wrote at once, so that the lines of one are between those of another (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ftslurm.report.logs.evidence import Found, headline_of
from ftslurm.report.logs.tracebacks import Raised


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

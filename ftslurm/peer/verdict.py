"""Conclusions from the answers to a peer heartbeat, and from missing ones: which ranks are lost (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ftslurm.text import duration

FAILURES = 3  # in a row, then the peers are lost
MARGIN_S = 10.0
SHORTEST_TIMEOUT_S = 2.0
_NAMED = 16  # ranges of ranks that a message names, at most


class PeerLostError(RuntimeError):
    """Other ranks have not answered the peer heartbeat several times in a row."""


class PeerTokenError(RuntimeError):
    """A rank answered the peer heartbeat with another token than the one that all ranks agreed on."""


def timeout_of(period_s: float) -> float:
    """Return the time-out of one heartbeat in seconds, as DTensor's heartbeat has it."""
    return max(period_s - MARGIN_S, SHORTEST_TIMEOUT_S)


def wrong_ranks(slots: Sequence[int], token: int) -> list[int]:
    """Return the ranks whose slot does not hold ``token``."""
    return [rank for rank, value in enumerate(slots) if value != token]


def token_error(slots: Sequence[int], token: int, rank: int) -> PeerTokenError:
    """Name the ranks that are out of step: those with another token, or this one if most agree on another."""
    wrong = wrong_ranks(slots, token)
    common, count = Counter(slots).most_common(1)[0]
    if common != token and count > 1 and len(slots) > 2:
        odd = wrong_ranks(slots, common)
        whose = "this rank" if odd == [rank] else f"this rank among them ({ranks(odd)})"
        return PeerTokenError(
            f"{ranks([rank])} is out of step: {count} of {len(slots)} ranks agree on another heartbeat token; "
            f"{whose} was restarted, or its memory was damaged"
        )
    verb = "answers" if len(wrong) == 1 else "answer"
    return PeerTokenError(
        f"{ranks(wrong)} {verb} the peer heartbeat with a wrong token: restarted, out of step, or damaged memory"
    )


def lost_error(missing: Sequence[int], failures: int, timeout_s: float, last: str) -> PeerLostError:
    """Name the ranks that did not answer.

    Args:
        missing: the ranks that did not come; empty if that could not be found out, or if all came.
        failures: how many times in a row.
        timeout_s: how long each was waited for, in seconds.
        last: what went wrong the last time, as text.
    """
    times = f"{failures} times in a row (time-out {duration(timeout_s)})"
    if not missing:
        return PeerLostError(f"the peer heartbeat failed {times}: {last}")
    why = "ended, hung, or out of reach"
    return PeerLostError(f"{ranks(missing)} did not answer the peer heartbeat {times}: {why}")


def absent(everybody: Sequence[int], are_here: Callable[[Sequence[int]], bool]) -> list[int]:
    """Return the absent ranks by bisection: a few queries for a few absent ranks among thousands."""
    if not everybody or are_here(everybody):
        return []
    if len(everybody) == 1:
        return list(everybody)
    middle = len(everybody) // 2
    return absent(everybody[:middle], are_here) + absent(everybody[middle:], are_here)


def ranks(numbers: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2, 7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    named = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:_NAMED]]
    left_out = sum(b - a + 1 for a, b in runs[_NAMED:])
    more = f" and {left_out} more" if left_out else ""
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(named)}{more}"

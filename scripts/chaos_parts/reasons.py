"""Explanation of the end of a round by an injected fault (pure)."""

from __future__ import annotations

from chaos_parts.faults import BY_NAME, STOPPED, THIS_NODE, THIS_RANK, Reason
from chaos_parts.history import History, Injection, PastRound

EARLY_NS = 1_000_000_000
"""A fault is recorded after its injection; its effect may occur a moment earlier."""
SECOND_NS = 1_000_000_000
ENDED_WELL = ("succeeded", "running")


def explanations(history: History, past: PastRound) -> list[Injection]:
    """Return the faults that explain the end of a round according to the report."""
    return [each for each in history.injections if _in_time(each, past) and _fits(each, past)]


def _in_time(injection: Injection, past: PastRound) -> bool:
    if past.ended_ns is None:
        return True
    fault = BY_NAME[injection.kind]
    latest = injection.over_ns + int(fault.window_s * SECOND_NS)
    return injection.begin_ns - EARLY_NS <= past.ended_ns <= latest


def _fits(injection: Injection, past: PastRound) -> bool:
    return any(_is(reason, injection, past) for reason in BY_NAME[injection.kind].reasons)


def _is(reason: Reason, injection: Injection, past: PastRound) -> bool:
    if past.outcome == STOPPED:
        return STOPPED in reason.causes
    first = past.first
    if first is None or first.cause not in reason.causes:
        return False
    if reason.blames == THIS_RANK:
        return first.rank == injection.rank and past.number == injection.round
    if reason.blames == THIS_NODE:
        return injection.node in (first.node, *first.nodes)
    return True


def describe_end(past: PastRound) -> str:
    """Describe the end of a round in one line."""
    first = past.first
    if first is None:
        return f"round {past.number} {past.outcome}: {past.reason or 'no reason'}"
    where = f"rank {first.rank} on {first.node}" if first.rank is not None else ", ".join(first.nodes) or first.node
    return f"round {past.number} {past.outcome}: {where}: {first.cause} ({first.what}); decided: {past.reason}"

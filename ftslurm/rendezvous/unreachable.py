"""Rounds that could not begin because a node did not reach the master: back-off and choice of nodes (pure).

A network outage is temporary, or affects one node alone; the program does not cause it. So such a round uses up no
restart. The next one waits, longer each time, and is formed under another master, without the involved nodes as far as
others suffice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ftslurm.records.cause import NETWORK
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import EXIT_FAILED, FAILED, UNREACHABLE, RoundHistory, State
from ftslurm.rendezvous.closing import close, describe
from ftslurm.rendezvous.observation import Observation, Timing

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
PROVEN = 2
"""A node involved in this many consecutive rounds is left out although the round could be larger with it."""


def unreachable_rounds(state: State) -> list[RoundHistory]:
    """Return the newest consecutive unreachable rounds of this attempt, newest first."""
    found: list[RoundHistory] = []
    for entry in reversed(state.history):
        if entry.attempt != state.attempt or entry.failure is None or entry.failure.kind != UNREACHABLE:
            break
        found.append(entry)
    return found


def wait_s(state: State) -> float:
    """Return how long the next round waits, in seconds: 0.0 unless the last one was unreachable."""
    count = len(unreachable_rounds(state))
    return _wait_s(count) if count else 0.0


def _wait_s(count: int) -> float:
    return float(min(FIRST_WAIT_S * 2 ** min(count - 1, 30), LONGEST_WAIT_S))


def give_up(state: State, observation: Observation, timing: Timing) -> State | None:
    """Close the attempt once the waits add up to the join time-out; None: try again."""
    rounds = unreachable_rounds(state)
    spent_s = sum(_wait_s(count) for count in range(1, len(rounds) + 1))
    if not rounds or spent_s < timing.join_timeout_s:
        return None
    last = rounds[0].failure
    assert last is not None
    why = f"{len(rounds)} rounds in a row could not begin (--join-timeout {timing.join_timeout_s:g})"
    return close(state, FAILED, f"{describe(last)}; {why}", EXIT_FAILED, observation.now_ns, NETWORK)


def involvement(state: State) -> Mapping[str, tuple[int, int]]:
    """Return for each involved node the number of its rounds, and in how many of these it was the master.

    Which end of a failed connection is cut is unknown: both count.
    """
    ends: Counter[str] = Counter()
    masters: Counter[str] = Counter()
    for entry in unreachable_rounds(state):
        assert entry.failure is not None
        ends.update({entry.failure.node, entry.nodes[0]})
        masters.update(entry.nodes[:1])
    return {node: (count, masters[node]) for node, count in ends.items()}


def reachable_first(state: State, ready: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Return the candidate nodes; after an unreachable round only as many as can take part.

    The least involved come first, then those of the last round, then Slurm's order. Those involved often are left out
    as far as the others suffice.
    """
    involved = involvement(state)
    if not involved:
        return list(ready)
    before = {participant.node for participant in state.participants}
    key = lambda record: (involved.get(record.node, (0, 0)), record.node not in before, record.position)  # noqa: E731
    often = [record for record in ready if involved.get(record.node, (0, 0))[0] >= PROVEN]
    size = max(state.min_nodes, len(ready) - len(often))
    return sorted(ready, key=key)[: min(size, state.max_nodes)]


def with_another_master(state: State, chosen: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Return the nodes of a round in the order of their ranks, with the least involved one as the master."""
    involved = involvement(state)
    if not involved or not chosen:
        return list(chosen)
    master = min(chosen, key=lambda record: involved.get(record.node, (0, 0)))
    return [master, *(record for record in chosen if record is not master)]

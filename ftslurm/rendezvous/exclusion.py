"""Which nodes to leave out of a round while others suffice (pure).

A node in the first failure's place twice is a "lemon": something is wrong with it that no check finds. That is a guess
from few facts, so such a node is the last choice and no outcast, unlike one whose checks failed. Lost nodes are not
counted: Slurm sees them too, and one that comes back has been started anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.rendezvous.closing import describe
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import Failure, State


def repeat_offenders(state: State, after: int) -> dict[str, str]:
    """Return the nodes that were in the first failure's place so often, with the reason in words.

    Only failures that the node may be to blame for count, over all attempts of the run that its history has. A failure
    that follows its rank to another node is the program's.

    Args:
        after: so many failures make a lemon; 0: nothing does.
    """
    if not after:
        return {}
    failures = [past.failure for past in state.history if past.failure is not None and past.failure.blame is not None]
    places: dict[int, set[str]] = {}
    by_node: dict[str, list[Failure]] = {}
    for failure in failures:
        places.setdefault(failure.rank, set()).add(failure.node)
        by_node.setdefault(failure.node, []).append(failure)
    return {
        node: f"first to fail in {len(own)} rounds, last: {describe(own[-1])}"
        for node, own in by_node.items()
        if len(own) >= after and all(places[failure.rank] == {node} for failure in own)
    }


def excluded_nodes(state: State, records: Mapping[str, NodeRecord], after: int) -> dict[str, str]:
    """Return the nodes that others are preferred to, with the reason: lemons, and those excluded before this run."""
    excluded = {record.node: record.excluded for record in records.values() if record.excluded}
    return {**excluded, **repeat_offenders(state, after)}


def preferred_nodes(ready: Sequence[NodeRecord], excluded_nodes: Mapping[str, str], least: int) -> list[NodeRecord]:
    """Return those of the ready nodes that should take part: the shunned ones only as far as `least` needs them."""
    good = [record for record in ready if record.node not in excluded_nodes]
    last = [record for record in ready if record.node in excluded_nodes]
    return good + last[: max(0, least - len(good))]

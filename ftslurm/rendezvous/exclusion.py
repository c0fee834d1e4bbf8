"""Nodes that a round leaves out while others suffice (pure).

A node where the first failure of two rounds occurred is excluded: it probably has a fault that no check finds. That is
a guess from few facts, so an excluded node is used as a last resort, unlike one whose checks failed. Lost nodes are not
counted: Slurm detects them too, and one that returns has been rebooted or restarted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.rendezvous.closing import describe
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import Failure, State


def repeat_offenders(state: State, after: int) -> dict[str, str]:
    """Return the nodes with at least `after` first failures, each with the reason as text.

    Only failures that the node may be to blame for count, over all attempts in the run's history. A failure that
    follows its rank to another node is attributed to the program.

    Args:
        after: number of failures that exclude a node; 0 disables exclusion.
    """
    if not after:
        return {}
    failures = [past.failure for past in state.history if past.failure is not None and past.failure.blame is not None]
    nodes_of_rank: dict[int, set[str]] = {}
    by_node: dict[str, list[Failure]] = {}
    for failure in failures:
        nodes_of_rank.setdefault(failure.rank, set()).add(failure.node)
        by_node.setdefault(failure.node, []).append(failure)
    return {
        node: f"first to fail in {len(own)} rounds, last: {describe(own[-1])}"
        for node, own in by_node.items()
        if len(own) >= after and all(nodes_of_rank[failure.rank] == {node} for failure in own)
    }


def excluded_nodes(state: State, records: Mapping[str, NodeRecord], after: int) -> dict[str, str]:
    """Return the excluded nodes with their reasons: repeat offenders, and those excluded before this run."""
    excluded = {record.node: record.excluded for record in records.values() if record.excluded}
    return {**excluded, **repeat_offenders(state, after)}


def preferred_nodes(ready: Sequence[NodeRecord], excluded_nodes: Mapping[str, str], least: int) -> list[NodeRecord]:
    """Return the ready nodes that should take part: excluded ones only as needed to reach `least`."""
    good = [record for record in ready if record.node not in excluded_nodes]
    last = [record for record in ready if record.node in excluded_nodes]
    return good + last[: max(0, least - len(good))]

"""Nodes that a round leaves out while others suffice (pure).

A node where the first failure of two rounds occurred is excluded: it probably has a fault that no check finds. That is
a guess from few facts, so an excluded node is used as a last resort, unlike one whose checks failed. Lost nodes are not
counted: Slurm detects them too, and one that returns has been rebooted or restarted.

`failed_repeatedly` is the one rule: the fold, the exclusion for later jobs, status and report call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.records.node import NodeRecord
from ftslurm.records.state import RUNNING, Failure, RoundHistory, State
from ftslurm.rendezvous.closing import describe

NAMED = 4
"""Number of nodes that a log line names."""


def repeat_offenders(places: Sequence[tuple[int, str]], after: int) -> set[str]:
    """Return the nodes on which at least `after` rounds failed first.

    Args:
        places: rank and node of the first failure of each round, over all attempts of the run in its history, if the
            node may be to blame for it. A failure that follows its rank to another node is the program's.
        after: number of failures that exclude a node; 0: none do.
    """
    nodes_of_rank: dict[int, set[str]] = {}
    ranks_of_node: dict[str, list[int]] = {}
    for rank, node in places:
        nodes_of_rank.setdefault(rank, set()).add(node)
        ranks_of_node.setdefault(node, []).append(rank)
    return {
        node
        for node, ranks in ranks_of_node.items()
        if 0 < after <= len(ranks) and all(nodes_of_rank[rank] == {node} for rank in ranks)
    }


def failed_repeatedly(history: Sequence[RoundHistory], after: int) -> dict[str, str]:
    """Return the repeat offenders of a run with reasons, from its history; `after` as for `repeat_offenders`."""
    failures = blamed_failures(history)
    by_node: dict[str, list[Failure]] = {}
    for failure in failures:
        by_node.setdefault(failure.node, []).append(failure)
    return {
        node: f"first to fail in {len(by_node[node])} rounds, last: {describe(by_node[node][-1])}"
        for node in sorted(repeat_offenders([(failure.rank, failure.node) for failure in failures], after))
    }


def blamed_failures(history: Sequence[RoundHistory]) -> list[Failure]:
    """Return the first failures that the node may be to blame for, oldest first."""
    return [past.failure for past in history if past.failure is not None and past.failure.blame is not None]


def excluded_nodes(state: State, records: Mapping[str, NodeRecord], after: int) -> dict[str, str]:
    """Return the excluded nodes with their reasons: repeat offenders, and those excluded before this run."""
    excluded = {record.node: record.excluded for record in records.values() if record.excluded}
    return {**excluded, **failed_repeatedly(state.history, after)}


def preferred_nodes(ready: Sequence[NodeRecord], excluded_nodes: Mapping[str, str], least: int) -> list[NodeRecord]:
    """Return the ready nodes that should take part: excluded ones only as needed to reach `least`."""
    good = [record for record in ready if record.node not in excluded_nodes]
    last = [record for record in ready if record.node in excluded_nodes]
    return good + last[: max(0, least - len(good))]


def last_resort_line(old: State, new: State, records: Mapping[str, NodeRecord], after: int) -> str | None:
    """Return the log line for a round, formed between `old` and `new`, in which excluded nodes take part, else None."""
    if new.phase != RUNNING or new.round == old.round:
        return None
    excluded = excluded_nodes(new, records, after)
    parts = [f"{p.node} ({excluded[p.node]})" for p in new.participants if p.node in excluded]
    if not parts:
        return None
    more = f" and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
    why = "not enough other nodes are ready, so excluded ones take part"
    return f"round {new.round}: {why}: {', '.join(parts[:NAMED])}{more}"

"""Findings of one run on all nodes: those that differ only in the node are merged, outliers first (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass, field
from ftslurm.health.verdict import Finding, NodeFinding, Verdict, worst
from ftslurm.records.health import FAIL, OK, SEVERITY

MEET = "meet"
"""Name in place of a check for a node that did not report; there is no such check."""


@dataclass(frozen=True)
class ClusterView:
    """One run of checks on one or many nodes.

    Attributes:
        expected: all nodes to check, in Slurm's order.
        verdicts: by node, of the nodes that reported.
        lost: nodes that did not report, with reasons.
        outliers: findings of the comparison between nodes.
        stuck: by node, processes of checks that hang in its kernel.
    """

    expected: tuple[str, ...]
    verdicts: Mapping[str, Sequence[Verdict]]
    lost: Mapping[str, str] = field(default_factory=dict)
    outliers: tuple[NodeFinding, ...] = ()
    stuck: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The worst of all."""
        return worst(one.finding.status for one in self.findings)

    @property
    def findings(self) -> list[NodeFinding]:
        """All findings: the worst first, among equals those of few nodes first: outliers precede common findings."""
        place = {node: index for index, node in enumerate(self.expected)}
        alike: dict[tuple[str, Finding], list[NodeFinding]] = {}
        for one in (*self._own(), *self.outliers):
            alike.setdefault((one.check, _nameless(one)), []).append(one)
        found = []
        for (check, nameless), ones in alike.items():
            nodes = {node for one in ones for node in one.nodes}
            in_order = tuple(sorted(nodes, key=lambda node: (place.get(node, len(place)), node)))
            found.append(NodeFinding(check, in_order, ones[0].finding if len(nodes) == 1 else nameless))
        order = list(dict.fromkeys(one.check for one in found))
        return sorted(
            found, key=lambda one: (-SEVERITY.index(one.finding.status), len(one.nodes), order.index(one.check))
        )

    def _own(self) -> list[NodeFinding]:
        found = [
            NodeFinding(MEET, (node,), Finding(FAIL, "", why, f"Check {node} by hand: {by_hand(node)}."))
            for node, why in self.lost.items()
        ]
        for node, verdicts in self.verdicts.items():
            found += [NodeFinding(one.check, (node,), finding) for one in verdicts for finding in one.findings]
        return found


def _nameless(one: NodeFinding) -> Finding:
    """Return a node's finding without the node's own name, so that those of several nodes can be merged."""
    if len(one.nodes) != 1:
        return one.finding
    name = re.compile(rf"(?<![\w.-]){re.escape(one.nodes[0])}(?![\w-])")
    subject, text, advice = (
        name.sub("NODE", part) for part in (one.finding.subject, one.finding.text, one.finding.advice)
    )
    return Finding(one.finding.status, subject, text, advice)


def by_hand(node: str) -> str:
    """Return the command to check one node from elsewhere."""
    return f"`srun -w {node} ftslurm health`"


@dataclass(frozen=True)
class Line:
    """Result of one check over all nodes.

    Attributes:
        status: the worst of the nodes.
        absent: its subject exists on none of them.
        summary: the most frequent summary.
        node: one node with it.
        count: number of nodes with it.
        others: a few nodes with other summaries.
        more: number of further ones.
    """

    check: str
    status: str
    absent: bool
    summary: str
    node: str
    count: int
    others: tuple[tuple[str, str], ...]
    more: int


def lines(view: ClusterView, shown: int = 2) -> list[Line]:
    """Return a line for each check: the worst first, absent ones last."""
    by_check: dict[str, dict[str, Verdict]] = {}
    for node, verdicts in view.verdicts.items():
        for one in verdicts:
            by_check.setdefault(one.check, {})[node] = one
    odd: dict[str, list[str]] = {}
    for other in view.outliers:
        odd.setdefault(other.check, []).append(other.finding.status)
    found = [_line(check, verdicts, odd.get(check, []), shown) for check, verdicts in by_check.items()]
    return sorted(found, key=lambda line: (-SEVERITY.index(line.status), line.absent))


def _line(check: str, verdicts: Mapping[str, Verdict], odd: Sequence[str], shown: int) -> Line:
    counts = Counter(verdict.summary for verdict in verdicts.values())
    # If all differ, as measured values do, the worst is shown.
    severity = {node: SEVERITY.index(verdict.status) for node, verdict in verdicts.items()}
    worst_first = sorted(verdicts, key=lambda node: (-counts[verdicts[node].summary], -severity[node]))
    most = verdicts[worst_first[0]].summary
    others = [(node, verdict.summary) for node, verdict in verdicts.items() if verdict.summary != most]
    # Nodes that differ and are worse come first.
    others.sort(key=lambda other: -severity[other[0]])
    return Line(
        check=check,
        status=worst([*(verdict.status for verdict in verdicts.values()), *odd]),
        absent=all(is_absent(verdict) for verdict in verdicts.values()),
        summary=most,
        node=worst_first[0],
        count=counts[most],
        others=tuple(others[:shown]),
        more=max(0, len(others) - shown),
    )


def is_absent(verdict: Verdict) -> bool:
    """Return whether the check's subject does not exist."""
    return verdict.status == OK and verdict.facts is None

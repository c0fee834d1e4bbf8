"""Findings of one run on all nodes: those that differ only in the node are merged, outliers first (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import asdict, dataclass, field
from ftslurm.health.verdict import FAIL, OK, SEVERITY, Finding, Json, Verdict, worst

MEET = "meet"
"""Name in place of a check for a node that did not report; there is no such check."""


@dataclass(frozen=True)
class NodeFinding:
    """A finding of one check, and its nodes."""

    check: str
    nodes: tuple[str, ...]
    finding: Finding


@dataclass(frozen=True)
class ClusterView:
    """One run of checks on one or many nodes.

    Attributes:
        expected: all nodes to check, in Slurm's order.
        verdicts: by node, of the nodes that reported.
        lost: nodes that did not report, with reasons.
        odd: findings of the comparison between nodes.
        stuck: by node, processes of checks that hang in its kernel.
    """

    expected: tuple[str, ...]
    verdicts: Mapping[str, Sequence[Verdict]]
    lost: Mapping[str, str] = field(default_factory=dict)
    odd: tuple[NodeFinding, ...] = ()
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
        for one in (*self._own(), *self.odd):
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
        name.sub("NODE", said) for said in (one.finding.subject, one.finding.text, one.finding.advice)
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
    for other in view.odd:
        odd.setdefault(other.check, []).append(other.finding.status)
    found = [_line(check, looks, odd.get(check, []), shown) for check, looks in by_check.items()]
    return sorted(found, key=lambda line: (-SEVERITY.index(line.status), line.absent))


def _line(check: str, looks: Mapping[str, Verdict], odd: Sequence[str], shown: int) -> Line:
    counts = Counter(look.summary for look in looks.values())
    # If all differ, as measured values do, the worst is shown.
    worst_first = sorted(looks, key=lambda node: (-counts[looks[node].summary], -SEVERITY.index(looks[node].status)))
    most = looks[worst_first[0]].summary
    others = [(node, look.summary) for node, look in looks.items() if look.summary != most]
    # Nodes that differ and are worse come first.
    others.sort(key=lambda other: -SEVERITY.index(looks[other[0]].status))
    return Line(
        check=check,
        status=worst([*(look.status for look in looks.values()), *odd]),
        absent=all(is_absent(look) for look in looks.values()),
        summary=most,
        node=worst_first[0],
        count=counts[most],
        others=tuple(others[:shown]),
        more=max(0, len(others) - shown),
    )


def is_absent(verdict: Verdict) -> bool:
    """Return whether the check's subject does not exist."""
    return verdict.status == OK and verdict.facts is None


def to_json(verdict: Verdict) -> Json:
    """Return a verdict, its facts too, as a JSON object."""
    return asdict(verdict)


def of_json(fields: Mapping[str, object]) -> Verdict:
    """Read it back, from a node whose ftslurm version may differ.

    Raises:
        ValueError: it is no verdict.
    """
    try:
        findings = tuple(_finding(finding) for finding in fields["findings"])  # type: ignore[attr-defined]
        status, facts = str(fields["status"]), fields.get("facts")
        if any(one not in SEVERITY for one in (status, *(finding.status for finding in findings))):
            raise ValueError(f"unknown status in {fields!r:.200}")
        took_s = float(str(fields["took_s"]))
        known = facts if isinstance(facts, dict) else None
        return Verdict(str(fields["check"]), status, str(fields["summary"]), findings, took_s, known)
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected a verdict ({type(error).__name__}: {error})") from None


def _finding(fields: Mapping[str, object]) -> Finding:
    status, subject, text, advice = (str(fields[name]) for name in ("status", "subject", "text", "advice"))
    return Finding(status, subject, text, advice)

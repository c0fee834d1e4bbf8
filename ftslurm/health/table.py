"""The results on one or many nodes as text and as JSON (pure)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ftslurm.dataclasses import asdict
from ftslurm.health.check import SETS, Check
from ftslurm.health.cluster_view import ClusterView, Line, lines
from ftslurm.health.verdict import NodeFinding, Verdict, describe, ordered, verdict_json
from ftslurm.records.health import FAIL, OK, SEVERITY
from ftslurm.text import clip, duration, names, plural, safe

SCHEMA, VERSION = "ftslurm/health-report", 1
ALIKE = 4
"""Findings shown per check and status; the rest is counted."""

_WIDTH = 8
_LONG = 200
_NAMES = 8


def render(view: ClusterView, took_s: float) -> str:
    """Return the text: the verdict, findings with advice, a line for each check."""
    text = _one(view, took_s) if len(view.expected) == 1 and not view.outliers else _many(view, took_s)
    return "\n".join(map(safe, text)) + "\n"


def _one(view: ClusterView, took_s: float) -> list[str]:
    """A single node: each check with its findings below."""
    node = view.expected[0]
    verdicts = view.verdicts.get(node, ())
    found = [f"ftslurm health: {node}: {_verdict(verdicts)} ({plural(len(verdicts), 'check')}, {duration(took_s)})"]
    known = {one.check: one for one in verdicts}
    present = [line for line in lines(view) if not line.absent]
    width = max((len(line.check) for line in present), default=0)
    for line in present:
        one = known[line.check]
        found.append(f"  {_label(line.status):<{_WIDTH}} {line.check:<{width}}  {clip(one.summary, _LONG)}")
        for finding in sorted(one.findings, key=lambda finding: -SEVERITY.index(finding.status)):
            if describe(finding) != one.summary:
                found.append(f"  {'':<{_WIDTH}} {_label(finding.status)}: {describe(finding)}")
            found += [f"  {'':<{_WIDTH}} -> {finding.advice}"] if finding.advice else []
    return found + _absent(lines(view)) + _stuck(view)


def _absent(found: Sequence[Line]) -> list[str]:
    """Checks without a subject here: a line for each reason, not for each check."""
    by_reason: dict[str, list[str]] = {}
    for line in found:
        if line.absent:
            by_reason.setdefault(line.summary, []).append(line.check)
    return [f"  {'-':<{_WIDTH}} {clip(reason, _LONG)}: {', '.join(checks)}" for reason, checks in by_reason.items()]


def _verdict(verdicts: Sequence[Verdict]) -> str:
    return counted(verdicts, SEVERITY) or "fine"


def counted(verdicts: Sequence[Verdict], statuses: Iterable[str]) -> str:
    """Count these statuses: `1 FAIL, 2 warn`; empty for none."""
    counts = Counter(one.status for one in verdicts if one.status != OK and one.status in statuses)
    return ", ".join(f"{counts[status]} {_label(status)}" for status in reversed(SEVERITY) if counts[status])


def _many(view: ClusterView, took_s: float) -> list[str]:
    """Many nodes: all findings, those of few nodes first, then a line for each check."""
    by_status: dict[str, list[str]] = {}
    worst_of = dict.fromkeys(view.expected, OK)
    for one in view.findings:
        for node in one.nodes:
            known = worst_of.get(node, OK)
            worst_of[node] = max(known, one.finding.status, key=SEVERITY.index)
    for node, status in worst_of.items():
        by_status.setdefault(status, []).append(node)
    parts = [f"{_label(s)} on {names(by_status[s], 5)}" for s in reversed(SEVERITY) if s != OK and s in by_status]
    fine = len(by_status.get(OK, ()))
    parts += [f"{fine} fine" if parts else "all fine"] if fine else []
    found = [f"ftslurm health: {len(view.expected)} nodes: {'; '.join(parts)} ({duration(took_s)})"]
    found += finding_lines(view.findings, len(view.expected))
    found += _checks([line for line in lines(view) if not line.absent], len(view.verdicts))
    return found + _absent(lines(view)) + _stuck(view)


def finding_lines(findings: Sequence[NodeFinding], count: int) -> list[str]:
    """Return the lines of the findings on `count` nodes, with their advice; equal kinds beyond `ALIKE` are counted."""
    found: list[str] = []
    shown: Counter[tuple[str, str]] = Counter()
    for one in findings:
        kind = (one.finding.status, one.check)
        shown[kind] += 1
        if shown[kind] > ALIKE:
            continue
        where = f"all {count} nodes: " if 1 < count == len(one.nodes) else f"{names(one.nodes, _NAMES)}: "
        text = f"{where if one.nodes else ''}{one.check}: {describe(one.finding)}"
        found.append(f"  {_label(one.finding.status):<{_WIDTH}} {text}")
        found += [f"  {'':<{_WIDTH}} -> {one.finding.advice}"] if one.finding.advice else []
    for (status, check), number in shown.items():
        if number > ALIKE:
            more = f"and {number - ALIKE} more of {check} on other nodes (--json has them all)"
            found.append(f"  {_label(status):<{_WIDTH}} {more}")
    return found


def _checks(found: Sequence[Line], nodes: int) -> list[str]:
    width = max((len(line.check) for line in found), default=0)
    return [f"  {_label(line.status):<{_WIDTH}} {line.check:<{width}}  {_summary(line, nodes)}" for line in found]


def _summary(line: Line, nodes: int) -> str:
    most = clip(line.summary, _LONG)
    if not line.others:
        return most if line.count == nodes else f"{most} ({line.count} of {nodes} nodes checked)"
    if line.status == OK:
        # Values that differ but are ok everywhere (load, free bytes) are shown of one node; --json has all.
        return f"{line.node}: {most}; the others are fine too"
    others = "; ".join(f"{node}: {clip(summary, _LONG // 2)}" for node, summary in line.others)
    more = f" and {plural(line.more, 'node')} more" if line.more else ""
    nodes_text = line.node if line.count == 1 else plural(line.count, "node")
    return f"{nodes_text}: {most}; {others}{more}"


def _stuck(view: ClusterView) -> list[str]:
    return [
        f"  {'':<{_WIDTH}} {node}: {plural(len(pids), 'process')} of checks hang in its kernel and cannot be killed: "
        f"pid {names([str(pid) for pid in pids], 5)}"
        for node, pids in view.stuck.items()
        if pids
    ]


def _label(status: str) -> str:
    return status.upper() if status == FAIL else status


def brief(verdicts: Sequence[Verdict], limit: int = _LONG) -> str:
    """Return a node's worst finding in one line, for a drain's reason or a log; empty: no findings."""
    for one in ordered(verdicts):
        for finding in sorted(one.findings, key=lambda finding: -SEVERITY.index(finding.status)):
            return clip(safe(f"{one.check}: {describe(finding)}"), limit)
    return ""


def listing(checks: Iterable[Check]) -> str:
    """Return the list of checks: name, sets, description."""
    rows = [(check.name, ", ".join(name for name in SETS if name in check.sets), check.about) for check in checks]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return "".join(f"{name:<{widths[0]}}  {sets:<{widths[1]}}  {about}\n" for name, sets, about in rows)


def to_document(view: ClusterView, took_s: float) -> str:
    """Return all results as one JSON object."""
    nodes: Mapping[str, object] = {
        node: {"verdicts": [verdict_json(one) for one in verdicts], "stuck": list(view.stuck.get(node, ()))}
        for node, verdicts in view.verdicts.items()
    }
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "status": view.status,
        "seconds": round(took_s, 3),
        "expected": list(view.expected),
        "findings": findings_json(view.findings),
        "lost": dict(view.lost),
        "nodes": nodes,
    }
    return json.dumps(document, indent=2) + "\n"


def findings_json(findings: Sequence[NodeFinding]) -> list[dict[str, object]]:
    """Return the findings as JSON objects."""
    return [{"check": one.check, "nodes": list(one.nodes), **asdict(one.finding)} for one in findings]

"""The findings of checks on the nodes, and their relation to a failure (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.catalogue import GPU, NETWORK
from ftslurm.failures.causes import Evidence, classify
from ftslurm.pattern import pattern
from ftslurm.records.health import FAIL, SEVERITY, Health, HealthFinding
from ftslurm.rendezvous.exclusion import failed_repeatedly
from ftslurm.report.facts import Clocks, NodeRecordFacts, RoundFiles, Snapshot
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import FirstFailure
from ftslurm.report.wording import brief
from ftslurm.text import duration, plural, ranges, safe

FINDINGS_KEPT, NODES_KEPT, LEFT_OUT_KEPT = 256, 8, 256
AFTERWARDS_S = 300.0
"""Checks after a failure may find its cause; findings later than this are unrelated."""
PROOFS_KEPT = 4
OF_THE_FAILURE = "failure"
"""A finding that the agent derived from the failure itself (`ftslurm.agent.health_gate`): no new evidence."""

_GPU_CHECKS, _NIC_CHECKS = ("gpu-", "amd-"), ("nic-",)
_GPU_NUMBER = pattern(r"GPU (\d{1,3})(?![\d:])")

Dict = dict[str, Any]
Attempted: TypeAlias = "tuple[str | None, Sequence[tuple[int, Sequence[str]]]]"
"""An attempt's name, None before the first round, and its rounds, each with its number and nodes."""


@dataclass(frozen=True)
class NodeFinding:
    """A finding on a node; ``round``: the newest one whose file contains it, None if only the node record does."""

    node: str
    finding: HealthFinding
    round: int | None


def has_sick_device(snapshot: Snapshot, number: int) -> bool:
    """Return whether a check of a GPU or a network device failed in a round: ranks elsewhere may have waited for it."""
    found = (each.finding for each in findings(snapshot, number))
    return any(each.status == FAIL and each.check.startswith((*_GPU_CHECKS, *_NIC_CHECKS)) for each in found)


def findings(snapshot: Snapshot, number: int | None = None) -> list[NodeFinding]:
    """Return the findings on the nodes, of a round or of all, each once: its first time and newest text.

    Node records count for the newest round, because they contain the findings after a failure.
    """
    newest = max((files.number for files in snapshot.rounds), default=None)
    reports: list[tuple[str, Health, int | None]] = []
    for files in snapshot.rounds:
        if number in (None, files.number):
            reports += [(each.node, each.health, files.number) for each in files.nodes if each.health is not None]
    if number in (None, newest):
        reports += [(record.node, record.health, None) for record in snapshot.nodes if record.health is not None]
    kept: dict[tuple[str, str, str], NodeFinding] = {}
    for node, health, where in reports:
        for finding in health.findings:
            if finding.check == OF_THE_FAILURE:
                continue
            key = node, finding.check, finding.subject
            known = kept.get(key)
            if known is not None:
                finding = replace(finding, since_ns=min(finding.since_ns, known.finding.since_ns))  # noqa: PLW2901
                where = known.round if where is None else where  # noqa: PLW2901
            kept[key] = NodeFinding(node, finding, where)
    return list(kept.values())


def explained(snapshot: Snapshot, files: RoundFiles, worker: FailedWorker) -> FailedWorker:
    """Return the first failure with its node's findings as evidence; where one explains it, with that as its cause.

    A failed check explains a crash, a CUDA error on that GPU, or a failure of communication; never an exception of the
    script itself.
    """
    failed = _failed_checks(snapshot, files.number, worker.node, worker.time_ns)
    if not failed:
        return worker
    alone = sum(len(node.workers) for node in files.nodes if node.node == worker.node) == 1
    reason = next((each for each in failed if _explains(each, worker, alone=alone)), None)
    lines = (*(_proof(each, worker.time_ns) for each in failed[:PROOFS_KEPT]), *worker.lines)
    if reason is None:
        return replace(worker, lines=lines)
    row = classify(Evidence("health", message=worker.what, health=reason.line()), snapshot.causes)
    return replace(worker, cause=row, what=f"{reason.line()} ({brief(worker.what)})", lines=lines)


def with_proofs(snapshot: Snapshot, failure: FirstFailure) -> FirstFailure:
    """Return the failure of a hung or lost node with its failed checks as evidence."""
    node, time_ns = failure.node, failure.time_ns
    failed = _failed_checks(snapshot, failure.round, node, time_ns) if node is not None else []
    # The time of a node's loss is by the coordinator's clock.
    at_ns = time_ns if failure.rank is not None else None
    return replace(failure, lines=(*(_proof(each, at_ns) for each in failed[:PROOFS_KEPT]), *failure.lines))


def _failed_checks(snapshot: Snapshot, number: int, node: str, time_ns: int | None) -> list[HealthFinding]:
    own = (each.finding for each in findings(snapshot, number) if each.node == node)
    failed = [each for each in own if each.status == FAIL]
    return [each for each in failed if time_ns is None or each.since_ns <= time_ns + AFTERWARDS_S * 1e9]


def _explains(finding: HealthFinding, worker: FailedWorker, *, alone: bool) -> bool:
    symptom_of = worker.cause.symptom_of
    if symptom_of == NETWORK:
        return _of_gpu(finding) or finding.check.startswith(_NIC_CHECKS)
    if symptom_of != GPU or not _of_gpu(finding):
        return False
    number = _GPU_NUMBER.match(finding.subject)
    # Another rank's GPU is no reason; the only rank of a node may use them all.
    return alone or number is None or worker.local_rank is None or int(number[1]) == worker.local_rank


def _of_gpu(finding: HealthFinding) -> bool:
    # Findings of the kernel's log are about GPUs too.
    return finding.check.startswith(_GPU_CHECKS) or finding.subject.startswith("GPU ")


def _proof(finding: HealthFinding, time_ns: int | None) -> str:
    """Describe a finding and its first time relative to a time of the same node, hence of the same clock."""
    text = f"health: {safe(finding.line())}"
    if time_ns is None:
        return f"{text} ({finding.check})"
    seconds = (time_ns - finding.since_ns) / 1e9
    when = f"first seen {duration(abs(seconds))} {'before' if seconds >= 0 else 'after'} this failure"
    return f"{text} ({finding.check}, {when})"


def health_report(snapshot: Snapshot, clocks: Clocks, newest: Attempted, failure: FirstFailure | None) -> Dict:
    """Return the report's ``health``; see `docs/report-schema.md` for the keys.

    Args:
        snapshot: the run directory.
        clocks: the nodes' clocks.
        newest: the newest attempt's rounds.
        failure: the first failure that the findings are related to.
    """
    involved = set(failure.nodes) if failure is not None else set()
    groups: dict[tuple[object, ...], list[NodeFinding]] = {}
    for found in findings(snapshot):
        finding = found.finding
        # The same finding on many nodes is one line; those of the node that failed first are listed separately.
        own = found.node if found.node in involved else None
        key = own, finding.check, finding.status, finding.subject, finding.text
        groups.setdefault(key, []).append(found)
    entries = [_group(clocks, group, failure, of_failure=key[0] is not None) for key, group in groups.items()]
    entries.sort(key=lambda each: (not each["of_failure"], -SEVERITY.index(each["status"]), each["since_ns"]))
    left_out = _left_out(snapshot, newest)
    return {
        "nodes": sum(record.health is not None for record in snapshot.nodes),
        "findings": entries[:FINDINGS_KEPT],
        "more": max(0, len(entries) - FINDINGS_KEPT),
        "left_out": left_out[:LEFT_OUT_KEPT],
        "more_left_out": max(0, len(left_out) - LEFT_OUT_KEPT),
    }


def _group(clocks: Clocks, group: Sequence[NodeFinding], failure: FirstFailure | None, *, of_failure: bool) -> Dict:
    first = min(group, key=lambda found: found.finding.since_ns)
    finding = first.finding
    known = [found.round for found in group if found.round is not None]
    return {
        "node": first.node,
        "nodes": [found.node for found in group[:NODES_KEPT]],
        "node_count": len(group),
        "check": finding.check,
        "status": finding.status,
        "subject": finding.subject,
        "text": finding.text,
        "advice": finding.advice,
        "since_ns": finding.since_ns,
        "round": max(known, default=None),
        "of_failure": of_failure,
        "relation": _relation(clocks, first, failure) if failure is not None else None,
    }


def _relation(clocks: Clocks, found: NodeFinding, failure: FirstFailure) -> Dict | None:
    """Order a finding relative to a failure, as far as the two nodes' clocks allow."""
    if failure.time_ns is None or failure.node is None:
        return None
    number, since_ns = failure.round, found.finding.since_ns
    doubt = clocks.between(number, (found.node, since_ns), (failure.node, failure.time_ns))
    before_ns = clocks.comparable_ns(number, failure.node, failure.time_ns)
    before_ns -= clocks.comparable_ns(number, found.node, since_ns)
    if abs(before_ns) <= doubt.ns:
        text = f"at about the same time as {_event(failure)}"
    else:
        text = f"{duration(abs(before_ns) / 1e9)} {'before' if before_ns > 0 else 'after'} {_event(failure)}"
    return {"before_s": before_ns / 1e9, "uncertainty_s": doubt.ns / 1e9, "text": text}


def _event(failure: FirstFailure) -> str:
    if failure.rank is None:
        return f"{safe(failure.node or '?')} was lost"
    return f"rank {failure.rank} {'hung' if failure.hang is not None else 'failed'}"


def _left_out(snapshot: Snapshot, newest: Attempted) -> list[Dict]:
    """Return the nodes that took no part in rounds because they were unhealthy or excluded, with reasons."""
    name, rounds = newest
    records = [record for record in snapshot.nodes if name is None or record.attempt == name]
    lost = {each.node for each in (snapshot.state.lost if snapshot.state else ())}
    entries = []
    after = snapshot.attempt.exclude_after if snapshot.attempt is not None else 0
    repeatedly = failed_repeatedly(snapshot.state.history, after) if snapshot.state is not None else {}
    records = [
        record
        for record in records
        if record.unhealthy is not None or record.excluded is not None or record.node in repeatedly
    ]
    for record in sorted(records, key=lambda each: each.node):
        part = [number for number, nodes in rounds if record.node in nodes]
        without = [number for number, nodes in rounds if record.node not in nodes]
        later = [number for number in without if number > max(part, default=0)]
        if record.unhealthy is not None:
            entries.append(_left_out_entry(record, "unhealthy", later, record.unhealthy))
        elif record.excluded is not None and without:
            entries.append(_left_out_entry(record, "excluded", without, record.excluded))
        elif record.node in repeatedly and later and part and record.node not in lost and record.reason is None:
            entries.append(_left_out_entry(record, "excluded-in-run", later, repeatedly[record.node]))
    return entries


def _left_out_entry(record: NodeRecordFacts, kind: str, numbers: Sequence[int], why: str) -> Dict:
    which = f"round{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
    how = f"was left out of {which}" if numbers else "takes no part"
    origin = {"excluded": "excluded before: ", "excluded-in-run": "excluded: "}.get(kind, "")
    text = f"{safe(record.node)} {how}: {origin}{safe(why)}"
    return {"node": record.node, "kind": kind, "rounds": list(numbers), "why": why, "text": text}


def refused(snapshot: Snapshot, number: int) -> FirstFailure | None:
    """Describe as a failure without a rank that too few nodes were healthy for a round; None: another reason.

    Args:
        snapshot: the run directory.
        number: the last round; 0: there was none.
    """
    closed = snapshot.state.closed if snapshot.state else None
    unhealthy = sorted(
        (record for record in snapshot.nodes if record.unhealthy is not None), key=lambda record: record.node
    )
    if closed is None or closed.outcome != "failed" or not unhealthy or " unhealthy: " not in closed.reason:
        return None
    records = [f"{record.node}: {record.unhealthy}" for record in unhealthy]
    more = f" (and {plural(len(unhealthy) - 1, 'more node')})" if len(unhealthy) > 1 else ""
    evidence = Evidence(kind="health-check", message=f"{unhealthy[0].unhealthy}{more}")
    return FirstFailure(
        round=number,
        kind="health-check",
        cause=classify(evidence, snapshot.causes),
        what=f"was refused by its health check: {evidence.message}",
        signature="health-check",
        node=unhealthy[0].node,
        nodes=tuple(record.node for record in unhealthy[:NODES_KEPT]),
        time_ns=closed.time_ns,
        evidence=("nodes", "state"),
        lines=tuple(f"health: {safe(each)}" for each in records[:NODES_KEPT]),
    )

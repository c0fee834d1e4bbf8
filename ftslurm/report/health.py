"""What checks found of the nodes' health, and what it has to do with a failure (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.causes import Evidence, classify
from ftslurm.health.node_health import Health, HealthFinding
from ftslurm.health.verdict import FAIL, SEVERITY
from ftslurm.report.evidence import FAILURE_KEYS
from ftslurm.report.facts import Failure, NodeRecordFacts, RoundFiles, Snapshot
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.wording import brief, count, duration, ranges, safe

FINDINGS_KEPT, NODES_KEPT, LEFT_OUT_KEPT = 256, 8, 256
LEMON_FAILURES = 2
AFTERWARDS_S = 300.0
"""A look after a failure finds what may have caused it; what is found later than this is another story."""
PROOFS_KEPT = 4
OF_THE_FAILURE = "failure"
"""A finding that the agent made of the failure itself (`ftslurm.agent.health_gate`): it proves nothing new."""

_GPU, _NIC = ("gpu-", "amd-"), ("nic-",)
_GPU_NUMBER = re.compile(r"GPU (\d{1,3})(?![\d:])")
_ON_ONE_GPU = (
    "cuda-access", "cuda-launch", "cuda-error", "gpu-missing", "gpu-busy", "segfault", "bus-error", "abort",
    "illegal-instruction", "signal",
)  # fmt: skip
"""Causes that only name what broken hardware does to a process; a failure that says more keeps its own cause."""
_BETWEEN_NODES = ("nccl", "nccl-timeout", "nccl-abort", "peer-reset", "collective-timeout")

Dict = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """A finding on a node; ``round``: the newest one whose file has it, None if only the node's own word does."""

    node: str
    finding: HealthFinding
    round: int | None


def findings(snapshot: Snapshot, number: int | None = None) -> list[Found]:
    """Return what was found on the nodes, of a round or of all, each thing once: its first time and newest words.

    Nodes' own words count for the newest round, for what is found after a failure stands there.
    """
    newest = max((files.number for files in snapshot.rounds), default=None)
    told: list[tuple[str, Health, int | None]] = []
    for files in snapshot.rounds:
        if number in (None, files.number):
            told += [(each.node, each.health, files.number) for each in files.nodes if each.health is not None]
    if number in (None, newest):
        told += [(record.node, record.health, None) for record in snapshot.nodes if record.health is not None]
    kept: dict[tuple[str, str, str], Found] = {}
    for node, health, where in told:
        for finding in health.findings:
            if finding.check == OF_THE_FAILURE:
                continue
            key = node, finding.check, finding.subject
            known = kept.get(key)
            if known is not None:
                finding = replace(finding, since_ns=min(finding.since_ns, known.finding.since_ns))  # noqa: PLW2901
                where = known.round if where is None else where  # noqa: PLW2901
            kept[key] = Found(node, finding, where)
    return list(kept.values())


def explained(snapshot: Snapshot, files: RoundFiles, suspect: FailedWorker) -> FailedWorker:
    """Return the first failure with its node's findings as proof; where one explains it, with that as its cause.

    A check that failed explains a crash, a CUDA error on that GPU, or a failure of communication; no exception of the
    script's own.
    """
    bad = _failed_checks(snapshot, files.number, suspect.node, suspect.time_ns)
    if not bad:
        return suspect
    alone = sum(len(node.workers) for node in files.nodes if node.node == suspect.node) == 1
    reason = next((each for each in bad if _explains(each, suspect, alone=alone)), None)
    lines = (*(_proof(each, suspect.time_ns) for each in bad[:PROOFS_KEPT]), *suspect.lines)
    if reason is None:
        return replace(suspect, lines=lines)
    row = classify(Evidence("health", message=suspect.what, health=reason.line()), snapshot.causes)
    return replace(suspect, cause=row, what=f"{reason.line()} ({brief(suspect.what)})", lines=lines)


def proofs(snapshot: Snapshot, number: int, failure: Dict) -> list[str]:
    """Return what checks that failed on a hung or lost node have to do with that, in words."""
    node, time_ns = failure["node"], failure["time_ns"]
    bad = _failed_checks(snapshot, number, node, time_ns) if node is not None else []
    # When a node was lost is the coordinator's word, by its clock.
    at_ns = time_ns if failure["rank"] is not None else None
    return [_proof(each, at_ns) for each in bad[:PROOFS_KEPT]]


def _failed_checks(snapshot: Snapshot, number: int, node: str, time_ns: int | None) -> list[HealthFinding]:
    own = (each.finding for each in findings(snapshot, number) if each.node == node)
    bad = [each for each in own if each.status == FAIL]
    return [each for each in bad if time_ns is None or each.since_ns <= time_ns + AFTERWARDS_S * 1e9]


def _explains(finding: HealthFinding, suspect: FailedWorker, *, alone: bool) -> bool:
    cause = suspect.cause.name
    if cause in _BETWEEN_NODES:
        return _of_gpu(finding) or finding.check.startswith(_NIC)
    if cause not in _ON_ONE_GPU or not _of_gpu(finding):
        return False
    number = _GPU_NUMBER.match(finding.subject)
    # Another rank's GPU is no reason; a rank that has the node to itself may use them all.
    return alone or number is None or suspect.local_rank is None or int(number[1]) == suspect.local_rank


def _of_gpu(finding: HealthFinding) -> bool:
    # The kernel's log, too, tells of GPUs.
    return finding.check.startswith(_GPU) or finding.subject.startswith("GPU ")


def _proof(finding: HealthFinding, time_ns: int | None) -> str:
    """Say what was found, and when it was seen first, against a moment on the same node, whose clock is the same."""
    said = f"health: {safe(finding.line())}"
    if time_ns is None:
        return f"{said} ({finding.check})"
    seconds = (time_ns - finding.since_ns) / 1e9
    when = f"first seen {duration(abs(seconds))} {'before' if seconds >= 0 else 'after'} this failure"
    return f"{said} ({finding.check}, {when})"


def health_report(snapshot: Snapshot, rounds: Sequence[Dict], focus: int | None) -> Dict:
    """Return the report's ``health``; see `ftslurm.report.analysis` for the keys.

    Args:
        snapshot: what is known.
        rounds: as in the report.
        focus: the round whose first failure the findings are told against.
    """
    entry = next((each for each in rounds if each["round"] == focus), None)
    failure = entry["first_failure"] if entry is not None else None
    involved = set(failure["nodes"] or ()) if failure is not None else set()
    groups: dict[tuple[object, ...], list[Found]] = {}
    for found in findings(snapshot):
        finding = found.finding
        # What many nodes have alike is one line; of the node that failed first all is told by itself.
        own = found.node if found.node in involved else None
        key = own, finding.check, finding.status, finding.subject, finding.text
        groups.setdefault(key, []).append(found)
    told = [_group(snapshot, focus, group, failure, of_failure=key[0] is not None) for key, group in groups.items()]
    told.sort(key=lambda each: (not each["of_failure"], -SEVERITY.index(each["status"]), each["since_ns"]))
    left_out = _left_out(snapshot, rounds)
    return {
        "nodes": sum(record.health is not None for record in snapshot.nodes),
        "findings": told[:FINDINGS_KEPT],
        "more": max(0, len(told) - FINDINGS_KEPT),
        "left_out": left_out[:LEFT_OUT_KEPT],
        "more_left_out": max(0, len(left_out) - LEFT_OUT_KEPT),
    }


def _group(
    snapshot: Snapshot, number: int | None, group: Sequence[Found], failure: Dict | None, *, of_failure: bool
) -> Dict:
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
        "relation": _relation(snapshot, number, first, failure) if failure is not None and number is not None else None,
    }


def _relation(snapshot: Snapshot, number: int, found: Found, failure: Dict) -> Dict | None:
    """Put a finding in order with a failure, as far as the two nodes' clocks tell."""
    if failure["time_ns"] is None or failure["node"] is None:
        return None
    clocks, since_ns = snapshot.clocks, found.finding.since_ns
    doubt = clocks.between(number, (found.node, since_ns), (failure["node"], failure["time_ns"]))
    before_ns = clocks.comparable_ns(number, failure["node"], failure["time_ns"])
    before_ns -= clocks.comparable_ns(number, found.node, since_ns)
    if abs(before_ns) <= doubt.ns:
        records = f"at about the same time as {_event(failure)}"
    else:
        records = f"{duration(abs(before_ns) / 1e9)} {'before' if before_ns > 0 else 'after'} {_event(failure)}"
    return {"before_s": before_ns / 1e9, "uncertainty_s": doubt.ns / 1e9, "words": records}


def _event(failure: Dict) -> str:
    if failure["rank"] is None:
        return f"{safe(failure['node'])} was lost"
    return f"rank {failure['rank']} {'hung' if failure['hang'] is not None else 'failed'}"


def _left_out(snapshot: Snapshot, rounds: Sequence[Dict]) -> list[Dict]:
    """Return the nodes that took no part in rounds for their health, or because they were excluded, and why."""
    newest = rounds[-1]["attempt"] if rounds else None
    records = [record for record in snapshot.nodes if newest is None or record.attempt == newest]
    ours = [(each["round"], set(each["nodes"])) for each in rounds if each["attempt"] == newest]
    lost = {each.node for each in (snapshot.state.lost if snapshot.state else ())}
    told = []
    again = _failed_again(snapshot)
    records = [
        record
        for record in records
        if record.unhealthy is not None or record.excluded is not None or record.node in again
    ]
    for record in sorted(records, key=lambda each: each.node):
        part = [number for number, nodes in ours if record.node in nodes]
        without = [number for number, nodes in ours if record.node not in nodes]
        later = [number for number in without if number > max(part, default=0)]
        if record.unhealthy is not None:
            told.append(_out(record, "unhealthy", later, record.unhealthy))
        elif record.excluded is not None and without:
            told.append(_out(record, "excluded", without, record.excluded))
        elif record.node in again and later and part and record.node not in lost and record.reason is None:
            told.append(_out(record, "excluded-in-run", later, again[record.node]))
    return told


def _out(record: NodeRecordFacts, kind: str, numbers: Sequence[int], why: str) -> Dict:
    which = f"round{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
    how = f"was left out of {which}" if numbers else "takes no part"
    origin = {"excluded": "excluded before: ", "excluded-in-run": "excluded: "}.get(kind, "")
    text = f"{safe(record.node)} {how}: {origin}{safe(why)}"
    return {"node": record.node, "kind": kind, "rounds": list(numbers), "why": why, "text": text}


def _failed_again(snapshot: Snapshot) -> dict[str, str]:
    """Return the nodes that failed first again and again, in words; as `ftslurm.rendezvous.exclusion` counts."""
    by_node: dict[str, list[Failure]] = {}
    for entry in snapshot.state.history if snapshot.state else ():
        if entry.failure is not None and entry.failure.blame:
            by_node.setdefault(entry.failure.node, []).append(entry.failure)
    return {
        node: f"first to fail in {count(len(own), 'round')}, last: rank {own[-1].rank}: {brief(own[-1].message)}"
        for node, own in by_node.items()
        if len(own) >= LEMON_FAILURES
    }


def refused(snapshot: Snapshot, rounds: Sequence[Dict]) -> Dict | None:
    """Describe as a cause that too few nodes were fit for a round; the same keys as for a worker, but of no rank.

    None if that was not it.
    """
    closed = snapshot.state.closed if snapshot.state else None
    unhealthy = sorted(
        (record for record in snapshot.nodes if record.unhealthy is not None), key=lambda record: record.node
    )
    if closed is None or closed.outcome != "failed" or not unhealthy or " unhealthy: " not in closed.reason:
        return None
    records = [f"{record.node}: {record.unhealthy}" for record in unhealthy]
    more = f" (and {count(len(unhealthy) - 1, 'more node')})" if len(unhealthy) > 1 else ""
    evidence = Evidence(kind="health-check", message=f"{unhealthy[0].unhealthy}{more}")
    cause = classify(evidence, snapshot.causes)
    failure: Dict = dict.fromkeys(FAILURE_KEYS)
    return failure | {
        "round": rounds[-1]["round"] if rounds else 0,
        "node": unhealthy[0].node,
        "nodes": [record.node for record in unhealthy[:NODES_KEPT]],
        "time_ns": closed.time_ns,
        "kind": "health-check",
        "core_dumped": False,
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": cause.advice,
        "restart": cause.restart,
        "what": f"was refused by its health check: {evidence.message}",
        "signature": "health-check",
        "same_as_rounds": [],
        "argv": [],
        "evidence": ["nodes", "state"],
        "evidence_lines": [f"health: {safe(each)}" for each in records[:NODES_KEPT]],
        "uncertainty_s": None,
        "clock": None,
    }


__all__ = ["Found", "explained", "findings", "health_report", "proofs", "refused"]

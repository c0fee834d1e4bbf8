"""Lost nodes of a round: which, whether they were the first failure, and their description (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftslurm.dataclasses import replace
from ftslurm.failures.causes import PRIMARY, Evidence, classify, describe
from ftslurm.failures.retryability import unanswered
from ftslurm.report.evidence import FAILURE_KEYS
from ftslurm.report.facts import Failure, History, LostNode, NodeRecordFacts, RoundFiles, Snapshot
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.wording import ranges

# The world size is a number in a file: a hostile one must not make the report count to 2**60.
WORLD_LIMIT = 1_000_000
# Prefix of the guardian's death notice in the node record, see `ftslurm.agent.guardian`.
AGENT_GONE = "its agent "
AGENT_KILLED = "its agent was killed"
NOTICE_NS = 2 * 10**9
"""Connections to the ranks of a killed agent break at once; on a busy node its guardian notices it later."""
AGENT_DEFECT = "its agent ended by a defect of ftslurm"


def lost_first(
    snapshot: Snapshot, files: RoundFiles, entry: History | None, found: Sequence[FailedWorker]
) -> list[LostNode] | None:
    """Return the nodes whose loss was the round's first failure; None if there was another one.

    Empty: a node was lost, but no record shows which.
    """
    state = snapshot.state
    lost = [x for x in (state.lost if state else ()) if x.round == files.number]
    if lost or (entry is not None and entry.outcome == "node-lost"):
        lost = lost or _without_end(files, entry)
        return None if _before(found, lost) else lost
    # When an agent is killed, its peers' connections break long before its heartbeat time-out. Then the
    # state names a rank that only lost its peer, and the missing end in a node's file is the evidence.
    records = _last_records(snapshot, files)
    silent = [x for x in _without_end(files, entry) if not _moved_on(records.get(x.node), files.number)]
    if silent and found and _peer_lost(found[0]):
        return silent
    # A failure after a guardian's death notice may be a consequence of the agent's end, too.
    reported = [
        replace(x, time_ns=record.time_ns) for x in silent if (record := records.get(x.node)) and _death_notice(record)
    ]
    return reported if reported and found and not _before(found, reported) else None


def _last_records(snapshot: Snapshot, files: RoundFiles) -> dict[str, NodeRecordFacts]:
    """Return by node the last record of the agent that took part in the round, if any."""
    took_part = {node.node: node for node in files.nodes}
    records = {}
    for record in snapshot.nodes:
        node = took_part.get(record.node)
        if (
            node is None
            or node.attempt != record.attempt
            or None in (node.incarnation, record.incarnation)
            or node.incarnation == record.incarnation
        ):
            records[record.node] = record
        elif record.predecessor is not None and record.predecessor.incarnation == node.incarnation:
            end = record.predecessor
            records[record.node] = record._replace(
                status="left", reason=end.reason, time_ns=end.time_ns, round=files.number
            )
    return records


def silent_nodes(snapshot: Snapshot, files: RoundFiles, entry: History | None, hang: Failure) -> list[LostNode]:
    """Return the nodes that fell silent before a rank hung: it waited for their ranks, whatever the state records.

    They sent no heartbeat in the second half of that rank's time without progress, nor recorded an end.
    """
    if hang.time_ns is None or hang.since_ns is None:
        return []
    records = _last_records(snapshot, files)
    found = []
    for lost in _without_end(files, entry):
        record = records.get(lost.node)
        time_ns = record.time_ns if record is not None and not _moved_on(record, files.number) else None
        if time_ns is not None and 2 * time_ns < hang.since_ns + hang.time_ns:
            found.append(replace(lost, time_ns=time_ns))
    return found


def lost_failure(
    snapshot: Snapshot, files: RoundFiles, entry: History | None, lost: Sequence[LostNode], step: int | None
) -> dict[str, Any]:
    """Describe lost nodes as a first failure; the same keys as for a worker."""
    names = [x.node for x in lost]
    what = _what(snapshot, files, entry, lost)
    killed = len(lost) == 1 and AGENT_KILLED in what
    kind = "agent-lost" if killed else "agent-defect" if AGENT_DEFECT in what else "node-lost"
    evidence = Evidence(kind=kind, message=what)
    cause = classify(evidence)
    failure: dict[str, Any] = dict.fromkeys(FAILURE_KEYS)
    return failure | {
        "round": files.number,
        "node": names[0] if names else None,
        "nodes": names,
        "time_ns": min((x.time_ns for x in lost if x.time_ns is not None), default=None),
        "kind": "node-lost",
        "core_dumped": False,
        "step": step,
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": f"{cause.advice}{_spare(snapshot)}",
        "what": describe(evidence, cause),
        "signature": "node-lost|" + ",".join(names[:8]),
        "same_as_rounds": [],
        "ranks": ranges(_ranks_of(snapshot, files, set(names))),
        "argv": [],
        "evidence": ["state"],
        "evidence_lines": [],
        "restart": cause.restart,
    }


def _spare(snapshot: Snapshot) -> str:
    """Advise a spare where the job ended for lack of a node."""
    state = snapshot.state
    closed = state.closed if state is not None else None
    if (
        state is None
        or closed is None
        or closed.outcome != "failed"
        or f"at least {state.min_nodes} needed" not in closed.reason
    ):
        return ""
    return f" A spare would have replaced it: request one node more from Slurm and set --nnodes {state.min_nodes}."


def _before(found: Sequence[FailedWorker], lost: Sequence[LostNode]) -> bool:
    """Whether a worker's primary failure precedes the silence of the lost nodes."""
    lost_names = {x.node for x in lost}
    last_records = [x.time_ns - int((x.silent_s or 0) * 1e9) for x in lost if x.time_ns is not None]
    for worker in found:
        if worker.cause.role != PRIMARY:
            continue
        # A lost node's agent wrote its worker's record before its own end.
        if worker.node in lost_names or not last_records:
            return True
        if _peer_lost(worker) and worker.time_ns is not None and worker.time_ns > min(last_records) - NOTICE_NS:
            continue
        if worker.time_ns is not None and worker.time_ns <= min(last_records):
            return True
    return False


def _without_end(files: RoundFiles, entry: History | None) -> list[LostNode]:
    """The round's nodes whose agents did not record its end."""
    ended = {n.node for n in files.nodes if n.ended_ns is not None}
    names = list(entry.nodes) if entry is not None else [n.node for n in files.nodes]
    time_ns = entry.ended_ns if entry is not None else None
    return [LostNode(node, files.number, time_ns, None) for node in names if node not in ended]


def _moved_on(record: NodeRecordFacts | None, number: int) -> bool:
    """Whether the node's agent outlived the round, although its unpublished record of it has no end."""
    if record is None or _death_notice(record):
        return False
    return record.round > number or record.status in ("succeeded", "failed", "left")


def _death_notice(record: NodeRecordFacts) -> bool:
    return record.status == "left" and (record.reason or "").startswith(AGENT_GONE)


def _peer_lost(worker: FailedWorker) -> bool:
    """Whether the loss of a peer explains the failure: a connection broke, torch's or the program's own."""
    if worker.cause.role != PRIMARY:
        return True
    name = worker.exception.type if worker.exception is not None else ""
    return unanswered(name) or name == "EOFError"


def _what(snapshot: Snapshot, files: RoundFiles, entry: History | None, lost: Sequence[LostNode]) -> str:
    reason = entry.reason if entry is not None and entry.outcome == "node-lost" else None
    if reason and len(lost) == 1:
        # The coordinator's text begins with the node, which the report names itself.
        return reason.removeprefix(f"node {lost[0].node} ").removeprefix(f"{lost[0].node} ")
    text = "was lost" if len(lost) < 2 else "were lost"
    if reason:
        return f"{text}: {reason}"
    record = _last_records(snapshot, files).get(lost[0].node) if lost else None
    left = record.reason if record is not None and record.status == "left" else None
    silent = max((x.silent_s for x in lost if x.silent_s is not None), default=None)
    if left:
        return f"{text}: {left}"
    if silent is not None:
        return f"{text}: no heartbeat for {silent:.1f} s"
    return f"{text}: no end of the round was recorded there"


def _ranks_of(snapshot: Snapshot, files: RoundFiles, names: set[str]) -> list[int]:
    ranks = [w.rank for n in files.nodes if n.node in names for w in n.workers]
    state = snapshot.state
    if not ranks and state is not None and state.round == files.number:
        for p in state.participants:
            if p.node in names and 0 <= p.slots <= WORLD_LIMIT:
                ranks.extend(range(p.first_rank, p.first_rank + p.slots))
    return ranks

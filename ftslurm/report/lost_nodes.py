"""Lost and unreachable nodes, and missing records: whether that was a first failure, and descriptions (pure).

Missing records are reported so that missing data is not taken for success.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import replace
from ftslurm.failures.causes import Evidence, classify, describe
from ftslurm.failures.retryability import unanswered
from ftslurm.records.state import UNREACHABLE
from ftslurm.report.facts import Failure, History, LostNode, NodeRecordFacts, RoundFiles, Snapshot
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import FirstFailure
from ftslurm.report.root_cause import history_of, round_files
from ftslurm.report.selection import final
from ftslurm.text import duration, names, plural, ranges

# The world size is a number in a file: a hostile one must not make the report count to 2**60.
WORLD_LIMIT = 1_000_000
# Prefix of the guardian's death notice in the node record, see `ftslurm.agent.guardian`.
AGENT_GONE = "its agent "
AGENT_KILLED = "its agent was killed"
NOTICE_NS = 2 * 10**9
"""Connections to the ranks of a killed agent break at once; on a busy node its guardian notices it later."""
AGENT_DEFECT = "its agent ended by a defect of ftslurm"
_FOREIGN = (
    "times: in logs only their order, so the first failure is a guess where several ranks have causes of their own",
    "ends: of ranks that neither Slurm nor the launcher mentions, nothing is known",
)


def lost_first(
    snapshot: Snapshot, files: RoundFiles, entry: History | None, found: Sequence[FailedWorker]
) -> list[LostNode] | None:
    """Return the nodes whose loss was the round's first failure; None if there was another one.

    Empty: a node was lost, but no record shows which.
    """
    if snapshot.source != "ftslurm":
        # Logs have no nodes' ends: nothing is concluded from their absence.
        return None
    state = snapshot.state
    recorded = [x for x in (state.lost if state else ()) if x.round == files.number]
    lost = [LostNode(x.node, x.round, x.time_ns, x.silent_s) for x in recorded]
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
            records[record.node] = replace(
                record, status="left", reason=end.reason, time_ns=end.time_ns, round=files.number
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
) -> FirstFailure:
    """Describe lost nodes as a first failure."""
    names = [x.node for x in lost]
    what = _what(snapshot, files, entry, lost)
    killed = len(lost) == 1 and AGENT_KILLED in what
    kind = "agent-lost" if killed else "agent-defect" if AGENT_DEFECT in what else "node-lost"
    evidence = Evidence(kind=kind, message=what)
    cause = classify(evidence)
    return FirstFailure(
        round=files.number,
        kind="node-lost",
        cause=cause,
        what=describe(evidence, cause),
        signature="node-lost|" + ",".join(names[:8]),
        node=names[0] if names else None,
        nodes=tuple(names),
        ranks=ranges(_ranks_of(snapshot, files, set(names))),
        time_ns=min((x.time_ns for x in lost if x.time_ns is not None), default=None),
        step=step,
        advice=f"{cause.advice}{_spare(snapshot)}",
        evidence=("state",),
    )


def overshadowing(snapshot: Snapshot, files: RoundFiles, entry: History | None, worker: FailedWorker) -> str | None:
    """Return, as a sentence, the nodes that fell silent in a round whose first failure is nevertheless a worker's.

    Its own message (a broken socket of the program) may be the first consequence that was noticed. None: there are
    none, or nothing of any node's end is recorded, because all was killed at once.
    """
    if snapshot.source != "ftslurm" or (entry is not None and entry.outcome == "running"):
        return None
    recorded = {
        lost.node: lost.silent_s
        for lost in (snapshot.state.lost if snapshot.state else ())
        if lost.round == files.number
    }
    if not recorded and all(node.ended_ns is None for node in files.nodes):
        return None
    records = _last_records(snapshot, files)
    without = [x.node for x in _without_end(files, entry) if not _moved_on(records.get(x.node), files.number)]
    silent = [node for node in dict.fromkeys([*recorded, *without]) if node != worker.node]
    if not silent:
        return None
    seconds = max((s for s in recorded.values() if s is not None), default=None)
    which = f"node {silent[0]}" if len(silent) == 1 else f"nodes {names(silent)}"
    how = f" (no heartbeat for {duration(seconds)})" if seconds is not None else " in this round"
    return f"{which} fell silent{how}: that may be the reason"


def is_unreachable(entry: History | None) -> bool:
    """Return whether a round did not begin because a node could not connect to its master."""
    return entry is not None and entry.failure is not None and entry.failure.kind == UNREACHABLE


def unreachable_failure(entry: History, failure: Failure) -> FirstFailure:
    """Describe that as a first failure without a rank: none was started there.

    Which end of the connection is broken is unknown: both nodes are named.
    """
    text = failure.message
    if entry.nodes and entry.nodes[0] not in text:
        text = text.replace("the master of the round", f"{entry.nodes[0]}, the master of the round", 1)
    return FirstFailure(
        round=entry.round,
        kind=UNREACHABLE,
        cause=classify(Evidence(kind=UNREACHABLE, message=text)),
        what=text,
        signature=UNREACHABLE,
        node=failure.node,
        nodes=tuple(dict.fromkeys((failure.node, *entry.nodes[:1]))),
        time_ns=failure.time_ns,
        evidence=("state",),
    )


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
        if worker.cause.cascade:
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
    if worker.cause.cascade:
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
        return f"{text}: no heartbeat for {duration(silent)}"
    return f"{text}: no end of the round was recorded there"


def _ranks_of(snapshot: Snapshot, files: RoundFiles, names: set[str]) -> list[int]:
    ranks = [w.rank for n in files.nodes if n.node in names for w in n.workers]
    state = snapshot.state
    if not ranks and state is not None and state.round == files.number:
        for p in state.participants:
            if p.node in names and 0 <= p.slots <= WORLD_LIMIT:
                ranks.extend(range(p.first_rank, p.first_rank + p.slots))
    return ranks


NO_AGENT = "all: no agent of this run has started, or all its files were deleted"


def missing(snapshot: Snapshot) -> list[str]:
    """Return a line for each kind of missing record, for the run and its newest round that has files."""
    if snapshot.job is not None:
        return []
    if snapshot.source != "ftslurm":
        return list(_FOREIGN)
    if _is_empty(snapshot):
        return [NO_AGENT]
    lines: list[str] = []
    if snapshot.run is None:
        lines.append("run.json: the run's owner and creation time are unknown")
    if snapshot.state is None:
        lines.append("state: no generation can be read, so the ends of rounds and of the run are unknown")
    if not snapshot.attempts:
        lines.append("attempts: no file has the command")
    numbers = {files.number for files in snapshot.rounds}
    newest = max(numbers | {h.round for h in (snapshot.state.history if snapshot.state else ())}, default=None)
    if newest is None:
        lines.append("rounds: none has begun, or their files were deleted")
    elif newest not in numbers:
        lines.append(f"rounds/{newest:06d}: no files of the newest round")
    else:
        lines += _of_round(snapshot, round_files(snapshot, newest))
    return lines


def _is_empty(snapshot: Snapshot) -> bool:
    """Return whether there is nothing of an agent: it was refused on all nodes, or has not started yet."""
    found = (snapshot.state, snapshot.nodes, snapshot.rounds, snapshot.defects, snapshot.problems)
    return snapshot.run is not None and not any(found)


def _of_round(snapshot: Snapshot, files: RoundFiles) -> list[str]:
    where, lines = f"rounds/{files.number:06d}", []
    entry = history_of(snapshot, files.number)
    here = {node.node for node in files.nodes}
    absent = [name for name in (entry.nodes if entry is not None else ()) if name not in here]
    if absent:
        lines.append(f"{where}/nodes: no file of {plural(len(absent), 'node')} ({names(absent)})")
    failed = {
        worker.rank
        for node in files.nodes
        for worker in node.workers
        if worker.failed and not worker.stopped_by_ftslurm and (worker.error is None or not final(node, worker))
    }
    # Of a rank with a record summary, a record was published.
    failed |= {w.rank for node in files.nodes for w in node.workers if w.error is not None and w.rank in files.selected}
    without = sorted(failed - set(files.errors))
    if without:
        lines.append(f"{where}/ranks: no error record of {plural(len(without), 'failed rank')} ({ranges(without)})")
    return lines

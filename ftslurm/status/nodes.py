"""The nodes of a run: status of each from its record, and its silence (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.dataclasses import asdict
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import FORMING, LEFT, READY, RUNNING, LostNode, State
from ftslurm.rendezvous.exclusion import failed_repeatedly
from ftslurm.rendezvous.pace import QUIET_HEARTBEATS
from ftslurm.status.ranks import Rank, rank_of
from ftslurm.status.snapshot import ReceivedRecord, Snapshot
from ftslurm.text import duration

Dict = dict[str, Any]

SILENT_HEARTBEATS = 3
SILENT_LEAST_S = 10.0
OLD_HEARTBEATS = 2
"""Age of a record, in heartbeat intervals, up to which it shows the present."""
LIMIT_S = 1e10


class Nodes:
    """The node records.

    Attributes:
        records: by node.
        silent_s: lower bound of each node's silence.
        participants: the records of the round's participants.
        failed_repeatedly: why nodes are excluded that failed first repeatedly.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.state = snapshot.state
        self.records = {received.record.node: received.record for received in snapshot.nodes}
        self.silent_s = {received.record.node: self._silence(received) for received in snapshot.nodes}
        agents = {(part.node, part.incarnation) for part in self.state.participants} if self.state else set()
        self.participants = [record for record in self.records.values() if (record.node, record.incarnation) in agents]
        after = snapshot.timing.exclude_after
        self.failed_repeatedly = failed_repeatedly(self.state.history, after) if self.state is not None else {}
        self._silent_after_s = max(SILENT_LEAST_S, SILENT_HEARTBEATS * snapshot.timing.heartbeat_s)
        # That of an agent that the coordinator hears by datagrams, which rewrites its record rarely.
        self._quiet_s = QUIET_HEARTBEATS * snapshot.timing.heartbeat_s if self._may_be_quiet() else 0.0

    def _may_be_quiet(self) -> bool:
        """Return whether members write rarely: not while a round forms, some time after the last one has ended."""
        state = self.state
        if state is None or state.phase != FORMING:
            return True
        ended_ns = max((past.ended_ns for past in state.history if past.ended_ns is not None), default=0)
        return span_s(ended_ns, self.snapshot.now_ns) <= OLD_HEARTBEATS * self.snapshot.timing.heartbeat_s

    def _silence(self, received: ReceivedRecord) -> float:
        """Return a lower bound: the record may have been rewritten while the others were read."""
        newest = self.snapshot.server_ns if self.snapshot.server_ns is not None else received.written_ns
        return span_s(received.written_ns + self.snapshot.took_ns, newest)

    def ranks(self) -> dict[int, Rank]:
        """Return the ranks of the running round that node records include."""
        state = self.state
        if state is None or state.phase != RUNNING:
            return {}
        return {
            each.rank: rank_of(record.node, each, self.silent_s[record.node] + self._took_s())
            for record in self.participants
            if record.vitals is not None and record.vitals.round == state.round
            for each in record.vitals.ranks
        }

    def findings(self) -> dict[str, list[str]]:
        """Return what the health checks of each participant found, as texts."""
        checked = ((record.node, record.health) for record in self.participants)
        return {node: [each.line() for each in health.findings] for node, health in checked if health is not None}

    def _took_s(self) -> float:
        return self.snapshot.took_ns / 1e9

    def rows(self) -> list[Dict]:
        """Return the key "nodes"."""
        state = self.state
        if state is None:
            records = sorted(self.records.values(), key=lambda record: (record.position, record.node))
            return [self._row(record.node, "spare", record, record.status, record.reason) for record in records]
        first = sorted(state.participants, key=lambda part: part.group_rank)
        lost = {(each.node, each.incarnation): each for each in state.lost}
        rows = []
        for part in first:
            record = self.records.get(part.node)
            own = record if record is not None and record.incarnation == part.incarnation else None
            row = self._row(part.node, "rank", own, *_part_status(own, record, state))
            row |= {"ranks": _ranks(part.first_rank, part.slots), "first_rank": part.first_rank, "slots": part.slots}
            gone = lost.get((part.node, part.incarnation))
            rows.append(row if gone is None else row | {"status": "lost", "why": _why_lost(gone)})
        known = {part.node for part in first}
        others = sorted(self.records.values(), key=lambda record: (record.position, record.node))
        rows += [self._other(record, lost) for record in others if record.node not in known]
        joined = {record.node for record in others if record.attempt == state.attempt}
        missing = [node for node in dict.fromkeys(state.expected) if node not in joined | known]
        rows = [row for row in rows if not (row["role"] == "earlier" and row["node"] in missing)]
        rows += [self._row(node, "missing", None, "no node record in this attempt", None) for node in missing]
        order = ["rank", "spare", "gone", "missing", "earlier"]
        return sorted(rows, key=lambda row: order.index(row["role"]))

    def _other(self, record: NodeRecord, lost: Mapping[tuple[str, str], LostNode]) -> Dict:
        assert self.state is not None
        gone = lost.get((record.node, record.incarnation))
        if record.attempt != self.state.attempt:
            return self._row(record.node, "earlier", record, "of an earlier attempt", None)
        if gone is not None:
            return self._row(record.node, "gone", record, "lost", _why_lost(gone))
        if record.status == LEFT or record.reason is not None:
            return self._row(record.node, "gone", record, "left" if record.status == LEFT else "leaving", record.reason)
        status = "spare" if self.state.phase == RUNNING and record.status == READY else record.status
        return self._row(record.node, "spare", record, *_with_health(record, status))

    def _silent_after(self, node: str) -> float:
        leads = self.state is not None and node == self.state.coordinator.node
        return self._silent_after_s + (0.0 if leads else self._quiet_s)

    def _row(self, node: str, role: str, record: NodeRecord | None, status: str, why: str | None) -> Dict:
        vitals = record.vitals if record is not None and record.vitals and record.vitals.round == record.round else None
        known = [rank.step for rank in vitals.ranks if rank.step is not None] if vitals else []
        made = [rank.optimizer_step for rank in vitals.ranks if rank.optimizer_step is not None] if vitals else []
        silent_s = self.silent_s[node] if record is not None else None
        return {
            "node": node,
            "role": role,
            "ranks": None,
            "first_rank": None,
            "slots": record.slots if record else None,
            "status": status,
            "round": record.round if record else None,
            "steps": [min(known), max(known)] if known else None,
            "optimizer_steps": [min(made), max(made)] if made and not known else None,
            "silent_s": silent_s,
            "silent": silent_s is not None and silent_s > self._silent_after(node),
            "old": silent_s is not None and silent_s > OLD_HEARTBEATS * self.snapshot.timing.heartbeat_s,
            "stuck": vitals.stuck if vitals else 0,
            "stacks_collected": record is not None
            and self.state is not None
            and 0 < self.state.round == record.stacks_collected,
            "why": why,
            "unhealthy": record.unhealthy if record else None,
            "health_pending": record is not None and record.health_pending,
            "excluded": self.failed_repeatedly.get(node) or (record.excluded if record else None),
            "health": _health(record),
        }


def _part_status(record: NodeRecord | None, other: NodeRecord | None, state: State) -> tuple[str, str | None]:
    """Return a participant's status and reason, from its agent's record if there is one."""
    if record is None:
        restarted = other is not None and other.attempt == state.attempt
        return ("its agent was restarted" if restarted else "no record"), None
    if record.status == LEFT:
        return "left", record.reason
    if record.reason is not None:
        return "leaving", record.reason
    if state.phase == RUNNING and record.round < state.round:
        return "setting up", None
    if record.hang is not None and record.hang.round == state.round and record.status == RUNNING:
        return f"running, rank {record.hang.rank} hangs", None
    return _with_health(record, record.status)


def _with_health(record: NodeRecord, status: str) -> tuple[str, str | None]:
    """Return a node's status and reason, with "unhealthy" if it cannot take part in the next round."""
    if record.unhealthy is None:
        return status, None
    return ("unhealthy" if record.status == READY else f"{status}, unhealthy"), record.unhealthy


def _health(record: NodeRecord | None) -> Dict | None:
    if record is None or record.health is None:
        return None
    health = record.health
    return {
        "status": health.status,
        "checked_ns": health.checked_ns,
        "set": health.set,
        "findings": [asdict(finding) for finding in health.findings],
    }


def _why_lost(lost: LostNode) -> str:
    return f"in round {lost.round}, silent for {duration(clean_s(lost.silent_s))} then"


def _ranks(first: int, slots: int) -> str:
    return f"{first}" if slots == 1 else f"{first}-{first + slots - 1}"


def span_s(start_ns: int, end_ns: int | None) -> float:
    """Return the seconds between two times, at least 0: a file may hold any number."""
    if end_ns is None or end_ns <= start_ns:
        return 0.0
    return min(end_ns - start_ns, int(LIMIT_S * 1e9)) / 1e9


def clean_s(seconds: float) -> float:
    """Return a duration read from a file, 0 if it is out of range."""
    return seconds if 0 <= seconds < LIMIT_S else 0.0

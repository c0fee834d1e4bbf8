"""The nodes of a run, one by one: what each says of itself, and how long it has said nothing (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.dataclasses import asdict
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import LEFT, READY, RUNNING, LostNode, State
from ftslurm.status.ranks import Rank, rank_of
from ftslurm.status.snapshot import ReceivedRecord, Snapshot

Dict = dict[str, Any]

SILENT_HEARTBEATS = 3
SILENT_LEAST_S = 10.0
LIMIT_S = 1e10


class Nodes:
    """The nodes' words.

    Attributes:
        words: by node.
        silent_s: for how long each has been silent at least.
        participants: those of the agents that take part in the round.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.state = snapshot.state
        self.words = {heard.record.node: heard.record for heard in snapshot.nodes}
        self.silent_s = {heard.record.node: self._silence(heard) for heard in snapshot.nodes}
        agents = {(part.node, part.incarnation) for part in self.state.participants} if self.state else set()
        self.participants = [record for record in self.words.values() if (record.node, record.incarnation) in agents]
        self.silent_after_s = max(SILENT_LEAST_S, SILENT_HEARTBEATS * snapshot.timing.heartbeat_s)

    def _silence(self, heard: ReceivedRecord) -> float:
        """So long at least: it may have written anew while the others were read."""
        newest = self.snapshot.server_ns if self.snapshot.server_ns is not None else heard.written_ns
        return span_s(heard.written_ns + self.snapshot.took_ns, newest)

    def ranks(self) -> dict[int, Rank]:
        """Return the ranks of the running round, as far as their nodes speak of them."""
        state = self.state
        if state is None or state.phase != RUNNING:
            return {}
        return {
            each.rank: rank_of(record.node, each.step, each.intervals, self.silent_s[record.node] + self._took_s())
            for record in self.participants
            if record.vitals is not None and record.vitals.round == state.round
            for each in record.vitals.ranks
        }

    def _took_s(self) -> float:
        return self.snapshot.took_ns / 1e9

    def rows(self) -> list[Dict]:
        """Return the key "nodes"."""
        state = self.state
        if state is None:
            records = sorted(self.words.values(), key=lambda record: (record.position, record.node))
            return [self._row(record.node, "spare", record, record.status, record.reason) for record in records]
        first = sorted(state.participants, key=lambda part: part.group_rank)
        lost = {(each.node, each.incarnation): each for each in state.lost}
        rows = []
        for part in first:
            record = self.words.get(part.node)
            told = record if record is not None and record.incarnation == part.incarnation else None
            row = self._row(part.node, "rank", told, *_part_status(told, record, state))
            row |= {"ranks": _ranks(part.first_rank, part.slots), "first_rank": part.first_rank, "slots": part.slots}
            gone = lost.get((part.node, part.incarnation))
            rows.append(row if gone is None else row | {"status": "lost", "why": _why_lost(gone)})
        known = {part.node for part in first}
        others = sorted(self.words.values(), key=lambda record: (record.position, record.node))
        rows += [self._other(record, lost) for record in others if record.node not in known]
        heard = {record.node for record in others if record.attempt == state.attempt}
        unheard = [node for node in dict.fromkeys(state.expected) if node not in heard | known]
        rows = [row for row in rows if not (row["role"] == "earlier" and row["node"] in unheard)]
        rows += [self._row(node, "unheard", None, "not heard of in this attempt", None) for node in unheard]
        order = ["rank", "spare", "gone", "unheard", "earlier"]
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
        return self._row(record.node, "spare", record, *_fitness(record, status))

    def _row(self, node: str, role: str, record: NodeRecord | None, status: str, why: str | None) -> Dict:
        vitals = record.vitals if record is not None and record.vitals and record.vitals.round == record.round else None
        known = [rank.step for rank in vitals.ranks if rank.step is not None] if vitals else []
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
            "silent_s": silent_s,
            "silent": silent_s is not None and silent_s > self.silent_after_s,
            "stuck": vitals.stuck if vitals else 0,
            "shown": record is not None and self.state is not None and 0 < self.state.round == record.stacks_collected,
            "why": why,
            "unhealthy": record.unhealthy if record else None,
            "health_pending": record is not None and record.health_pending,
            "excluded": record.excluded if record else None,
            "health": _health(record),
        }


def _part_status(record: NodeRecord | None, other: NodeRecord | None, state: State) -> tuple[str, str | None]:
    """Return how a participant does: its agent's word, or what stands in its place."""
    if record is None:
        anew = other is not None and other.attempt == state.attempt
        return ("its agent was started anew" if anew else "no word"), None
    if record.status == LEFT:
        return "left", record.reason
    if record.reason is not None:
        return "leaving", record.reason
    if state.phase == RUNNING and record.round < state.round:
        return "preparing", None
    if record.hang is not None and record.hang.round == state.round and record.status == RUNNING:
        return f"running, rank {record.hang.rank} hangs", None
    return _fitness(record, record.status)


def _fitness(record: NodeRecord, status: str) -> tuple[str, str | None]:
    """Return how a node does whose ranks may run: that it takes no part in the next round, if that is so."""
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
    return f"in round {lost.round}, silent for {clean_s(lost.silent_s):.1f} s then"


def _ranks(first: int, slots: int) -> str:
    return f"{first}" if slots == 1 else f"{first}-{first + slots - 1}"


def span_s(start_ns: int, end_ns: int | None) -> float:
    """Return the seconds from one to the other, never less than none: a file may hold any number."""
    if end_ns is None or end_ns <= start_ns:
        return 0.0
    return min(end_ns - start_ns, int(LIMIT_S * 1e9)) / 1e9


def clean_s(seconds: float) -> float:
    """Return a span of time that a file names, 0 for what can be none."""
    return seconds if 0 <= seconds < LIMIT_S else 0.0


__all__ = ["Nodes", "clean_s", "span_s"]

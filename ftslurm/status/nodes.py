"""The nodes of a run, one by one: what each says of itself, and how long it has said nothing (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.dataclasses import asdict
from ftslurm.rendezvous.node_record import NodeWord
from ftslurm.rendezvous.state import LEFT, READY, RUNNING, LostNode, State
from ftslurm.status.ranks import Rank, rank_of
from ftslurm.status.snapshot import Heard, Snapshot

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
        self.words = {heard.word.node: heard.word for heard in snapshot.nodes}
        self.silent_s = {heard.word.node: self._silence(heard) for heard in snapshot.nodes}
        agents = {(part.node, part.incarnation) for part in self.state.participants} if self.state else set()
        self.participants = [word for word in self.words.values() if (word.node, word.incarnation) in agents]
        self.silent_after_s = max(SILENT_LEAST_S, SILENT_HEARTBEATS * snapshot.asked.heartbeat_s)

    def _silence(self, heard: Heard) -> float:
        """So long at least: it may have written anew while the others were read."""
        newest = self.snapshot.server_ns if self.snapshot.server_ns is not None else heard.written_ns
        return span_s(heard.written_ns + self.snapshot.took_ns, newest)

    def ranks(self) -> dict[int, Rank]:
        """Return the ranks of the running round, as far as their nodes speak of them."""
        state = self.state
        if state is None or state.phase != RUNNING:
            return {}
        return {
            each.rank: rank_of(word.node, each.step, each.intervals, self.silent_s[word.node] + self._took_s())
            for word in self.participants
            if word.vitals is not None and word.vitals.round == state.round
            for each in word.vitals.ranks
        }

    def _took_s(self) -> float:
        return self.snapshot.took_ns / 1e9

    def rows(self) -> list[Dict]:
        """Return the key "nodes"."""
        state = self.state
        if state is None:
            words = sorted(self.words.values(), key=lambda word: (word.position, word.node))
            return [self._row(word.node, "spare", word, word.status, word.reason) for word in words]
        first = sorted(state.participants, key=lambda part: part.group_rank)
        lost = {(each.node, each.incarnation): each for each in state.lost}
        rows = []
        for part in first:
            word = self.words.get(part.node)
            told = word if word is not None and word.incarnation == part.incarnation else None
            row = self._row(part.node, "rank", told, *_part_status(told, word, state))
            row |= {"ranks": _ranks(part.first_rank, part.slots), "first_rank": part.first_rank, "slots": part.slots}
            gone = lost.get((part.node, part.incarnation))
            rows.append(row if gone is None else row | {"status": "lost", "why": _why_lost(gone)})
        known = {part.node for part in first}
        others = sorted(self.words.values(), key=lambda word: (word.position, word.node))
        rows += [self._other(word, lost) for word in others if word.node not in known]
        heard = {word.node for word in others if word.attempt == state.attempt}
        unheard = [node for node in dict.fromkeys(state.expected) if node not in heard | known]
        rows = [row for row in rows if not (row["role"] == "earlier" and row["node"] in unheard)]
        rows += [self._row(node, "unheard", None, "not heard of in this attempt", None) for node in unheard]
        order = ["rank", "spare", "gone", "unheard", "earlier"]
        return sorted(rows, key=lambda row: order.index(row["role"]))

    def _other(self, word: NodeWord, lost: Mapping[tuple[str, str], LostNode]) -> Dict:
        assert self.state is not None
        gone = lost.get((word.node, word.incarnation))
        if word.attempt != self.state.attempt:
            return self._row(word.node, "earlier", word, "of an earlier attempt", None)
        if gone is not None:
            return self._row(word.node, "gone", word, "lost", _why_lost(gone))
        if word.status == LEFT or word.reason is not None:
            return self._row(word.node, "gone", word, "left" if word.status == LEFT else "leaving", word.reason)
        status = "spare" if self.state.phase == RUNNING and word.status == READY else word.status
        return self._row(word.node, "spare", word, *_fitness(word, status))

    def _row(self, node: str, role: str, word: NodeWord | None, status: str, why: str | None) -> Dict:
        vitals = word.vitals if word is not None and word.vitals and word.vitals.round == word.round else None
        known = [rank.step for rank in vitals.ranks if rank.step is not None] if vitals else []
        silent_s = self.silent_s[node] if word is not None else None
        return {
            "node": node,
            "role": role,
            "ranks": None,
            "first_rank": None,
            "slots": word.slots if word else None,
            "status": status,
            "round": word.round if word else None,
            "steps": [min(known), max(known)] if known else None,
            "silent_s": silent_s,
            "silent": silent_s is not None and silent_s > self.silent_after_s,
            "stuck": vitals.stuck if vitals else 0,
            "shown": word is not None and self.state is not None and 0 < self.state.round == word.shown,
            "why": why,
            "unfit": word.unfit if word else None,
            "looking": word is not None and word.looking,
            "excluded": word.excluded if word else None,
            "health": _health(word),
        }


def _part_status(word: NodeWord | None, other: NodeWord | None, state: State) -> tuple[str, str | None]:
    """Return how a participant does: its agent's word, or what stands in its place."""
    if word is None:
        anew = other is not None and other.attempt == state.attempt
        return ("its agent was started anew" if anew else "no word"), None
    if word.status == LEFT:
        return "left", word.reason
    if word.reason is not None:
        return "leaving", word.reason
    if state.phase == RUNNING and word.round < state.round:
        return "preparing", None
    if word.hang is not None and word.hang.round == state.round and word.status == RUNNING:
        return f"running, rank {word.hang.rank} hangs", None
    return _fitness(word, word.status)


def _fitness(word: NodeWord, status: str) -> tuple[str, str | None]:
    """Return how a node does whose ranks may run: that it takes no part in the next round, if that is so."""
    if word.unfit is None:
        return status, None
    return ("unfit" if word.status == READY else f"{status}, unfit"), word.unfit


def _health(word: NodeWord | None) -> Dict | None:
    if word is None or word.health is None:
        return None
    health = word.health
    return {
        "status": health.status,
        "looked_ns": health.looked_ns,
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

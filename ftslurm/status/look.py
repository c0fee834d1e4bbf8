"""What a run does right now, as one dictionary made from a snapshot (pure).

`look` returns, ready for JSON (times ``_ns``: since the epoch; ``_s``: seconds; None: not known):

=============== =======================================================================================================
key             meaning
=============== =======================================================================================================
schema, version "ftslurm/status", 1
run, directory  the run's name and where it is
made_ns         when this was read, by this machine's clock
status          "running", "hanging" (a rank hangs, its round is about to end), "ending" (a rank failed, the same),
                "forming" (the next round), "closed", "silent" (not closed, but no agent has said anything for long),
                "unknown" (no state can be read)
phase, round    what the state says: "forming", "running" or "closed"; the newest formed round, 0 for none
token           the generation of the state; ``newest_token``: the newest there is, larger when that one cannot be used
attempt         its name; ``attempts``: how many there were, this one included
coordinator     {node, term, silent_s}: who decides, how often that changed hands, and as in ``nodes``
world           {nodes, ranks, min_nodes, max_nodes} of the round, and what was asked for
formed_ns       when the round formed, by the coordinator's clock then; ``formed_s``: for how long it has run, by the
                difference to this machine's clock
restarts        {used, allowed}
steps           {first, last, reporting, of, step_s, compared}: lowest and highest last step over the ranks, how many
                ranks report steps, of how many, the usual time of a step, how many ranks' paces were compared
closed          {outcome, reason, exit_code, time_ns} when it is closed
hang            {rank, node, what, step, known, shown, of, awaited}: the rank that hangs; whether the coordinator deals
                with it yet; how many nodes have shown where their ranks are, and which have not
failures        [{rank, node, message, step}]: what failed in the round that still runs
forming         {ready, needed, busy, unheard}: while a round forms: how many nodes are ready, how many it needs at
                least, the nodes that still end the last round, the nodes nobody has heard of
rounds          the last rounds, newest first: {round, outcome, reason, nodes, ranks, formed_ns, ended_ns, took_s}
timeouts        {rounds, silent, entries: [{what, name, seconds, source}]}: those that hold: from how many rounds they
                were learned; how many ranks have sent no heartbeat yet; `what` is "heartbeat", "first heartbeat",
                "section" (`name`), "between sections" or "any sign of life"; `seconds` None: off; `source` is
                "asked", "learned" or "default"
nodes           in the order of ranks: {node, role, ranks, first_rank, slots, status, round, steps, silent_s, silent,
                stuck, shown, why}. `role`: "rank" (takes part in the round), "spare", "gone" (left or lost), "unheard"
                (Slurm gave it, it has not spoken), "earlier" (its last word is from an earlier attempt). `steps`:
                [lowest, highest]. `silent_s`: for so long at least it has written nothing, by the file server's clock
                alone; `silent`: that is much more than a heartbeat. `stuck`: how often its agent's loop was stuck.
                `shown`: it has shown where its ranks are. `why`: why it left, was lost or is leaving
lost            nodes lost in this attempt: {node, round, time_ns, silent_s}
behind          ranks whose step is behind the others', the last first: {rank, node, step, usual}
slow            ranks that are persistently slower than the others, the slowest first: {rank, node, median_s, others_s}
newest_s        how old the newest word of all is, by the difference between this machine's clock and the file server's
clock_behind_s  by how much this machine's clock is surely behind the file server's
problems        files that cannot be used: {file, reason}
=============== =======================================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ftslurm.monitor.timeouts import DEFAULTS, NOTHING, Spans, Timeouts, effective
from ftslurm.rendezvous.state import (
    CLOSED,
    FORMING,
    LEFT,
    READY,
    RUNNING,
    Hang,
    LostNode,
    NodeWord,
    RoundHistory,
    State,
)
from ftslurm.status.ranks import Rank, behind, rank_of, slow, steps
from ftslurm.status.snapshot import Heard, Snapshot

Dict = dict[str, Any]

SCHEMA, VERSION = "ftslurm/status", 1
SILENT_HEARTBEATS = 3
SILENT_LEAST_S = 10.0
DEAD_TIMEOUTS = 2
DEAD_LEAST_S = 60.0
LIMIT_S = 1e10


def look(snapshot: Snapshot) -> Dict:
    """Say what the run does; for the keys see this module's docstring."""
    state = snapshot.state
    nodes = _Nodes(snapshot)
    rows = nodes.rows()
    ranks = nodes.ranks()
    newest_s = _newest_s(snapshot)
    hang = _hang(state, nodes)
    failures = _failures(state, nodes)
    entry = state.past(state.round) if state else None
    running = state is not None and state.phase == RUNNING
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "run": os.path.basename(state.run_id if state else snapshot.directory.rstrip("/")),
        "directory": snapshot.directory,
        "made_ns": snapshot.now_ns,
        "status": _status(snapshot, newest_s, hang, failures),
        "phase": state.phase if state else None,
        "round": state.round if state else None,
        "token": snapshot.token,
        "newest_token": snapshot.newest_token,
        "attempt": state.attempt if state else None,
        "attempts": len(state.attempts) if state else None,
        "coordinator": _coordinator(state, nodes),
        "world": _world(state),
        "formed_ns": entry.formed_ns if entry and running else None,
        "formed_s": _span_s(entry.formed_ns, snapshot.now_ns) if entry and running else None,
        "restarts": {"used": state.restarts_used, "allowed": state.max_restarts} if state else None,
        "steps": steps(ranks, state.world_size if state else 0),
        "closed": _closed(state),
        "hang": hang,
        "failures": failures,
        "forming": _forming(state, rows),
        "rounds": [_round(past) for past in reversed(state.history) if past.outcome != RUNNING] if state else [],
        "timeouts": _timeouts(snapshot, nodes),
        "nodes": rows,
        "lost": [_lost(lost) for lost in state.lost] if state else [],
        "behind": behind(ranks, snapshot.asked.heartbeat_s),
        "slow": slow(ranks),
        "newest_s": newest_s,
        "clock_behind_s": _span_s(snapshot.now_ns + snapshot.took_ns, snapshot.server_ns),
        "problems": [{"file": each.file, "reason": each.reason} for each in snapshot.problems],
    }


class _Nodes:
    """The nodes' words, how long each has been silent, and which of them are those of the round's participants."""

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
        return _span_s(heard.written_ns + self.snapshot.took_ns, newest)

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
        return self._row(word.node, "spare", word, status, None)

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
    return word.status, None


def _status(snapshot: Snapshot, newest_s: float | None, hang: Dict | None, failures: list[Dict]) -> str:
    state = snapshot.state
    if state is None:
        return "unknown"
    if state.phase == CLOSED:
        return "closed"
    # Two clocks are compared here, so that it takes more than a node's time-out.
    if newest_s is None or newest_s > max(DEAD_LEAST_S, DEAD_TIMEOUTS * snapshot.asked.node_timeout_s):
        return "silent"
    if state.phase == FORMING:
        return "forming"
    return "hanging" if hang else "ending" if failures else "running"


def _coordinator(state: State | None, nodes: _Nodes) -> Dict | None:
    if state is None:
        return None
    lease = state.coordinator
    word = nodes.words.get(lease.node)
    silent_s = nodes.silent_s[lease.node] if word is not None and word.incarnation == lease.incarnation else None
    return {"node": lease.node, "term": lease.term, "silent_s": silent_s}


def _world(state: State | None) -> Dict | None:
    if state is None:
        return None
    size = {"nodes": len(state.participants), "ranks": state.world_size}
    return {**size, "min_nodes": state.min_nodes, "max_nodes": state.max_nodes}


def _closed(state: State | None) -> Dict | None:
    if state is None or state.phase != CLOSED or state.closed is None:
        return None
    end = state.closed
    return {"outcome": end.outcome, "reason": end.reason, "exit_code": end.exit_code, "time_ns": end.time_ns}


def _hang(state: State | None, nodes: _Nodes) -> Dict | None:
    if state is None or state.phase != RUNNING:
        return None
    words = nodes.participants
    told = [word.hang for word in words if word.hang is not None and word.hang.round == state.round]
    hang: Hang | None = state.hang or next(iter(told), None)
    if hang is None:
        return None
    shown = {word.node for word in words if word.shown == state.round}
    return {
        "rank": hang.rank,
        "node": hang.node,
        "what": hang.what,
        "step": hang.step,
        "known": state.hang is not None,
        "shown": len(shown),
        "of": len(state.participants),
        "awaited": [part.node for part in state.participants if part.node not in shown],
    }


def _failures(state: State | None, nodes: _Nodes) -> list[Dict]:
    if state is None or state.phase != RUNNING:
        return []
    found = [word.failure for word in nodes.participants if word.failure and word.failure.round == state.round]
    # Nodes' clocks are not compared: in the order of ranks.
    found.sort(key=lambda failure: failure.rank)
    return [{"rank": each.rank, "node": each.node, "message": each.message, "step": each.step} for each in found]


def _forming(state: State | None, rows: list[Dict]) -> Dict | None:
    if state is None or state.phase != FORMING:
        return None
    present = [row for row in rows if row["role"] in ("rank", "spare")]
    staying = [row for row in present if row["why"] is None and row["status"] not in ("no word", "lost", "left")]
    return {
        "ready": sum(row["status"] == READY for row in staying),
        "needed": state.min_nodes,
        "busy": [row["node"] for row in staying if row["status"] != READY],
        "unheard": [row["node"] for row in rows if row["role"] == "unheard"],
    }


def _round(past: RoundHistory) -> Dict:
    took_s = _span_s(past.formed_ns, past.ended_ns) if past.ended_ns is not None else None
    return {
        "round": past.round,
        "outcome": past.outcome,
        "reason": past.reason,
        "nodes": len(past.nodes),
        "ranks": past.world_size,
        "formed_ns": past.formed_ns,
        "ended_ns": past.ended_ns,
        "took_s": took_s,
    }


def _lost(lost: LostNode) -> Dict:
    silent_s = _clean_s(lost.silent_s)
    return {"node": lost.node, "round": lost.round, "time_ns": lost.time_ns, "silent_s": silent_s}


def _why_lost(lost: LostNode) -> str:
    return f"in round {lost.round}, silent for {_clean_s(lost.silent_s):.1f} s then"


def _timeouts(snapshot: Snapshot, nodes: _Nodes) -> Dict:
    learned = snapshot.state.learned if snapshot.state else None
    asked = snapshot.asked.timeouts
    # Nothing is said of defaults where it is not known what stands against them.
    hold = effective(asked or NOTHING, learned, NOTHING if asked is None else DEFAULTS)
    known = learned.timeouts if learned else Spans()
    wanted = asked or NOTHING
    entries = [
        _timeout("first heartbeat", hold.initial_s, wanted.initial_s, known.initial_s),
        _timeout("heartbeat", hold.heartbeat_s, wanted.heartbeat_s, known.heartbeat_s),
        _timeout("between sections", hold.out_of_section_s, wanted.out_of_section_s, known.out_of_section_s),
        _timeout("any sign of life", hold.hang_s, wanted.hang_s, None),
    ]
    for name in sorted({*wanted.sections, *known.sections}):
        entries.append(_section(name, hold, wanted, known.sections.get(name)))
    state = snapshot.state
    vitals = [word.vitals for word in nodes.participants if word.vitals and state and word.vitals.round == state.round]
    return {
        "rounds": learned.rounds if learned else 0,
        "silent": sum(each.longest.silent for each in vitals),
        "entries": [entry for entry in entries if entry is not None],
    }


def _section(name: str, hold: Timeouts, asked: Timeouts, learned: float | None) -> Dict | None:
    entry = _timeout("section", hold.sections.get(name), asked.sections.get(name), learned)
    return entry and entry | {"name": name}


def _timeout(what: str, seconds: float | None, asked: float | None, learned: float | None) -> Dict | None:
    if seconds is None and asked is None:
        return None
    source = "asked" if asked is not None else "learned" if learned is not None else "default"
    return {"what": what, "name": None, "seconds": seconds, "source": source}


def _newest_s(snapshot: Snapshot) -> float | None:
    if snapshot.server_ns is None or not snapshot.nodes:
        return None
    return _span_s(max(heard.written_ns for heard in snapshot.nodes), snapshot.now_ns)


def _ranks(first: int, slots: int) -> str:
    return f"{first}" if slots == 1 else f"{first}-{first + slots - 1}"


def _span_s(start_ns: int, end_ns: int | None) -> float:
    """Return the seconds from one to the other, never less than none: a file may hold any number."""
    if end_ns is None or end_ns <= start_ns:
        return 0.0
    return min(end_ns - start_ns, int(LIMIT_S * 1e9)) / 1e9


def _clean_s(seconds: float) -> float:
    return seconds if 0 <= seconds < LIMIT_S else 0.0


__all__ = ["look"]

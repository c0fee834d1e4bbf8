"""What a run does right now, as one dictionary made from a snapshot (pure).

`summarise` returns, ready for JSON (times ``_ns``: since the epoch; ``_s``: seconds; None: not known):

=============== =======================================================================================================
key             meaning
=============== =======================================================================================================
schema, version "ftslurm/status", 1
run, directory  the run's name and where it is
made_ns         when this was read, by this machine's clock
status          "running", "hanging" (a rank hangs, its round is about to end), "ending" (a rank failed, the same),
                "forming" (the next round), "closed", "silent" (not closed, but no agent has said anything for long, or
                their launcher says that they have ended),
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
forming         {ready, needed, busy, health_pending, unhealthy, unheard}: while a round forms: number of nodes ready,
                how many it needs at least, the nodes that still end the last round, whose health is being checked, that
                are unhealthy, and of which there is no sign of life
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
                `shown`: it has shown where its ranks are. `why`: why it left, was lost, is leaving or is unhealthy.
                `unhealthy`: why it can take part in no round; `health_pending`: it is being checked; `excluded`: why it
                was excluded before, so that others are preferred; `health`: {status, checked_ns, set, findings: [{
                check, status, subject, text, advice, since_ns}]} of the last run of checks, times by its own clock
lost            nodes lost in this attempt: {node, round, time_ns, silent_s}
behind          ranks whose step is behind the others', the last first: {rank, node, step, usual}
slow            ranks that are persistently slower than the others, the slowest first: {rank, node, median_s, others_s}
newest_s        how old the newest word of all is, by the difference between this machine's clock and the file server's
clock_behind_s  by how much this machine's clock is surely behind the file server's
problems        files that cannot be used: {file, reason}
time            in words, where the time went until now; None: nothing is known, or it would take long to find out
=============== =======================================================================================================
"""

from __future__ import annotations

import os
from typing import Any

from ftslurm.monitor.timeouts import DEFAULTS, NOTHING, Spans, Timeouts, effective
from ftslurm.rendezvous.state import (
    CLOSED,
    FORMING,
    READY,
    RUNNING,
    Hang,
    LostNode,
    RoundHistory,
    State,
)
from ftslurm.status.nodes import Nodes, clean_s, span_s
from ftslurm.status.ranks import behind, slow, steps
from ftslurm.status.snapshot import Snapshot

Dict = dict[str, Any]

SCHEMA, VERSION = "ftslurm/status", 1
DEAD_TIMEOUTS = 2
DEAD_LEAST_S = 60.0


def summarise(snapshot: Snapshot) -> Dict:
    """Say what the run does; for the keys see this module's docstring."""
    state = snapshot.state
    nodes = Nodes(snapshot)
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
        "formed_s": span_s(entry.formed_ns, snapshot.now_ns) if entry and running else None,
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
        "behind": behind(ranks, snapshot.timing.heartbeat_s),
        "slow": slow(ranks),
        "newest_s": newest_s,
        "clock_behind_s": span_s(snapshot.now_ns + snapshot.took_ns, snapshot.server_ns),
        "time": None,
        "problems": [{"file": each.file, "reason": each.reason} for each in snapshot.problems],
    }


def _status(snapshot: Snapshot, newest_s: float | None, hang: Dict | None, failures: list[Dict]) -> str:
    state = snapshot.state
    if state is None:
        return "unknown"
    if state.phase == CLOSED:
        return "closed"
    # Two clocks are compared here, so that it takes more than a node's time-out.
    if (
        snapshot.ended
        or newest_s is None
        or newest_s > max(DEAD_LEAST_S, DEAD_TIMEOUTS * snapshot.timing.node_timeout_s)
    ):
        return "silent"
    if state.phase == FORMING:
        return "forming"
    return "hanging" if hang else "ending" if failures else "running"


def _coordinator(state: State | None, nodes: Nodes) -> Dict | None:
    if state is None:
        return None
    lease = state.coordinator
    record = nodes.words.get(lease.node)
    silent_s = nodes.silent_s[lease.node] if record is not None and record.incarnation == lease.incarnation else None
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


def _hang(state: State | None, nodes: Nodes) -> Dict | None:
    if state is None or state.phase != RUNNING:
        return None
    records = nodes.participants
    told = [record.hang for record in records if record.hang is not None and record.hang.round == state.round]
    hang: Hang | None = state.hang or next(iter(told), None)
    if hang is None:
        return None
    shown = {record.node for record in records if record.stacks_collected == state.round}
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


def _failures(state: State | None, nodes: Nodes) -> list[Dict]:
    if state is None or state.phase != RUNNING:
        return []
    found = [record.failure for record in nodes.participants if record.failure and record.failure.round == state.round]
    # Nodes' clocks are not compared: in the order of ranks.
    found.sort(key=lambda failure: failure.rank)
    return [{"rank": each.rank, "node": each.node, "message": each.message, "step": each.step} for each in found]


def _forming(state: State | None, rows: list[Dict]) -> Dict | None:
    if state is None or state.phase != FORMING:
        return None
    present = [row for row in rows if row["role"] in ("rank", "spare")]
    staying = [row for row in present if row["why"] is None and row["status"] not in ("no word", "lost", "left")]
    ready = [row for row in staying if row["status"] == READY]
    return {
        "ready": sum(not row["health_pending"] for row in ready),
        "needed": state.min_nodes,
        "busy": [row["node"] for row in staying if row["status"] != READY],
        "health_pending": [row["node"] for row in ready if row["health_pending"]],
        "unhealthy": [row["node"] for row in present if row["unhealthy"] is not None],
        "unheard": [row["node"] for row in rows if row["role"] == "unheard"],
    }


def _round(past: RoundHistory) -> Dict:
    took_s = span_s(past.formed_ns, past.ended_ns) if past.ended_ns is not None else None
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
    silent_s = clean_s(lost.silent_s)
    return {"node": lost.node, "round": lost.round, "time_ns": lost.time_ns, "silent_s": silent_s}


def _timeouts(snapshot: Snapshot, nodes: Nodes) -> Dict:
    learned = snapshot.state.learned if snapshot.state else None
    asked = snapshot.timing.timeouts
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
    vitals = [
        record.vitals for record in nodes.participants if record.vitals and state and record.vitals.round == state.round
    ]
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
    return span_s(max(heard.written_ns for heard in snapshot.nodes), snapshot.now_ns)


__all__ = ["summarise"]

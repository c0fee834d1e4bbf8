"""Current status of a run as one dictionary, computed from a snapshot (pure).

`summarise` returns, ready for JSON (times ``_ns``: since the epoch; ``_s``: seconds; None: unknown):

=============== =======================================================================================================
key             meaning
=============== =======================================================================================================
schema, version "ftslurm/status", 1
run, directory  the run's name and path
made_ns         when the directory was read, by this machine's clock
status          "running", "hanging" (a rank hangs, its round is about to end), "ending" (a rank failed, the same),
                "forming" (the next round), "closed", "ended" (not closed, but their launcher has recorded that the
                agents have ended), "silent" (not closed, but all agents have been silent for long), "unknown" (no
                readable state)
phase, round    of the state: "forming", "running" or "closed"; the newest formed round, 0 for none
token           the state's generation; ``newest_token``: the newest in the directory, larger if that one is unusable
attempt         its name; ``attempts``: number of attempts, this one included; ``attempt_names``: theirs, in order
ended_ns        when the launcher recorded the end of this attempt's agents, by its clock
coordinator     {node, term, silent_s}: its node, number of lease changes, and silence as in ``nodes``
world           {nodes, ranks, min_nodes, max_nodes}: size of the round, and limits of the run spec
formed_ns       when the round formed, by the coordinator's clock; ``formed_s``: for how long it has run, by the
                difference to this machine's clock
restarts        {used, allowed}
steps           {first, last, reporting, of, step_s, compared, optimizer}: lowest and highest last training step of the
                ranks, number of ranks that report steps, of all, usual time of a step, number of ranks with compared
                paces; where no rank reports steps, {first, last, ranks} of the optimizers' steps, else null
closed          {outcome, reason, exit_code, time_ns, saved} when it is closed; `saved`: of a run that was stopped, at
                which step its ranks left and saved, or that no save is recorded
stop            {cause, reason, node, since_s, step, agreed, left_s}: a pending orderly stop: why, the node where the
                request arose, for how long it is requested, the step at which all ranks leave, whether that is agreed
                or proposed, and the time until the ranks are killed or the job ends
hang            {rank, node, what, step, acknowledged, stacks_collected, of, awaited}: the rank that hangs; whether the
                state contains the hang yet; number of nodes that have collected their ranks' stacks, and the others
failures        [{rank, node, message, step}]: failures in the round that still runs
forming         {ready, needed, busy, awaited, silent, health_pending, unhealthy, missing}: while a round forms: number
                of nodes ready, minimal number, nodes that still end the last round, whose record is older, that are
                silent, whose health is pending, that are unhealthy, and without a node record
rounds          the last rounds, newest first: {round, outcome, reason, nodes, ranks, formed_ns, ended_ns, took_s}
quiet_s         for how long no rank of the running round has printed; None: unknown
timeouts        {rounds, silent, detects_hangs, entries: [{what, name, seconds, source}]}: time-outs in force: number
                of rounds that they were learned from; number of ranks without a heartbeat yet; whether a rank that
                hangs is detected (null: not known yet, false: no rank has opted in); `what` is "heartbeat", "first
                heartbeat", "section" (`name`), "between sections" or "hang"; `seconds` None: off; `source` is
                "option", "learned" or "default"
nodes           in rank order: {node, role, ranks, first_rank, slots, status, round, steps, silent_s, silent, old,
                stuck, stacks_collected, why}. `role`: "rank" (participant of the round), "spare", "gone" (left or
                lost), "missing" (allocated, without a record), "earlier" (its record is from an earlier attempt).
                `steps`: [lowest, highest]. `silent_s`: lower bound of the time since its last write, by the file
                server's clock alone; `silent`: that is much longer than an agent takes between two writes, which is
                half a minute where the coordinator hears it by datagrams; `old`: two heartbeat intervals have passed,
                so that `steps` are of the past. `stuck`: how often its agent's loop was stuck. `stacks_collected`: it
                has collected its ranks' stacks. `why`: why it left, was lost, is leaving or is unhealthy. `unhealthy`:
                why it cannot take part in a round; `health_pending`: its health checks are running; `excluded`: why
                other nodes are preferred to it, since the run or before it; `health`: {status, checked_ns, set,
                findings: [{check, status, subject, text, advice, since_ns}]} of the last run of its health checks,
                times by its own clock
lost            nodes lost in this attempt: {node, round, time_ns, silent_s}
behind          ranks whose step is behind the others', the last first: {rank, node, step, usual}
slow            ranks that are persistently slower than the others, the slowest first: {rank, node, median_s, others_s}
late            ranks that arrive late at collectives (`ftslurm.monitor.lateness`), the latest first: {compared (number
                of ranks), ranks: [{rank, node, late_s, share (of the compared steps), step_s, steps, findings (texts
                of health checks on its node)}]}
newest_s        age of the newest node record, by the difference between this machine's clock and the file server's
clock_behind_s  lower bound of this machine's clock's delay behind the file server's
problems        files that cannot be used: {file, reason}
slurm           Slurm's data on the job at this time: {job_id, asked_ns, state, reason, left_s, end_ns, time_limit_s,
                limit_was_s (when the attempt began), held, nodes_out ({node: state and reason}), problem, lines (the
                same as text)}; None: it was not asked
time            accounting of the time until now, as text; None: unknown, or too slow to compute
=============== =======================================================================================================
"""

from __future__ import annotations

import os
from typing import Any

from ftslurm.monitor.timeouts import DEFAULTS, NOTHING, Spans, Timeouts, effective
from ftslurm.records.state import (
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
from ftslurm.status.ranks import behind, late, slow, steps
from ftslurm.status.snapshot import Snapshot
from ftslurm.status.stopping import outcome, pending_stop

Dict = dict[str, Any]

SCHEMA, VERSION = "ftslurm/status", 1
DEAD_TIMEOUTS = 2
DEAD_LEAST_S = 60.0


def summarise(snapshot: Snapshot) -> Dict:
    """Return the run's status; for the keys see this module's docstring."""
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
        "attempt_names": list(state.attempts) if state else [],
        "ended_ns": snapshot.ended_ns,
        "coordinator": _coordinator(state, nodes),
        "world": _world(state),
        "formed_ns": entry.formed_ns if entry and running else None,
        "formed_s": span_s(entry.formed_ns, snapshot.now_ns) if entry and running else None,
        "restarts": {"used": state.restarts_used, "allowed": state.max_restarts} if state else None,
        "steps": steps(ranks, state.world_size if state else 0),
        "closed": _closed(state),
        "stop": pending_stop(state, snapshot.now_ns),
        "hang": hang,
        "failures": failures,
        "forming": _forming(state, rows),
        "rounds": [_round(past) for past in reversed(state.history) if past.outcome != RUNNING] if state else [],
        "timeouts": _timeouts(snapshot, nodes),
        "quiet_s": _quiet_s(snapshot),
        "nodes": rows,
        "lost": [_lost(lost) for lost in state.lost] if state else [],
        "behind": behind(ranks, snapshot.timing.heartbeat_s),
        "slow": slow(ranks),
        "late": late(snapshot.arrivals, nodes.findings()),
        "newest_s": newest_s,
        "clock_behind_s": span_s(snapshot.now_ns + snapshot.took_ns, snapshot.server_ns),
        "slurm": None,
        "time": None,
        "problems": [{"file": each.file, "reason": each.reason} for each in snapshot.problems],
    }


def _status(snapshot: Snapshot, newest_s: float | None, hang: Dict | None, failures: list[Dict]) -> str:
    state = snapshot.state
    if state is None:
        return "unknown"
    if state.phase == CLOSED:
        return "closed"
    if snapshot.ended_ns is not None:
        return "ended"
    # Two clocks are compared here, so the limit is larger than a node's time-out.
    if newest_s is None or newest_s > max(DEAD_LEAST_S, DEAD_TIMEOUTS * snapshot.timing.node_timeout_s):
        return "silent"
    if state.phase == FORMING:
        return "forming"
    return "hanging" if hang else "ending" if failures else "running"


def _coordinator(state: State | None, nodes: Nodes) -> Dict | None:
    if state is None:
        return None
    lease = state.coordinator
    record = nodes.records.get(lease.node)
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
    return {
        "outcome": end.outcome,
        "reason": end.reason,
        "exit_code": end.exit_code,
        "time_ns": end.time_ns,
        "saved": outcome(state)[1],
    }


def _hang(state: State | None, nodes: Nodes) -> Dict | None:
    if state is None or state.phase != RUNNING:
        return None
    records = nodes.participants
    hangs = [record.hang for record in records if record.hang is not None and record.hang.round == state.round]
    hang: Hang | None = state.hang or next(iter(hangs), None)
    if hang is None:
        return None
    collected = {record.node for record in records if record.stacks_collected == state.round}
    return {
        "rank": hang.rank,
        "node": hang.node,
        "what": hang.what,
        "step": hang.step,
        "acknowledged": state.hang is not None,
        "stacks_collected": len(collected),
        "of": len(state.participants),
        "awaited": [part.node for part in state.participants if part.node not in collected],
    }


def _failures(state: State | None, nodes: Nodes) -> list[Dict]:
    if state is None or state.phase != RUNNING:
        return []
    found = [record.failure for record in nodes.participants if record.failure and record.failure.round == state.round]
    # In rank order, since the nodes' clocks cannot be compared.
    found.sort(key=lambda failure: failure.rank)
    return [{"rank": each.rank, "node": each.node, "message": each.message, "step": each.step} for each in found]


def _forming(state: State | None, rows: list[Dict]) -> Dict | None:
    if state is None or state.phase != FORMING:
        return None
    present = [row for row in rows if row["role"] in ("rank", "spare")]
    here = [row for row in present if row["why"] is None and row["status"] not in ("no record", "lost", "left")]
    staying = [row for row in here if not row["silent"]]
    ready = [row for row in staying if row["status"] == READY]
    return {
        "ready": sum(not row["health_pending"] for row in ready),
        "needed": state.min_nodes,
        "busy": [row["node"] for row in staying if row["status"] != READY and not row["old"]],
        "awaited": [row["node"] for row in staying if row["status"] != READY and row["old"]],
        "silent": [row["node"] for row in here if row["silent"]],
        "health_pending": [row["node"] for row in ready if row["health_pending"]],
        "unhealthy": [row["node"] for row in present if row["unhealthy"] is not None],
        "missing": [row["node"] for row in rows if row["role"] == "missing"],
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


def _quiet_s(snapshot: Snapshot) -> float | None:
    """Return for how long no rank has printed, by the file server's clock; None: unknown."""
    printed_ns = snapshot.printed_ns
    return None if printed_ns is None else span_s(printed_ns, snapshot.server_ns)


def _timeouts(snapshot: Snapshot, nodes: Nodes) -> Dict:
    learned = snapshot.state.learned if snapshot.state else None
    option = snapshot.timing.timeouts
    # Defaults are omitted if the options, which may override them, are unknown.
    in_force = effective(option or NOTHING, learned, NOTHING if option is None else DEFAULTS)
    known = learned.timeouts if learned else Spans()
    given = option or NOTHING
    state = snapshot.state
    vitals = [
        record.vitals for record in nodes.participants if record.vitals and state and record.vitals.round == state.round
    ]
    beating = any(each.longest.silent < len(each.ranks) for each in vitals)
    # The default holds for a rank once it has sent a heartbeat: it is no time-out before.
    heartbeat = _timeout("heartbeat", in_force.heartbeat_s, given.heartbeat_s, known.heartbeat_s)
    entries = [
        _timeout("first heartbeat", in_force.initial_s, given.initial_s, known.initial_s),
        heartbeat if heartbeat and (beating or heartbeat["source"] != "default") else None,
        _timeout("between sections", in_force.out_of_section_s, given.out_of_section_s, known.out_of_section_s),
        _timeout("hang", in_force.hang_s, given.hang_s, None),
    ]
    for name in sorted({*given.sections, *known.sections}):
        entries.append(_section(name, in_force, given, known.sections.get(name)))
    always = in_force.hang_s is not None or in_force.initial_s is not None
    opted_in = beating or any(each.longest.completed.sections for each in vitals)
    return {
        "rounds": learned.rounds if learned else 0,
        "silent": sum(each.longest.silent for each in vitals),
        "detects_hangs": always or opted_in if vitals else None,
        "entries": [entry for entry in entries if entry is not None],
    }


def _section(name: str, in_force: Timeouts, option: Timeouts, learned: float | None) -> Dict | None:
    entry = _timeout("section", in_force.sections.get(name), option.sections.get(name), learned)
    return entry and entry | {"name": name}


def _timeout(what: str, seconds: float | None, option: float | None, learned: float | None) -> Dict | None:
    if seconds is None and option is None:
        return None
    source = "option" if option is not None else "learned" if learned is not None else "default"
    return {"what": what, "name": None, "seconds": seconds, "source": source}


def _newest_s(snapshot: Snapshot) -> float | None:
    if snapshot.server_ns is None or not snapshot.nodes:
        return None
    return span_s(max(received.written_ns for received in snapshot.nodes), snapshot.now_ns)

"""Correction of all times in a snapshot of nodes whose clocks are far off; remaining error of each clock (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.dataclasses import replace
from ftslurm.health.node_health import Health
from ftslurm.report.clocks import UNKNOWN, Clocks, Reading
from ftslurm.report.facts import (
    Clock,
    Failure,
    History,
    NodeRecordFacts,
    RankError,
    RoundFiles,
    RoundNode,
    Snapshot,
    State,
)

SKEWED_NS = 500_000_000
"""Offset from which all times of a clock are corrected, so that times and durations in the report make sense."""


def aligned(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with its ``clocks``, and with corrected times of nodes whose clocks are far off.

    The reference is the median of the nodes' clocks: where they agree with each other, nothing changes, whatever the
    offset of the server's clock.
    """
    records = {record.node: record.clock for record in snapshot.nodes if record.clock is not None}
    readings: dict[tuple[int, str], Reading] = {}
    started: dict[tuple[int, str], int] = {}
    ahead: dict[str, int] = {}
    moved_ns: dict[tuple[int, str], int] = {}
    rounds = []
    for files in snapshot.rounds:
        clocks = {node.node: node.clock or records.get(node.node) for node in files.nodes}
        for rank_error in files.errors.values():
            if rank_error.node is not None:
                clocks.setdefault(rank_error.node, records.get(rank_error.node))
        shifts = _shifts({node: clock for node, clock in clocks.items() if clock is not None})
        far = {node: ns for node, ns in shifts.items() if abs(ns) >= SKEWED_NS}
        ahead |= {node: -ns for node, ns in far.items()}
        moved_ns |= {(files.number, node): ns for node, ns in far.items()}
        for node, ns in shifts.items():
            clock = clocks[node]
            assert clock is not None
            moved = far.get(node, 0)
            readings[files.number, node] = Reading(ns - moved, clock.error_ns, clock.at_ns + moved, known=True)
        corrected = _shifted_files(files, far) if far else files
        for round_node in corrected.nodes:
            if round_node.started_ns is not None:
                rest = readings.get((files.number, round_node.node), UNKNOWN).shift_ns
                started[files.number, round_node.node] = round_node.started_ns + rest
        rounds.append(corrected)
    far = {node: ns for node, ns in _shifts(records).items() if abs(ns) >= SKEWED_NS}
    ahead |= {node: -ns for node, ns in far.items()}
    snapshot = replace(snapshot, clocks=Clocks(readings, started, ahead, moved_ns), rounds=tuple(rounds))
    if not far:
        return snapshot
    nodes = tuple(
        _shifted_word(record, far[record.node]) if record.node in far else record for record in snapshot.nodes
    )
    state = None if snapshot.state is None else _shifted_state(snapshot.state, far)
    return replace(snapshot, nodes=nodes, state=state)


def corrected(snapshot: Snapshot, files: RoundFiles, error: RankError, node: str) -> RankError:
    """Return an error record that was read later with the corrections of `aligned`; ``node`` is its rank's node."""
    return _shifted_error(error, snapshot.clocks.moved_ns.get((files.number, error.node or node), 0))


def _shifts(clocks: Mapping[str, Clock]) -> dict[str, int]:
    offsets = sorted(clock.offset_ns for clock in clocks.values())
    if not offsets:
        return {}
    # With an even number, the one of the two medians that is closer to the server.
    base = min(offsets[(len(offsets) - 1) // 2], offsets[len(offsets) // 2], key=abs)
    return {node: clock.offset_ns - base for node, clock in clocks.items()}


def _plus(time_ns: int | None, ns: int) -> int | None:
    return None if time_ns is None else time_ns + ns


def _shifted_files(files: RoundFiles, far: Mapping[str, int]) -> RoundFiles:
    nodes = tuple(_shifted_node(node, far[node.node]) if node.node in far else node for node in files.nodes)
    home = {worker.rank: node.node for node in files.nodes for worker in node.workers}
    errors = {rank: _shifted_error(e, far.get(e.node or home.get(rank, ""), 0)) for rank, e in files.errors.items()}
    return replace(files, nodes=nodes, errors=errors)


def _shifted_error(error: RankError, ns: int) -> RankError:
    return replace(error, time_ns=_plus(error.time_ns, ns)) if ns else error


def _shifted_node(node: RoundNode, ns: int) -> RoundNode:
    workers = []
    for worker in node.workers:
        progress = worker.progress
        if progress is not None:
            progress = progress._replace(first_ns=_plus(progress.first_ns, ns), last_ns=_plus(progress.last_ns, ns))
        started_ns, ended_ns = _plus(worker.started_ns, ns), _plus(worker.ended_ns, ns)
        error = worker.error
        if error is not None:
            error = error._replace(time_ns=_plus(error.time_ns, ns))
        workers.append(worker._replace(started_ns=started_ns, ended_ns=ended_ns, progress=progress, error=error))
    return node._replace(
        started_ns=_plus(node.started_ns, ns),
        ended_ns=_plus(node.ended_ns, ns),
        stop_ns=_plus(node.stop_ns, ns),
        workers=tuple(workers),
        health=_shifted_health(node.health, ns),
    )


def _shifted_health(health: Health | None, ns: int) -> Health | None:
    if health is None:
        return None
    findings = tuple(replace(each, since_ns=each.since_ns + ns) for each in health.findings)
    return replace(health, checked_ns=health.checked_ns + ns, findings=findings)


def _shifted_word(record: NodeRecordFacts, ns: int) -> NodeRecordFacts:
    failure = _shifted_failure(record.failure, {record.node: ns})
    return record._replace(
        time_ns=_plus(record.time_ns, ns), failure=failure, health=_shifted_health(record.health, ns)
    )


def _shifted_failure(failure: Failure | None, far: Mapping[str, int]) -> Failure | None:
    if failure is None or failure.node not in far:
        return failure
    ns = far[failure.node]
    return replace(failure, time_ns=_plus(failure.time_ns, ns), since_ns=_plus(failure.since_ns, ns))


def _shifted_state(state: State, far: Mapping[str, int]) -> State:
    # The state's times are its coordinator's, assumed to be the same one throughout.
    ns = far.get(state.coordinator or "", 0)
    closed = state.closed
    return replace(
        state,
        history=tuple(_shifted_history(entry, ns, far) for entry in state.history),
        lost=tuple(replace(lost, time_ns=_plus(lost.time_ns, ns)) for lost in state.lost),
        closed=None if closed is None else replace(closed, time_ns=_plus(closed.time_ns, ns)),
    )


def _shifted_history(entry: History, ns: int, far: Mapping[str, int]) -> History:
    failure = _shifted_failure(entry.failure, far)
    return replace(entry, formed_ns=_plus(entry.formed_ns, ns), ended_ns=_plus(entry.ended_ns, ns), failure=failure)

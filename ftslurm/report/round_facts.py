"""A round's outcome, nodes, size and times, as recorded, else according to all its files (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.report.facts import UNNAMED, History, RoundFiles, Snapshot
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.lost_nodes import WORLD_LIMIT


def outcome_of(
    snapshot: Snapshot, files: RoundFiles, entry: History | None, found: Sequence[FailedWorker], *, newest: bool
) -> str:
    """Return the recorded outcome; where none was recorded, the outcome according to all files."""
    if entry is not None and entry.outcome not in ("running", "unknown"):
        return entry.outcome
    closed = snapshot.state.closed if snapshot.state else None
    if newest and closed is not None and closed.outcome == "stopped":
        return "stopped"
    if found:
        return "failed"
    outcomes = {n.outcome for n in files.nodes}
    if outcomes == {"succeeded"} and _all_there(files, entry):
        return "succeeded"
    if newest and closed is None:
        return "stopped" if outcomes == {"stopped"} else "running"
    return closed.outcome if newest and closed is not None else "unknown"


def _all_there(files: RoundFiles, entry: History | None) -> bool:
    world = world_size_of(files, entry)
    return world is None or world == len({w.rank for n in files.nodes for w in n.workers})


def attempt_of(files: RoundFiles, entry: History | None) -> str | None:
    """Return the name of the attempt that formed the round."""
    if entry is not None and entry.attempt:
        return entry.attempt
    return next((n.attempt for n in files.nodes if n.attempt), None)


def nodes_of(files: RoundFiles, entry: History | None) -> tuple[str, ...]:
    """Return the nodes of the round."""
    if entry is not None and entry.nodes:
        return entry.nodes
    return tuple(n.node for n in files.nodes if n.node != UNNAMED)


def world_size_of(files: RoundFiles, entry: History | None) -> int | None:
    """Return the number of ranks, as far as one that can be true is recorded."""
    sizes = [entry.world_size if entry else None] + [n.world_size for n in files.nodes]
    return next((s for s in sizes if s is not None and 0 < s <= WORLD_LIMIT), None)


def started_ns(files: RoundFiles, entry: History | None) -> int | None:
    """Return when the round was formed, else when its first node began."""
    if entry is not None and entry.formed_ns is not None:
        return entry.formed_ns
    return min((n.started_ns for n in files.nodes if n.started_ns is not None), default=None)


def ended_ns(files: RoundFiles, entry: History | None, outcome: str) -> int | None:
    """Return when the round ended; None: it runs, or that is not known."""
    if entry is not None and entry.ended_ns is not None:
        return entry.ended_ns
    if outcome == "running":
        return None
    return max((n.ended_ns for n in files.nodes if n.ended_ns is not None), default=None)

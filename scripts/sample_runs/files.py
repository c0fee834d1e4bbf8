"""Files of a run built with `sample_runs.builder`, each with the times of its node's clock."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ftslurm.failures.record_summary import record_summary
from ftslurm.records.attempt import Attempt, Run
from ftslurm.records.codec import record_of, to_json, write_record
from ftslurm.records.error import error_file
from ftslurm.records.node import NodeRecord
from ftslurm.records.round import RoundRecord
from ftslurm.records.state import State
from ftslurm.sharedfs.cell import write_generation
from sample_runs.contents import RunContents

Dict = dict[str, Any]


def write_run(run: RunContents) -> Path:
    """Write the directory of a run, and return its path."""
    owner = {"user": "ann", "uid": os.getuid(), "ftslurm": "0.1.0"}
    identity = {"run_id": run.run_id, "created_ns": run.began_ns}
    _put(run.path / "run.json", _encoded(run, Run, identity | owner))
    for attempt in run.attempts:
        _put(run.path / "attempts" / attempt["attempt"] / "attempt.json", _encoded(run, Attempt, attempt))
    _write_state(run, 7)
    for position, name in enumerate(run.node_names):
        record = _by_clock_of(run, name, _node_record(run, name, position))
        _put(run.path / "nodes" / f"{name}.json", _encoded(run, NodeRecord, record))
    for (number, name), node in run.round_nodes.items():
        content = _with_summaries(run, number, node) if run.summaries else node
        _put(
            _round_path(run, number) / "nodes" / f"{name}.json",
            _encoded(run, RoundRecord, _by_clock_of(run, name, content)),
        )
        for worker in node["workers"]:
            _rank_path(run, number, worker["rank"]).mkdir(parents=True, exist_ok=True)
    for (number, rank), error in run.errors.items():
        content = error_file(error)
        by_clock = _shifted(run, content, error.node or "") if run.clocks else content
        _put(_rank_path(run, number, rank) / "error.json", json.dumps(by_clock).encode())
    for (number, rank, stream), text in run.outputs.items():
        name = {"stacks": "stacks.txt", "collectives": "collectives.json"}.get(stream, f"{stream}.log")
        folder = _log_path(run, number, rank) if name.endswith(".log") else _rank_path(run, number, rank)
        (folder / name).write_text(text)
        if (written := run.written_ns.get((number, rank, stream))) is not None:
            os.utime(folder / name, ns=(written, written))
    return run.path


def _with_summaries(run: RunContents, number: int, node: Dict) -> Dict:
    records = {w["rank"]: run.errors[number, w["rank"]] for w in node["workers"] if (number, w["rank"]) in run.errors}
    summaries = {rank: to_json(record_summary(record)) for rank, record in records.items()}
    return node | {"workers": [{**worker, "error": summaries.get(worker["rank"])} for worker in node["workers"]]}


def _by_clock_of(run: RunContents, name: str, value: Dict) -> Dict:
    """Return a node's record with the times of its clock, and the clock's measured offset."""
    ahead_ns, error_ns = run.clocks.get(name, (0, None))
    shifted: Dict = _shifted(run, value, name)
    if error_ns is None:
        return shifted
    return shifted | {"clock": {"offset_ns": -ahead_ns, "error_ns": error_ns, "at_ns": run.now_ns + ahead_ns}}


def _shifted(run: RunContents, value: Any, name: str) -> Any:
    ahead_ns = run.clocks.get(name, (0, None))[0]
    if not run.clocks:
        return value
    if isinstance(value, list):
        return [_shifted(run, each, name) for each in value]
    if not isinstance(value, dict):
        return value
    shifted = {}
    for key, each in value.items():
        if key == "failure" and each is not None:
            shifted[key] = _shifted(run, each, each["node"])
        elif key.endswith("_ns") and each is not None:
            shifted[key] = each + ahead_ns
        else:
            shifted[key] = _shifted(run, each, name)
    return shifted


def _write_state(run: RunContents, token: int) -> None:
    current = run.history[-1] if run.history else None
    state = {
        "run_id": run.run_id,
        "attempt": run.attempts[-1]["attempt"],
        "attempts": [a["attempt"] for a in run.attempts],
        "expected": list(run.node_names),
        "min_nodes": len(run.node_names),
        "max_nodes": len(run.node_names),
        "max_restarts": run.max_restarts,
        "restarts_used": max(0, len(run.history) - 1),
        "coordinator": {"node": "n1", "incarnation": "n1-1", "term": 1},
        "phase": "closed" if run.closed else "running" if current else "forming",
        "round": current["round"] if current else 0,
        "participants": [
            {
                "node": name,
                "incarnation": f"{name}-1",
                "slots": run.nproc,
                "first_rank": i * run.nproc,
                "group_rank": i,
            }
            for i, name in enumerate(current["nodes"] if current else [])
        ],
        "world_size": current["world_size"] if current else 0,
        "master": None,
        "lost": run.lost,
        "history": run.history,
        "closed": run.closed,
    }
    path = run.path / "state" / f"{token:012d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(write_generation(_encoded(run, State, _shifted(run, state, "n1")), token, "00ff"))
    (path.parent / "current").write_text(str(token))


def _node_record(run: RunContents, name: str, position: int) -> Dict:
    number = len(run.history)
    failure = run.history[-1]["failure"] if run.history else None
    return {
        "node": name,
        "incarnation": f"{name}-1",
        "counter": 99,
        "attempt": run.attempts[-1]["attempt"],
        "position": position,
        "slots": run.nproc,
        "host": name,
        "pid": 100,
        "address": name,
        "port": 29400,
        "status": run.status[name],
        "round": number,
        "failure": failure if failure is not None and failure["node"] == name else None,
        "reason": run.reasons.get(name),
        "stop_signal": None,
        "token": 7,
        "time_ns": run.last_record_ns.get(name, run.now_ns),
        "vitals": _vitals(run, name),
        "health": run.health_of(name),
        **run.exclusions.get(name, {}),
    }


def _vitals(run: RunContents, name: str) -> Dict | None:
    """Return the vitals of a node whose ranks run and have reported steps."""
    newest = run.round_nodes.get((len(run.history), name))
    if newest is None or newest["ended_ns"] is not None:
        return None
    ranks = [
        {"rank": worker["rank"], "step": worker["progress"]["last_step"], "intervals": worker.get("pace") or []}
        for worker in newest["workers"]
        if worker.get("progress")
    ]
    longest = {"silent": len(ranks)}
    return {"round": newest["round"], "longest": longest, "ranks": ranks, "stuck": 0} if ranks else None


def _round_path(run: RunContents, number: int) -> Path:
    return run.path / "rounds" / f"{number:06d}"


def _rank_path(run: RunContents, number: int, rank: int) -> Path:
    return _round_path(run, number) / "ranks" / f"{rank:05d}"


def _log_path(run: RunContents, number: int, rank: int) -> Path:
    attempt = run.history[number - 1]["attempt"]
    logs = next((a["logs"] for a in run.attempts if a["attempt"] == attempt), None)
    if logs is None:
        return _rank_path(run, number, rank)
    path = Path(logs) / "rounds" / f"{number:06d}" / "ranks" / f"{rank:05d}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _encoded(run: RunContents, cls: Any, value: Dict) -> bytes:
    """Return a record as agents encode it."""
    if run.damaged:
        return json.dumps({"schema": cls.SCHEMA, "version": cls.VERSION, **value}).encode()
    return write_record(record_of(cls, value, f"a test's {cls.__name__}"))


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)

"""Single records of agents and workers for a run built with `sample_runs.builder` (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftslurm.monitor.stacks_file import Stacks, encode
from ftslurm.records.error import ErrorRecord, ExceptionRecord, Frame

Dict = dict[str, Any]
Frames = tuple[tuple[str, int, str, str | None], ...]

SECOND_NS = 10**9


def attempt_record(
    job_id: str, number: int, node_names: list[str], max_restarts: int, created_ns: int, logs: str | None, cwd: str
) -> Dict:
    """Return the record of an attempt; `number` is Slurm's restart count."""
    return {
        "schema": "ftslurm/attempt",
        "version": 1,
        "attempt": f"{job_id}.{number}",
        "created_ns": created_ns,
        "job_id": job_id,
        "restart_count": number,
        "node_list": node_names,
        "options": {"max_restarts": max_restarts, "exclude_after": 2},
        "command": ["train.py"],
        "cwd": cwd,
        "python": "/usr/bin/python3",
        "logs": logs,
    }


def worker_entry(rank: int, local_rank: int, started_ns: int) -> Dict:
    """Return the entry of a running worker in its node's round record."""
    return {
        "rank": rank,
        "local_rank": local_rank,
        "pid": 1000 + rank,
        "started_ns": started_ns,
        "ended_ns": None,
        "exit_code": None,
        "signal": None,
        "core_dumped": False,
        "stopped_by_ftslurm": False,
        "stop_signal": None,
        "progress": None,
        "failed": False,
    }


def round_record(
    round_: int,
    attempt: str,
    node: str,
    group_rank: int,
    nproc: int,
    master: str,
    world_size: int,
    started_ns: int,
    health: Dict | None,
) -> Dict:
    """Return a node's record of a round whose workers have just started."""
    return {
        "schema": "ftslurm/round-node",
        "version": 1,
        "round": round_,
        "attempt": attempt,
        "node": node,
        "incarnation": f"{node}-1",
        "group_rank": group_rank,
        "world_size": world_size,
        "host": node,
        "agent_pid": 100,
        "master": {"address": master, "port": 29500 + round_},
        "started_ns": started_ns,
        "ended_ns": None,
        "outcome": "running",
        "stop_reason": None,
        "health": health,
        "workers": [worker_entry(group_rank * nproc + i, i, started_ns) for i in range(nproc)],
    }


def progress(first_step: int, first_ns: int, last_step: int, last_ns: int) -> Dict:
    """Return a worker's progress."""
    return {"first_step": first_step, "first_ns": first_ns, "last_step": last_step, "last_ns": last_ns}


def stacks_text(
    rank: int, local_rank: int, node: str, time_ns: int, place: Sequence[tuple[str, int, str]] | str, why: str | None
) -> str:
    """Return a rank's stacks.txt; see `RunBuilder.hang`."""
    if isinstance(place, str):
        found = Stacks(local_rank, problem=place, facts=(("State", "?"),))
    else:
        calls = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in reversed(place))
        calls = calls or "  <no Python frame>\n"
        found = Stacks(local_rank, f"Current thread 0x00007f4f70cb3b80 (most recent call first):\n{calls}")
    return encode(found, rank=rank, node=node, time_ns=time_ns, why=why).decode()


def error_record(
    run_id: str,
    node: Dict,
    failure: Dict,
    exception: BaseException | None,
    frames: Frames,
    module: str | None,
) -> ErrorRecord:
    """Return a worker's error record; ``node`` is its node's round record, ``failure`` the summary of its failure."""
    raised = None if exception is None else _exception(exception, frames, module)
    names = ("time_ns", "kind", "round", "node", "rank", "local_rank", "exit_code", "signal", "step")
    return ErrorRecord(
        message=failure["message"] if exception is None else f"{type(exception).__name__}: {exception}",
        traceback="" if raised is None else _traceback(raised),
        run_id=run_id,
        attempt=node["attempt"],
        host=node["host"],
        world_size=node["world_size"],
        pid=1000 + failure["rank"],
        argv=("train.py", "--lr", "0.1"),
        exception=raised,
        **{name: failure[name] for name in names},
    )


def _exception(exception: BaseException, frames: Frames, module: str | None) -> ExceptionRecord:
    cause, context = exception.__cause__, exception.__context__
    hidden = context is not None and cause is None and exception.__suppress_context__
    return ExceptionRecord(
        type=type(exception).__name__,
        module=module if module is not None else type(exception).__module__,
        message=str(exception),
        frames=tuple(Frame(*frame) for frame in frames),
        cause=None if cause is None else _exception(cause, frames, None),
        context=None if context is None or exception.__suppress_context__ else _exception(context, frames, None),
        hidden=f"{type(context).__name__}: {context}" if hidden else "",
    )


def _traceback(exception: ExceptionRecord) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in exception.frames:
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        lines += [f"    {frame.source}"] if frame.source else []
    name = exception.type if exception.module == "builtins" else f"{exception.module}.{exception.type}"
    return "\n".join([*lines, f"{name}: {exception.message}", ""])


def one_line(exception: BaseException) -> str:
    """Return an exception as a failure's message."""
    return f"{type(exception).__name__}: {exception}".split("\n", 1)[0]

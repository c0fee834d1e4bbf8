"""Single records of agents and workers for a run built with `ftslurm.testing.runs` (pure)."""

from __future__ import annotations

from typing import Any

Dict = dict[str, Any]
Frames = tuple[tuple[str, int, str, str | None], ...]

SECOND_NS = 10**9


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


def error_record(
    run_id: str,
    node: Dict,
    failure: Dict,
    exception: BaseException | None,
    frames: Frames,
    module: str | None,
) -> Dict:
    """Return a worker's error record; ``node`` is its node's round record, ``failure`` the summary of its failure."""
    exc = None if exception is None else _exc(exception, frames, module)
    return {
        "message": {
            "message": failure["message"] if exception is None else f"{exc['type']}: {exception}" if exc else "",
            "extraInfo": {
                "py_callstack": "" if exc is None else _traceback(exc),
                "timestamp": str(failure["time_ns"] // SECOND_NS),
            },
        },
        "ftslurm": {
            "schema": "ftslurm/error",
            "version": 1,
            "run_id": run_id,
            "attempt": node["attempt"],
            "host": node["host"],
            "world_size": node["world_size"],
            "pid": 1000 + failure["rank"],
            "argv": ["train.py", "--lr", "0.1"],
            "exception": exc,
            "stacks": None,
            **{k: v for k, v in failure.items() if k != "message"},
        },
    }


def _exc(exception: BaseException, frames: Frames, module: str | None) -> Dict:
    cause, context = exception.__cause__, exception.__context__
    return {
        "type": type(exception).__name__,
        "module": module if module is not None else type(exception).__module__,
        "message": str(exception),
        "notes": [],
        "frames": [{"file": f, "line": n, "function": fn, "source": s} for f, n, fn, s in frames],
        "cause": None if cause is None else _exc(cause, frames, None),
        "context": None if context is None or exception.__suppress_context__ else _exc(context, frames, None),
        "exceptions": [],
    }


def _traceback(exc: Dict) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in exc["frames"]:
        lines.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}')
        lines += [f"    {frame['source']}"] if frame["source"] else []
    name = exc["type"] if exc["module"] == "builtins" else f"{exc['module']}.{exc['type']}"
    return "\n".join([*lines, f"{name}: {exc['message']}", ""])


def one_line(exception: BaseException) -> str:
    """Return an exception as a failure's message."""
    return f"{type(exception).__name__}: {exception}".split("\n", 1)[0]

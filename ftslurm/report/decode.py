"""From untrusted JSON to facts: what the files of a run directory say is checked here and nowhere else.

Every ``*_from`` function takes a decoded JSON object and returns a fact, or raises `Malformed` with one
line that says what was expected and what was found. Fields that only decorate the report are dropped
silently when they have the wrong type: a bad ``step`` must not cost the traceback beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.report.facts import (
    Attempt,
    Closed,
    Exc,
    Failure,
    Frame,
    History,
    Lost,
    NodeWord,
    Participant,
    Progress,
    RankError,
    RoundNode,
    Run,
    State,
    Worker,
)

KNOWN_VERSION = 1
MAX_CHAIN = 10
_INT_LIMIT = 2**63

Json = Mapping[str, Any]


class Malformed(ValueError):
    """A file's content is not what its format says; the text is for the user."""


def check_schema(value: object, schema: str) -> Json:
    """Return ``value`` as an object of ``schema`` in a version this ftslurm knows, or raise `Malformed`."""
    if not isinstance(value, dict):
        raise Malformed(f"expected a JSON object, found {type(value).__name__}")
    if value.get("schema") != schema:
        raise Malformed(f"expected schema {schema!r}, found {_brief(value.get('schema'))}")
    version = _int(value, "version")
    if version is None:
        raise Malformed(f"expected a version number, found {_brief(value.get('version'))}")
    if version > KNOWN_VERSION:
        raise Malformed(f"made by a newer ftslurm (format version {version}, known is {KNOWN_VERSION})")
    return value


def run_from(o: Json) -> Run:
    """``run.json``."""
    return Run(_need_str(o, "run_id"), _str(o, "user"), _int(o, "created_ns"), _str(o, "ftslurm"))


def attempt_from(o: Json) -> Attempt:
    """``attempts/<attempt>/attempt.json``."""
    options = o.get("options")
    return Attempt(
        attempt=_need_str(o, "attempt"),
        job_id=_str(o, "job_id"),
        created_ns=_int(o, "created_ns"),
        cwd=_str(o, "cwd"),
        command=_strings(o, "command"),
        logs=_str(o, "logs"),
        nproc=_str(options, "nproc_per_node") if isinstance(options, dict) else None,
    )


def node_word_from(o: Json) -> NodeWord:
    """``nodes/<node>.json``."""
    return NodeWord(
        node=_need_str(o, "node"),
        attempt=_str(o, "attempt"),
        host=_str(o, "host"),
        status=_str(o, "status") or "unknown",
        round=_int(o, "round") or 0,
        failure=_failure(o.get("failure")),
        reason=_str(o, "reason"),
        time_ns=_int(o, "time_ns"),
    )


def round_node_from(o: Json) -> RoundNode:
    """``rounds/<round>/nodes/<node>.json``."""
    return RoundNode(
        round=_need_int(o, "round"),
        attempt=_str(o, "attempt"),
        node=_need_str(o, "node"),
        host=_str(o, "host"),
        world_size=_int(o, "world_size"),
        started_ns=_int(o, "started_ns"),
        ended_ns=_int(o, "ended_ns"),
        outcome=_str(o, "outcome") or "unknown",
        stop_reason=_str(o, "stop_reason"),
        stop_ns=_int(o, "stop_ns"),
        workers=tuple(_worker(w) for w in _objects(o, "workers")),
    )


def state_from(o: Json, token: int) -> State:
    """The payload of ``state/<token>.json``."""
    return State(
        token=token,
        run_id=_str(o, "run_id"),
        attempt=_str(o, "attempt"),
        attempts=_strings(o, "attempts"),
        min_nodes=_int(o, "min_nodes"),
        max_restarts=_int(o, "max_restarts"),
        restarts_used=_int(o, "restarts_used"),
        phase=_str(o, "phase") or "unknown",
        round=_int(o, "round") or 0,
        participants=tuple(
            Participant(_need_str(p, "node"), _need_int(p, "first_rank"), _int(p, "slots") or 0)
            for p in _objects(o, "participants")
        ),
        lost=tuple(
            Lost(_need_str(x, "node"), _int(x, "round") or 0, _int(x, "time_ns"), _float(x, "silent_s"))
            for x in _objects(o, "lost")
        ),
        history=tuple(_history(h) for h in _objects(o, "history")),
        closed=_closed(o.get("closed")),
    )


def rank_error_from(value: object, rank: int) -> RankError:
    """``error.json``: ours, or what torch's ``@record`` alone writes (then only the message is known)."""
    if not isinstance(value, dict):
        raise Malformed(f"expected a JSON object, found {type(value).__name__}")
    ours: Json = {}
    if "ftslurm" in value:
        ours = check_schema(value["ftslurm"], "ftslurm/error")
    outer = value.get("message")
    if not isinstance(outer, (dict, str)):
        raise Malformed(f"expected a message, found {_brief(outer)}")
    message = outer if isinstance(outer, str) else _str(outer, "message") or ""
    extra = outer.get("extraInfo") if isinstance(outer, dict) else None
    extra = extra if isinstance(extra, dict) else {}
    time_ns = _int(ours, "time_ns")
    return RankError(
        rank=rank,
        node=_str(ours, "node"),
        host=_str(ours, "host"),
        local_rank=_int(ours, "local_rank"),
        time_ns=time_ns if time_ns is not None else _torch_time_ns(extra.get("timestamp")),
        kind=_str(ours, "kind") or "exception",
        exit_code=_int(ours, "exit_code"),
        signal=_str(ours, "signal"),
        step=_int(ours, "step"),
        pid=_int(ours, "pid"),
        argv=_strings(ours, "argv"),
        message=message,
        traceback=_str(extra, "py_callstack") or None,
        exception=_exc(ours.get("exception"), MAX_CHAIN),
        stacks=_str(ours, "stacks") or None,
    )


def _torch_time_ns(stamp: object) -> int | None:
    text = str(stamp) if isinstance(stamp, (str, int)) else ""
    # torch writes whole seconds as decimal text; anything else is no time.
    return int(text) * 10**9 if text.isascii() and text.isdigit() and len(text) < 11 else None


def _exc(value: object, depth: int) -> Exc | None:
    if not isinstance(value, dict) or depth == 0:
        return None
    frames = tuple(
        Frame(_str(f, "file") or "?", _int(f, "line") or 0, _str(f, "function") or "?", _str(f, "source"))
        for f in _objects(value, "frames")
    )
    link = _exc(value.get("cause"), depth - 1) or _exc(value.get("context"), depth - 1)
    name = _str(value, "type") or "Exception"
    return Exc(name, _str(value, "module") or "", _str(value, "message") or "", frames, link)


def _worker(o: Json) -> Worker:
    progress = o.get("progress")
    return Worker(
        rank=_need_int(o, "rank"),
        local_rank=_int(o, "local_rank"),
        pid=_int(o, "pid"),
        started_ns=_int(o, "started_ns"),
        ended_ns=_int(o, "ended_ns"),
        exit_code=_int(o, "exit_code"),
        signal=_str(o, "signal"),
        core_dumped=o.get("core_dumped") is True,
        stopped_by_ftslurm=o.get("stopped_by_ftslurm") is True,
        stop_signal=_str(o, "stop_signal"),
        progress=_progress(progress) if isinstance(progress, dict) else None,
        failed=o.get("failed") is True,
    )


def _progress(o: Json) -> Progress | None:
    first, last = _int(o, "first_step"), _int(o, "last_step")
    if first is None or last is None:
        return None
    return Progress(first, _int(o, "first_ns"), last, _int(o, "last_ns"))


def _failure(value: object) -> Failure | None:
    if not isinstance(value, dict):
        return None
    rank, node = _int(value, "rank"), _str(value, "node")
    if rank is None or node is None:
        return None
    return Failure(
        round=_int(value, "round") or 0,
        node=node,
        rank=rank,
        local_rank=_int(value, "local_rank"),
        time_ns=_int(value, "time_ns"),
        kind=_str(value, "kind") or "exit",
        exit_code=_int(value, "exit_code"),
        signal=_str(value, "signal"),
        message=_str(value, "message") or "",
        step=_int(value, "step"),
    )


def _history(o: Json) -> History:
    return History(
        round=_need_int(o, "round"),
        attempt=_str(o, "attempt"),
        nodes=_strings(o, "nodes"),
        world_size=_int(o, "world_size"),
        formed_ns=_int(o, "formed_ns"),
        ended_ns=_int(o, "ended_ns"),
        outcome=_str(o, "outcome") or "unknown",
        reason=_str(o, "reason"),
        failure=_failure(o.get("failure")),
    )


def _closed(value: object) -> Closed | None:
    if not isinstance(value, dict):
        return None
    return Closed(
        outcome=_str(value, "outcome") or "unknown",
        reason=_str(value, "reason") or "",
        exit_code=_exit_code(value),
        time_ns=_int(value, "time_ns"),
    )


def _exit_code(o: Json) -> int:
    code = _int(o, "exit_code")
    # A verdict that cannot be read must not turn into success.
    return code if code is not None and 0 <= code <= 255 else 1


def _int(o: Json, key: str) -> int | None:
    value = o.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT_LIMIT <= value < _INT_LIMIT:
        return None
    return value


def _float(o: Json, key: str) -> float | None:
    value = o.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
        return None
    return float(value)


def _str(o: Json, key: str) -> str | None:
    value = o.get(key)
    return value if isinstance(value, str) else None


def _need_int(o: Json, key: str) -> int:
    value = _int(o, key)
    if value is None:
        raise Malformed(f"{key}: expected a number, found {_brief(o.get(key))}")
    return value


def _need_str(o: Json, key: str) -> str:
    value = _str(o, key)
    if value is None:
        raise Malformed(f"{key}: expected text, found {_brief(o.get(key))}")
    return value


def _objects(o: Json, key: str) -> list[Json]:
    value = o.get(key)
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []


def _strings(o: Json, key: str) -> tuple[str, ...]:
    value = o.get(key)
    return tuple(x for x in value if isinstance(x, str)) if isinstance(value, list) else ()


def _brief(value: object) -> str:
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."

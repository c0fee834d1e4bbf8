"""From untrusted JSON to facts: the only place that validates the contents of a run directory's files.

Every ``*_from`` function takes a decoded JSON object and returns a fact, or raises `Malformed` with one
line with what was expected and what was found. Fields that only decorate the report are dropped
silently when they have the wrong type: a bad ``step`` must not cost the traceback beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import itemgetter
from typing import Any

from ftslurm.failures.reason import is_bare_exit, reason_path
from ftslurm.health.node_health import KEPT, Health, HealthFinding
from ftslurm.health.verdict import SEVERITY, worst
from ftslurm.monitor.heartbeat_page import EDGES_S
from ftslurm.report.facts import (
    Attempt,
    Clock,
    Closed,
    Defect,
    Exc,
    Failure,
    Frame,
    History,
    LostNode,
    NodeRecordFacts,
    Participant,
    Predecessor,
    Progress,
    RankError,
    RecordSummary,
    RoundNode,
    Run,
    State,
    StepEnd,
    Worker,
)
from ftslurm.report.fields import (
    INT_LIMIT,
    Json,
    Malformed,
    brief,
    integer,
    need_integer,
    need_text,
    number,
    objects,
    text,
    texts,
)
from ftslurm.report.host_resources import cuda_from, host_resources_from, sections_from

_Part = tuple[str, "str | None", str, "str | None", str]  # kind, type, module, where and signature of `RecordSummary`

KNOWN_VERSION = 1
MAX_CHAIN = 10
_YEAR_NS = 366 * 86_400 * 10**9
MAX_MEMBERS = 16  # of an exception group
MAX_TEXT = 500  # characters of a health check's text
MAX_SUMMARIES = 4096  # ranks of a node
_FRAME_VALUES = itemgetter("file", "line", "function", "source")
_FRAMES_KEPT = 4096
_frames: dict[tuple[object, ...], Frame] = {}
_WORKER: Json = {
    "rank": None, "local_rank": None, "pid": None, "started_ns": None, "ended_ns": None, "exit_code": None,
    "signal": None, "core_dumped": False, "stopped_by_ftslurm": False, "stop_signal": None, "progress": None,
    "failed": False, "pace": (), "error": None,
}  # fmt: skip
"""Default values of a worker's entry, in the order of `Worker`."""
_INT, _TEXT, _TRUTH, _OBJECT = (int, type(None)), (str, type(None)), (bool,), (dict, type(None))
_USUAL_TYPES = frozenset(
    product(
        *((int,), (int,), (int,), (int,), _INT, _INT),
        *(_TEXT, _TRUTH, _TRUTH, _TEXT, _OBJECT),
        *(_TRUTH, (list, tuple), _OBJECT),
    )
)
_SUMMARY_VALUES = itemgetter("of", "message", "time_ns")
_PROGRESS_VALUES = itemgetter("first_step", "first_ns", "last_step", "last_ns")
# For 16,384 of them, without the classes' own __new__.
_make: Any = tuple.__new__

__all__ = [
    "Json",
    "Malformed",
    "attempt_from",
    "check_schema",
    "defect_from",
    "node_record_from",
    "rank_error_from",
    "round_node_from",
]
__all__ += ["run_from", "state_from"]


def check_schema(value: object, schema: str) -> Json:
    """Return ``value`` as an object of ``schema`` in a supported version, or raise `Malformed`."""
    if not isinstance(value, dict):
        raise Malformed(f"expected a JSON object, found {type(value).__name__}")
    if value.get("schema") != schema:
        raise Malformed(f"expected schema {schema!r}, found {brief(value.get('schema'))}")
    version = integer(value, "version")
    if version is None:
        raise Malformed(f"expected a version number, found {brief(value.get('version'))}")
    if version > KNOWN_VERSION:
        raise Malformed(f"made by a newer ftslurm (format version {version}, supported is {KNOWN_VERSION})")
    return value


def run_from(o: Json) -> Run:
    """``run.json``."""
    return Run(need_text(o, "run_id"), text(o, "user"), integer(o, "created_ns"), text(o, "ftslurm"))


def attempt_from(o: Json) -> Attempt:
    """``attempts/<attempt>/attempt.json``."""
    options = o.get("options")
    return Attempt(
        attempt=need_text(o, "attempt"),
        job_id=text(o, "job_id"),
        created_ns=integer(o, "created_ns"),
        cwd=text(o, "cwd"),
        command=texts(o, "command"),
        logs=text(o, "logs"),
        nproc=text(options, "nproc_per_node") if isinstance(options, dict) else None,
        start=text(o, "start"),
        exclude_after=(integer(options, "exclude_after") or 0) if isinstance(options, dict) else 0,
    )


def defect_from(o: Json) -> Defect:
    """``defects/<name>.json``."""
    return Defect(
        "",
        need_text(o, "node"),
        integer(o, "round") or None,
        integer(o, "time_ns"),
        text(o, "part"),
        text(o, "meaning"),
        need_text(o, "error"),
        text(o, "place"),
    )


def step_from(o: Json) -> StepEnd:
    """``attempts/<attempt>/step.json``."""
    return StepEnd(need_text(o, "attempt"), integer(o, "ended_ns"), integer(o, "exit_code"), text(o, "signal"))


def node_record_from(o: Json) -> NodeRecordFacts:
    """``nodes/<node>.json``."""
    return NodeRecordFacts(
        node=need_text(o, "node"),
        attempt=text(o, "attempt"),
        host=text(o, "host"),
        status=text(o, "status") or "unknown",
        round=integer(o, "round") or 0,
        failure=_failure(o.get("failure")),
        reason=text(o, "reason"),
        time_ns=integer(o, "time_ns"),
        clock=_clock(o.get("clock")),
        health=_health(o.get("health")),
        unhealthy=_reason(o, "unhealthy"),
        excluded=_reason(o, "excluded"),
        incarnation=text(o, "incarnation"),
        predecessor=_predecessor(o.get("predecessor")),
    )


def round_node_from(o: Json) -> RoundNode:
    """``rounds/<round>/nodes/<node>.json``."""
    parts = _summaries(o.get("errors"))
    return RoundNode(
        round=need_integer(o, "round"),
        attempt=text(o, "attempt"),
        node=need_text(o, "node"),
        host=text(o, "host"),
        world_size=integer(o, "world_size"),
        started_ns=integer(o, "started_ns"),
        ended_ns=integer(o, "ended_ns"),
        outcome=text(o, "outcome") or "unknown",
        stop_reason=text(o, "stop_reason"),
        stop_ns=integer(o, "stop_ns"),
        workers=tuple([_worker(w, parts) for w in objects(o, "workers")]),
        clock=_clock(o.get("clock")),
        health=_health(o.get("health")),
        incarnation=text(o, "incarnation"),
    )


def _predecessor(value: object) -> Predecessor | None:
    if not isinstance(value, dict):
        return None
    return Predecessor(need_text(value, "incarnation"), need_text(value, "reason"), integer(value, "time_ns"))


def _health(value: object) -> Health | None:
    if not isinstance(value, dict):
        return None
    found = [each for each in map(_finding, objects(value, "findings")[:KEPT]) if each is not None]
    return Health(
        worst(each.status for each in found), integer(value, "checked_ns") or 0, text(value, "set") or "", (*found,)
    )


def _finding(o: Json) -> HealthFinding | None:
    status, since_ns, message = o.get("status"), integer(o, "since_ns"), text(o, "text")
    if status not in SEVERITY or since_ns is None or message is None:
        return None
    subject, advice = (text(o, "subject") or "")[:MAX_TEXT], (text(o, "advice") or "")[:MAX_TEXT]
    return HealthFinding((text(o, "check") or "?")[:MAX_TEXT], status, subject, message[:MAX_TEXT], advice, since_ns)


def _reason(o: Json, key: str) -> str | None:
    value = text(o, key)
    return value[:MAX_TEXT] if value else None


def _clock(value: object) -> Clock | None:
    if not isinstance(value, dict):
        return None
    offset_ns, error_ns, at_ns = integer(value, "offset_ns"), integer(value, "error_ns"), integer(value, "at_ns")
    if offset_ns is None or error_ns is None or at_ns is None or error_ns < 0 or abs(offset_ns) > _YEAR_NS:
        return None
    return Clock(offset_ns, error_ns, at_ns)


def state_from(o: Json, token: int) -> State:
    """The payload of ``state/<token>.json``."""
    coordinator = o.get("coordinator")
    return State(
        token=token,
        run_id=text(o, "run_id"),
        attempt=text(o, "attempt"),
        attempts=texts(o, "attempts"),
        min_nodes=integer(o, "min_nodes"),
        max_restarts=integer(o, "max_restarts"),
        restarts_used=integer(o, "restarts_used"),
        phase=text(o, "phase") or "unknown",
        round=integer(o, "round") or 0,
        participants=tuple(
            Participant(need_text(p, "node"), need_integer(p, "first_rank"), integer(p, "slots") or 0)
            for p in objects(o, "participants")
        ),
        lost=tuple(
            LostNode(need_text(x, "node"), integer(x, "round") or 0, integer(x, "time_ns"), number(x, "silent_s"))
            for x in objects(o, "lost")
        ),
        history=tuple(_history(h) for h in objects(o, "history")),
        closed=_closed(o.get("closed")),
        coordinator=text(coordinator, "node") if isinstance(coordinator, dict) else None,
    )


def rank_error_from(value: object, rank: int) -> RankError:
    """``error.json``: ftslurm's, or the file of torch's ``@record`` alone (then only the message is known)."""
    if not isinstance(value, dict):
        raise Malformed(f"expected a JSON object, found {type(value).__name__}")
    ours: Json = {}
    if "ftslurm" in value:
        ours = check_schema(value["ftslurm"], "ftslurm/error")
    outer = value.get("message")
    if not isinstance(outer, (dict, str)):
        raise Malformed(f"expected a message, found {brief(outer)}")
    message = outer if isinstance(outer, str) else text(outer, "message") or ""
    extra = outer.get("extraInfo") if isinstance(outer, dict) else None
    extra = extra if isinstance(extra, dict) else {}
    time_ns = integer(ours, "time_ns")
    exception, exit_message = _judged(ours.get("exception"))
    return RankError(
        rank=rank,
        node=text(ours, "node"),
        host=text(ours, "host"),
        local_rank=integer(ours, "local_rank"),
        time_ns=time_ns if time_ns is not None else _torch_time_ns(extra.get("timestamp")),
        kind=text(ours, "kind") or "exception",
        exit_code=integer(ours, "exit_code"),
        signal=text(ours, "signal"),
        step=integer(ours, "step"),
        pid=integer(ours, "pid"),
        argv=texts(ours, "argv"),
        message=message,
        traceback=text(extra, "py_callstack") or None,
        exception=_exc(exception, MAX_CHAIN),
        stacks=text(ours, "stacks") or None,
        host_resources=host_resources_from(ours),
        sections=sections_from(ours.get("sections")),
        cuda=cuda_from(ours.get("cuda")),
        exit_message=exit_message,
    )


def judged_path(value: object) -> tuple[str, ...]:
    """Return `reason_path` of an exception; empty where that is damaged."""
    try:
        return reason_path(value) if isinstance(value, dict) else ()
    except (TypeError, KeyError, AttributeError):
        return ()


def _judged(value: Any) -> tuple[object, str]:
    """Return the judged exception of a chain, and the text of the exit that hid it."""
    found = value
    for key in judged_path(value):
        found = found[key]
    return found, "" if found is value or is_bare_exit(value) else text(value, "message") or ""


def _torch_time_ns(stamp: object) -> int | None:
    digits = str(stamp) if isinstance(stamp, (str, int)) else ""
    # torch writes whole seconds as decimal text; anything else is ignored.
    return int(digits) * 10**9 if digits.isascii() and digits.isdigit() and len(digits) < 11 else None


def _exc(value: object, depth: int) -> Exc | None:
    if not isinstance(value, dict) or depth == 0:
        return None
    frames = tuple(map(_frame, objects(value, "frames")))
    cause = _exc(value.get("cause"), depth - 1)
    members = (_exc(member, depth // 2) for member in objects(value, "exceptions")[:MAX_MEMBERS])
    return Exc(
        text(value, "type") or "Exception",
        text(value, "module") or "",
        text(value, "message") or "",
        frames,
        cause or _exc(value.get("context"), depth - 1),
        explicit=cause is not None,
        members=tuple(member for member in members if member is not None),
        notes=texts(value, "notes"),
    )


def _frame(o: Json) -> Frame:
    # Ranks with the same failure have the same frames: one object of each is enough.
    try:
        values = _FRAME_VALUES(o)
        known = _frames.get(values)
        # True and 1 are the same key, but True is no line number.
        if known is not None and type(values[1]) is int:
            return known
    except (KeyError, TypeError):
        return _frame_from(o)
    frame = _frame_from(o)
    if type(values[1]) is int:
        if len(_frames) >= _FRAMES_KEPT:
            _frames.clear()
        _frames[values] = frame
    return frame


def _frame_from(o: Json) -> Frame:
    return Frame(text(o, "file") or "?", integer(o, "line") or 0, text(o, "function") or "?", text(o, "source"))


def _worker(o: Json, parts: Sequence[_Part | None]) -> Worker:
    # Nearly all of 16,384 ranks have valid entries: checked in one go.
    values = {**_WORKER, **o}.values()
    if tuple(map(type, values)) not in _USUAL_TYPES:
        return _worker_from(o, parts)
    rank, local_rank, pid, started_ns, ended_ns, exit_code, *ends, progress, failed, pace, error = values
    # One of them is negative or too large if and only if their bitwise or is.
    if not 0 <= rank | local_rank | pid | started_ns | (ended_ns or 0) | (exit_code or 0) < INT_LIMIT:
        return _worker_from(o, parts)
    steps = None if progress is None else _progress(progress)
    summary = None if error is None else _summary(error, parts)
    error_known = "error" in o if error is None else summary is not None
    numbers = (rank, local_rank, pid, started_ns, ended_ns, exit_code)
    worker: Worker = _make(Worker, (*numbers, *ends, steps, failed, _pace(pace) if pace else (), summary, error_known))
    return worker


def _worker_from(o: Json, parts: Sequence[_Part | None]) -> Worker:
    progress = o.get("progress")
    summary = _summary(o.get("error"), parts)
    return Worker(
        rank=need_integer(o, "rank"),
        local_rank=integer(o, "local_rank"),
        pid=integer(o, "pid"),
        started_ns=integer(o, "started_ns"),
        ended_ns=integer(o, "ended_ns"),
        exit_code=integer(o, "exit_code"),
        signal=text(o, "signal"),
        core_dumped=o.get("core_dumped") is True,
        stopped_by_ftslurm=o.get("stopped_by_ftslurm") is True,
        stop_signal=text(o, "stop_signal"),
        progress=_progress(progress) if isinstance(progress, dict) else None,
        failed=o.get("failed") is True,
        pace=_pace(o.get("pace")),
        error=summary,
        error_known=summary is not None or ("error" in o and o["error"] is None),
    )


def _summaries(value: object) -> list[_Part | None]:
    """Read the common parts of a node's failed ranks: for each list index a part of `RecordSummary`, or None."""
    return [_summary_part(part) for part in value[:MAX_SUMMARIES]] if isinstance(value, list) else []


def _summary_part(value: object) -> _Part | None:
    if not isinstance(value, dict):
        return None
    kind, signature = text(value, "kind"), text(value, "signature")
    if kind is None or signature is None:
        return None
    return kind, text(value, "type"), text(value, "module") or "", text(value, "where"), signature


def _summary(value: Any, parts: Sequence[_Part | None]) -> RecordSummary | None:
    try:
        of, message, time_ns = _SUMMARY_VALUES(value)
    except (KeyError, TypeError):
        return None
    step = value.get("step")
    numbers = type(of) is type(time_ns) is int and (step is None or type(step) is int)
    if not numbers or type(message) is not str or not 0 <= time_ns | (step or 0) < INT_LIMIT:
        return None
    part = parts[of] if 0 <= of < len(parts) else None
    if part is None:
        return None
    kind, name, module, where, signature = part
    summary: RecordSummary = _make(RecordSummary, (kind, name, module, message, where, step, time_ns, signature))
    return summary


def _pace(value: object) -> tuple[tuple[int, int], ...]:
    """Read the histogram of step intervals: counts by bucket; an invalid list is ignored."""
    pairs = value[: len(EDGES_S)] if isinstance(value, list) else []
    kept = [pair for pair in pairs if isinstance(pair, list) and [type(n) for n in pair] == [int, int]]
    return tuple((bucket, number) for bucket, number in kept if 0 <= bucket < len(EDGES_S) and 0 < number < 2**53)


def _progress(o: Json) -> Progress | None:
    try:
        first, first_ns, last, last_ns = values = _PROGRESS_VALUES(o)
        numbers = type(first) is type(first_ns) is type(last) is type(last_ns) is int
        if numbers and 0 <= first | first_ns | last | last_ns < INT_LIMIT:
            progress: Progress = _make(Progress, values)
            return progress
    except KeyError:
        pass
    first, last = integer(o, "first_step"), integer(o, "last_step")
    if first is None or last is None:
        return None
    return Progress(first, integer(o, "first_ns"), last, integer(o, "last_ns"))


def _failure(value: object) -> Failure | None:
    if not isinstance(value, dict):
        return None
    rank, node = integer(value, "rank"), text(value, "node")
    if rank is None or node is None:
        return None
    return Failure(
        round=integer(value, "round") or 0,
        node=node,
        rank=rank,
        local_rank=integer(value, "local_rank"),
        time_ns=integer(value, "time_ns"),
        kind=text(value, "kind") or "exit",
        exit_code=integer(value, "exit_code"),
        signal=text(value, "signal"),
        message=text(value, "message") or "",
        step=integer(value, "step"),
        blame=text(value, "blame"),
        since_ns=integer(value, "since_ns"),
    )


def _history(o: Json) -> History:
    return History(
        round=need_integer(o, "round"),
        attempt=text(o, "attempt"),
        nodes=texts(o, "nodes"),
        world_size=integer(o, "world_size"),
        formed_ns=integer(o, "formed_ns"),
        ended_ns=integer(o, "ended_ns"),
        outcome=text(o, "outcome") or "unknown",
        reason=text(o, "reason"),
        failure=_failure(o.get("failure")),
    )


def _closed(value: object) -> Closed | None:
    if not isinstance(value, dict):
        return None
    return Closed(
        outcome=text(value, "outcome") or "unknown",
        reason=text(value, "reason") or "",
        exit_code=_exit_code(value),
        time_ns=integer(value, "time_ns"),
    )


def _exit_code(o: Json) -> int:
    code = integer(o, "exit_code")
    # An unreadable verdict must not become success.
    return code if code is not None and 0 <= code <= 255 else 1

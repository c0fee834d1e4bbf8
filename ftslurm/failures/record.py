"""The error record ``error.json``: a failed worker's record, completed with its agent's observations.

The outer form is that of torch's error files (torch/distributed/elastic/multiprocessing/errors), so that
torch's readers show it; ftslurm's own values are under the key "ftslurm". The worker writes its record on its own
node; the agent reads it as untrusted input: bounded, no links followed, validated, and
with rank, exit code and signal replaced by the agent's own values.
"""

from __future__ import annotations

import os
import re

from ftslurm.failures.exceptions import TEXT_LIMIT, clean, describe, headline, traceback_text, where
from ftslurm.failures.reason import reason
from ftslurm.failures.recordfile import (
    NAME,
    SCHEMA,
    VERSION,
    Record,
    encode,
    read,
    read_file,
    write,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

__all__ = [
    "STACKS",
    "Record",
    "complete",
    "complete_elsewhere",
    "compose",
    "encode",
    "exit_status",
    "from_exception",
    "identity",
]
__all__ += ["read", "summary", "write"]

STACKS = "stacks.txt"
STACKS_LIMIT = 64 * 1024  # bytes
SUMMARY_LIMIT = 500  # characters
_MEANING = {
    "SIGABRT": "abort",
    "SIGBUS": "bus error",
    "SIGFPE": "floating point exception",
    "SIGILL": "illegal instruction",
    "SIGSEGV": "segmentation fault",
}
_BY_WORKERS = ("exception", "exit")
_FROM_CONTEXT = ("sections", "cuda", "shm", "memory_limit")  # see `worker_context`
_IDENTITY = ("run_id", "attempt", "round", "node", "host", "rank", "local_rank", "world_size", "pid")


def identity(environment: Mapping[str, str]) -> dict[str, Any]:
    """A worker's identity from the environment set by its agent; missing values are None."""

    def number(name: str) -> int | None:
        text = environment.get(name, "")
        return int(text) if text.isdecimal() else None

    return {
        "run_id": environment.get("FTSLURM_RUN_ID"),
        "attempt": environment.get("FTSLURM_ATTEMPT"),
        "round": number("FTSLURM_ROUND"),
        "node": environment.get("FTSLURM_NODE"),
        "rank": number("RANK"),
        "local_rank": number("LOCAL_RANK"),
        "world_size": number("WORLD_SIZE"),
    }


def compose(message: str, callstack: str, facts: Mapping[str, Any]) -> Record:
    """A complete record from its message, its traceback text and the values for its "ftslurm" part."""
    ours: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        **dict.fromkeys(("time_ns", "kind", "run_id", "attempt", "round", "node", "host", "rank")),
        **dict.fromkeys(("local_rank", "world_size", "pid", "exit_code", "signal", "step")),
        "argv": [],
        "exception": None,
        "stacks": None,
        **facts,
    }
    inner: dict[str, Any] = {
        "message": clean(message),
        "extraInfo": {"timestamp": str(ours["time_ns"] // 1_000_000_000)},
    }
    if callstack:  # torch shows the message if this key is missing
        inner["extraInfo"]["py_callstack"] = callstack
    if ours["exit_code"] is not None:
        inner["errorCode"] = ours["exit_code"]
    return {"message": inner, "ftslurm": ours}


def from_exception(
    error: BaseException, trace: TracebackType | None, facts: Mapping[str, Any], previous: Record | None
) -> Record:
    """The record of an exception that reached the top level.

    Args:
        error: the exception; a SystemExit that hides no other one makes a record of kind "exit".
        trace: its traceback from the user's first frame on.
        facts: the other values of the "ftslurm" part; needs "time_ns" (nanoseconds since the epoch).
        previous: the present content of the file: torch's ``@record`` wrote it about this same exception, or
            copied it from a failed worker of a nested launch (then the exception is a ChildFailedError).
    """
    exception = describe(error, trace)
    text, callstack = headline(error), traceback_text(error, trace)
    facts = {**facts, "kind": "exception", "exception": exception}
    if isinstance(error, SystemExit):
        place = where(exception)
        text += f" (at {place})" if place else ""
        why = reason(exception)
        if why is exception:
            facts["kind"] = "exit"
        else:
            text = f"{why['type']}: {why['message']}; then {text}" if why["message"] else f"{why['type']}; then {text}"
        facts["exit_code"] = exit_status(error)
    if previous is None:
        return compose(text, callstack, facts)
    theirs, their_callstack = _torch_part(previous)
    if theirs == headline(error):
        return _superset(compose(text, callstack, facts), previous)
    facts["reported_before"] = {"message": theirs, "py_callstack": their_callstack}
    if isinstance(error, SystemExit) or type(error).__name__ == "ChildFailedError":
        # The launcher's own exception only reports a failed child; the copied record has its rank and reason.
        text = theirs
        callstack = f"{their_callstack}\nReported before this ended the process:\n\n{callstack}"
    return compose(text, callstack, facts)


def exit_status(error: SystemExit) -> int:
    """The interpreter's exit status for ``error`` (CPython: handle_system_exit)."""
    code: object = error.code
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return int(code) & 0xFF if -(2**63) <= code < 2**63 else 0xFF


def complete(record_dir: str | os.PathLike[str], facts: Mapping[str, Any]) -> Record | None:
    """The final record of a worker that has ended, for its agent to publish; None if it succeeded.

    Args:
        record_dir: the directory of error.json and stacks.txt; both may be missing, torn or hostile.
            Unusable parts are named in the record's "notes" and in its message.
        facts: the agent's observations, by the names in the record: "exit_code" or "signal" ("SIGKILL"), "time_ns"
            of the end (nanoseconds since the epoch), "rank", "round", ...; optional "step", "argv", "sections" (open in
            the heartbeat page) and "host_resources" (see `ftslurm.agent.host_resources`).

    In the result "time_ns" is the time of the exception's recording, if one was recorded (then also in
    "recorded_ns"), else the time of the end.
    """
    if facts.get("exit_code") == 0:
        return None
    written, note = read(record_dir)
    if written is not None and "ftslurm" not in written:
        # torch stores whole seconds, which would make this rank the first among ranks that failed together.
        written["ftslurm"] = {"kind": "exception", "time_ns": _modified_ns(record_dir, facts["time_ns"])}
    return merge(written, note, _read_stacks(record_dir) if facts.get("signal") else "", facts)


def complete_elsewhere(directory: str | os.PathLike[str], stacks: str, facts: Mapping[str, Any]) -> Record | None:
    """The result of `complete` for a record in the rank's directory of the run; None: there is none.

    A worker writes there if its node has no space for a record, or its record directory is missing.

    Args:
        directory: the rank's, in the run directory.
        stacks: faulthandler's text, or empty.
        facts: see `complete`. Attempt, round and rank must be those of the record: no other process was started
            with the same. Its pid need not be the worker's, whose children may have written it (`ftslurm.record`).
    """
    written, note = read(directory)
    ours = written.get("ftslurm") if written is not None else None
    if ours is None or ours["kind"] not in _BY_WORKERS or "stopped_by_ftslurm" in ours:
        # Nothing, or a record published by an agent.
        return None
    if any(ours.get(name) != facts.get(name) for name in ("attempt", "round", "rank")):
        return None
    return merge(written, note, stacks, facts)


def merge(written: Record | None, note: str | None, stacks: str, facts: Mapping[str, Any]) -> Record:
    """The result of `complete`; pure.

    Args:
        written: the worker's record, validated by `read`, or None.
        note: the error of an invalid file, if any.
        stacks: faulthandler's text, or empty.
        facts: see `complete`.
    """
    exit_code, signal = facts.get("exit_code"), facts.get("signal")
    kind, argv = "signal" if signal else "exit", list(facts.get("argv") or [])
    ours: dict[str, Any] = {"kind": kind, "time_ns": facts["time_ns"], "argv": argv}
    text, callstack = _ending(exit_code, signal, stacks), stacks
    if written is not None:
        trusted = ("kind", "time_ns", "argv", "step", "world_size", "exception", "reported_before", *_FROM_CONTEXT)
        ours.update({name: written["ftslurm"][name] for name in trusted if name in written["ftslurm"]})
        ours["recorded_ns"] = ours["time_ns"]
        text, callstack = _torch_part(written)
        text += f"; then {_ending(None, signal, stacks)}" if signal else ""
    ours.update({name: facts[name] for name in (*_IDENTITY, "step") if facts.get(name) is not None})
    if exit_code is None and kind == "signal" and written is not None:
        exit_code = _wanted_exit(written["ftslurm"])
    ours.update(exit_code=exit_code, signal=signal, stacks=stacks or None, notes=[note] if note else [])
    if facts.get("sections"):
        ours.setdefault("sections", facts["sections"])
    if facts.get("host_resources"):
        ours["host_resources"] = facts["host_resources"]
    record = compose(text + (f" ({note})" if note else ""), callstack, ours)
    record["message"]["errorCode"] = _error_code(facts.get("exit_code"), signal)
    return record if written is None else _superset(record, written)


def _wanted_exit(ours: Mapping[str, Any]) -> int | None:
    """The code of a sys.exit that a signal preempted: "do not restart" (78) remains valid."""
    code = ours.get("exit_code")
    is_code = isinstance(code, int) and not isinstance(code, bool) and 0 < code < 256
    return code if ours.get("exception") and is_code else None


def summary(record: Record) -> dict[str, Any]:
    """The Failure dictionary of a completed record: rank, time, and a printable one-line description."""
    ours = record["ftslurm"]
    names = ("round", "node", "rank", "local_rank", "time_ns", "kind", "exit_code", "signal", "step")
    return {**{name: ours[name] for name in names}, "message": one_line(_torch_part(record)[0])}


def one_line(text: str, limit: int = SUMMARY_LIMIT) -> str:
    """``text`` on one line of at most ``limit`` characters, without control sequences for a terminal."""
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text[: 8 * limit])
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def _ending(exit_code: int | None, signal: str | None, stacks: str) -> str:
    if signal is None:
        return f"exit code {exit_code}, no Python exception reached the top level"
    if signal not in _MEANING:
        return f"killed by {signal}"
    place = crash_place(stacks)
    return f"{signal} ({_MEANING[signal]}){f' at {place}' if place else ''}"


def crash_place(stacks: str) -> str:
    """``train.py:12 in step`` of the thread that crashed, in faulthandler's text; empty if it names none."""
    place = re.search(r'^Current thread .*\n  File "(.*)", line (\d+) in (.*)$', stacks, re.MULTILINE)
    return f"{place[1].rpartition('/')[2]}:{place[2]} in {place[3]}" if place else ""


def _modified_ns(record_dir: str | os.PathLike[str], at_most: int) -> int:
    try:
        return min(os.lstat(os.path.join(os.fspath(record_dir), NAME)).st_mtime_ns, at_most)
    except OSError:
        return at_most


def _read_stacks(record_dir: str | os.PathLike[str]) -> str:
    """faulthandler's text, without ftslurm's frames at the outer end of the main thread."""
    try:
        data = read_file(os.path.join(os.fspath(record_dir), STACKS), STACKS_LIMIT)
    except OSError:
        return ""
    lines: list[str] = []
    ours = False
    for line in clean(data[:STACKS_LIMIT].decode("utf-8", "replace"), STACKS_LIMIT).splitlines():
        is_frame = line.startswith("  File ")
        ours = is_frame and (ours or re.search(r'/ftslurm/(boot/)?worker\.py", line', line) is not None)
        if not ours:
            lines.append(line)
    return "\n".join(lines) + "\n" if lines else ""


def _error_code(exit_code: int | None, signal: str | None) -> int | None:
    """torch's exit code of a process: for a signal its negative number (ProcessFailure.exitcode)."""
    import signal as signals

    return -int(getattr(signals, signal, 0)) if signal else exit_code


def _torch_part(record: Record) -> tuple[str, str]:
    message = record["message"]
    if isinstance(message, str):
        return clean(message), ""
    callstack = message.get("extraInfo", {}).get("py_callstack")
    return clean(message["message"]), clean(callstack if isinstance(callstack, str) else "", TEXT_LIMIT)


def _superset(record: Record, previous: Record) -> Record:
    inner = previous["message"] if isinstance(previous["message"], dict) else {}
    foreign = {k: v for k, v in inner.get("extraInfo", {}).items() if k != "py_callstack"}
    extra = {**foreign, **record["message"]["extraInfo"]}
    return {**previous, **record, "message": {**inner, **record["message"], "extraInfo": extra}}

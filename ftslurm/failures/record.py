"""The error record ``error.json``: what a failed worker wrote, completed by what its agent saw.

The outer form is that of torch's error files (torch/distributed/elastic/multiprocessing/errors), so that
torch's readers show it; what is ours stands under the key "ftslurm". The worker writes its record on its own
node; the agent reads it as it would a stranger's file: bounded, no links followed, checked (see completion.py).
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

from ftslurm.failures.exceptions import clean, describe, headline, traceback_text, where

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

NAME = "error.json"
STACKS = "stacks.txt"
SCHEMA = "ftslurm/error"
VERSION = 1
SIZE_LIMIT = 256 * 1024  # bytes, of error.json
STACKS_LIMIT = 64 * 1024  # bytes
SUMMARY_LIMIT = 500  # characters
KINDS = ("exception", "exit", "signal", "spawn")

Record = dict[str, Any]


def identity(environment: Mapping[str, str]) -> dict[str, Any]:
    """Who a worker is, from the environment that its agent gave it; what is missing is None."""

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
    """A whole record from its message, its traceback text and the values for its "ftslurm" part."""
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
        "extraInfo": {"py_callstack": callstack, "timestamp": str(ours["time_ns"] // 1_000_000_000)},
    }
    if ours["exit_code"] is not None:
        inner["errorCode"] = ours["exit_code"]
    return {"message": inner, "ftslurm": ours}


def from_exception(
    error: BaseException, trace: TracebackType | None, facts: Mapping[str, Any], previous: Record | None
) -> Record:
    """The record of an exception that reached the top level.

    Args:
        error: the exception; SystemExit makes a record of kind "exit".
        trace: its traceback from the user's first frame on.
        facts: the other values of the "ftslurm" part; needs "time_ns" (nanoseconds since the epoch).
        previous: what is in the file already: torch's ``@record`` wrote it about this same exception, or
            copied it from a failed worker of a nested launch (then the exception is a ChildFailedError).
    """
    exception = describe(error, trace)
    text, callstack = headline(error), traceback_text(error, trace)
    facts = {**facts, "kind": "exception", "exception": exception}
    if isinstance(error, SystemExit):
        place = where(exception)
        text += f" (at {place})" if place else ""
        facts.update(kind="exit", exit_code=exit_status(error))
    if previous is None:
        return compose(text, callstack, facts)
    theirs, their_callstack = _torch_part(previous)
    if theirs == headline(error):
        return _superset(compose(text, callstack, facts), previous)
    facts["reported_before"] = previous
    if isinstance(error, SystemExit) or type(error).__name__ == "ChildFailedError":
        # The launcher's own exception only says that somebody failed; the copied record says who and why.
        text = theirs
        callstack = f"{their_callstack}\nReported before this ended the process:\n\n{callstack}"
    return compose(text, callstack, facts)


def exit_status(error: SystemExit) -> int:
    """The status with which the interpreter ends on ``error`` (CPython: handle_system_exit)."""
    code: object = error.code
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return int(code) & 0xFF if -(2**63) <= code < 2**63 else 0xFF


def encode(record: Record) -> bytes:
    """``record`` as JSON below SIZE_LIMIT; of one that is too large the least telling parts go first."""
    lighter = [_without_previous, _without_chain, _without_sources, _with_short_texts]
    data = json.dumps(record).encode()
    while len(data) >= SIZE_LIMIT and lighter:
        record = lighter.pop(0)(record)
        data = json.dumps(record).encode()
    return data


def write(record: Record, directories: Iterable[str]) -> str:
    """Publish ``record`` as error.json in the first of ``directories`` that takes it; returns that path.

    Raises:
        OSError: none of them did; the first one's error.
    """
    data, problem = encode(record), None
    for directory in directories:
        try:
            return _publish(data, os.path.join(directory, NAME))
        except OSError as error:
            problem = problem or error
    raise problem or FileNotFoundError("no directory to write the error record to")


def _publish(data: bytes, path: str) -> str:
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)  # No fsync: the agent reads it from this kernel's cache.
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def read_file(path: str, limit: int) -> bytes:
    """The content of the regular file ``path``, at most ``limit`` bytes plus one; never hangs on a pipe.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, or is a link, a pipe, a directory.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("not a regular file")
        data = b""
        while len(data) <= limit and (part := os.read(fd, limit + 1 - len(data))):
            data += part
        return data
    finally:
        os.close(fd)


def read(directory: str | os.PathLike[str]) -> tuple[Record | None, str | None]:
    """The worker's (or torch's) error.json in ``directory``, and, if it is there but no use, why not."""
    path = os.path.join(os.fspath(directory), NAME)
    try:
        data = read_file(path, SIZE_LIMIT)
    except FileNotFoundError:
        return None, None
    except OSError as problem:
        return None, f"{NAME} is not readable: {problem.strerror or problem}"
    if len(data) > SIZE_LIMIT:
        return None, f"{NAME} is larger than {SIZE_LIMIT} bytes"
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None, f"{NAME} is torn or not JSON ({len(data)} bytes)"
    problem_text = _check(record)
    return (None, f"{NAME} {problem_text}") if problem_text else (record, None)


def _check(record: object) -> str | None:
    if not isinstance(record, dict):
        return "is not a JSON object"
    message = record.get("message")
    if not isinstance(message, str) and not (
        isinstance(message, dict)
        and isinstance(message.get("message"), str)
        and isinstance(message.get("extraInfo", {}), dict)
    ):
        return "has no message"
    ours = record.get("ftslurm")
    return None if ours is None else _check_ours(ours)


def _check_ours(ours: object) -> str | None:
    if not isinstance(ours, dict) or ours.get("schema") != SCHEMA or not _is_int(ours.get("version")):
        return f"has no valid {SCHEMA} part"
    if ours["version"] > VERSION:
        return f"was made by a newer ftslurm ({SCHEMA} version {ours['version']}, known: {VERSION})"
    whole = (
        _is_int(ours.get("time_ns"))
        and ours.get("kind") in KINDS
        and isinstance(ours.get("exception"), (dict, type(None)))
    )
    return None if whole else f"has a damaged {SCHEMA} part"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _torch_part(record: Record) -> tuple[str, str]:
    message = record["message"]
    if isinstance(message, str):
        return clean(message), ""
    callstack = message.get("extraInfo", {}).get("py_callstack")
    return clean(message["message"]), clean(callstack if isinstance(callstack, str) else "", 64 * 1024)


def _superset(record: Record, previous: Record) -> Record:
    inner = previous["message"] if isinstance(previous["message"], dict) else {}
    extra = {**inner.get("extraInfo", {}), **record["message"]["extraInfo"]}
    return {**previous, **record, "message": {**inner, **record["message"], "extraInfo": extra}}


def _without_previous(record: Record) -> Record:
    ours = {k: v for k, v in record["ftslurm"].items() if k != "reported_before"}
    return {"message": record["message"], "ftslurm": ours}


def _without_chain(record: Record) -> Record:
    return _with_exception(record, cause=None, context=None, exceptions=[])


def _without_sources(record: Record) -> Record:
    frames = (record["ftslurm"]["exception"] or {}).get("frames", [])
    return _with_exception(record, frames=[{**frame, "source": None} for frame in frames[-20:]], notes=[])


def _with_exception(record: Record, **changes: object) -> Record:
    exception = record["ftslurm"]["exception"]
    ours = {**record["ftslurm"], "exception": exception and {**exception, **changes}}
    return {**record, "ftslurm": ours}


def _with_short_texts(record: Record) -> Record:
    ours = record["ftslurm"]
    exception = ours["exception"]
    if exception:
        exception = {**exception, "message": clean(exception["message"], 1000)}
    stacks = ours["stacks"] and clean(ours["stacks"], 4000)
    argv = [clean(word, 200) for word in ours["argv"][:20]]
    ours = {**ours, "exception": exception, "argv": argv, "stacks": stacks}
    inner = record["message"]
    extra = {"timestamp": inner["extraInfo"]["timestamp"]}
    extra["py_callstack"] = clean(inner["extraInfo"]["py_callstack"], 8000)
    return {"message": {"message": clean(inner["message"], 1000), "extraInfo": extra}, "ftslurm": ours}

"""The file ``error.json``: atomic writing, bounded and validated reading."""

from __future__ import annotations

import json
import os
import stat

from ftslurm.failures.exceptions import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

NAME = "error.json"
SCHEMA = "ftslurm/error"
VERSION = 1
SIZE_LIMIT = 256 * 1024  # bytes, of error.json
KINDS = ("exception", "exit", "signal", "spawn", "hang")

Record: TypeAlias = "dict[str, Any]"


def encode(record: Record) -> bytes:
    """``record`` as JSON below SIZE_LIMIT; of a larger one the least important parts are removed first."""
    data = _dump(record)
    for lighter in (_without_foreign, _without_chain, _without_sources, _with_short_texts, _without_exception):
        if data is not None and len(data) < SIZE_LIMIT:
            return data
        record = lighter(record)
        data = _dump(record)
    assert data is not None
    return data


def _dump(record: Record) -> bytes | None:
    try:
        return json.dumps(record).encode()
    except (ValueError, RecursionError):  # foreign content of the file may be nested without end
        return None


def write(record: Record, directories: Iterable[str]) -> str:
    """Publish ``record`` as error.json in the first writable one of ``directories``; returns that path.

    Raises:
        OSError: none is writable; the first one's error.
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
    """The worker's (or torch's) error.json in ``directory``, and its error if it is invalid.

    A record is returned without the "ftslurm" part if that part is damaged, or the record is torch's.
    """
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
        return _judge(json.loads(data))
    except (ValueError, RecursionError):
        return None, f"{NAME} is torn or not JSON ({len(data)} bytes)"


def _judge(record: Any) -> tuple[Record | None, str | None]:
    if not isinstance(record, dict) or not _is_message(record.get("message")):
        return None, f"{NAME} has no message"
    ours = record.get("ftslurm")
    wrong = None if ours is None else _check_ours(ours)
    if wrong is None:
        return record, None
    del record["ftslurm"]
    return record, f"{NAME} {wrong}"


def _is_message(message: object) -> bool:
    """Whether torch's readers accept it: a text, or a text with extraInfo."""
    return isinstance(message, str) or (
        isinstance(message, dict)
        and isinstance(message.get("message"), str)
        and isinstance(message.get("extraInfo", {}), dict)
    )


def _check_ours(ours: object) -> str | None:
    if not isinstance(ours, dict) or ours.get("schema") != SCHEMA or not _is_int(ours.get("version")):
        return f"has no valid {SCHEMA} part"
    if ours["version"] > VERSION:
        return f"was made by a newer ftslurm ({SCHEMA} version {ours['version']}, supported: {VERSION})"
    whole = (
        _is_int(ours.get("time_ns"))
        and ours.get("kind") in KINDS
        and _are_strings(ours.get("argv"))
        and all(ours.get(name) is None or _is_int(ours[name]) for name in ("step", "world_size"))
        and (ours.get("exception") is None or _is_exception(ours["exception"]))
    )
    return None if whole else f"has a damaged {SCHEMA} part"


def _is_exception(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in ("type", "module", "message"))
        and _are_strings(value.get("notes"))
        and all(isinstance(value.get(name), list) for name in ("frames", "exceptions"))
        and all(map(_is_frame, value["frames"]))
        and all(map(_is_exception, value["exceptions"]))
        and all(value.get(name) is None or _is_exception(value[name]) for name in ("cause", "context"))
    )


def _is_frame(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("file"), str)
        and isinstance(value.get("function"), str)
        and _is_int(value.get("line"))
        and isinstance(value.get("source"), (str, type(None)))
    )


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _without_foreign(record: Record) -> Record:
    ours = {k: v for k, v in record["ftslurm"].items() if k != "reported_before"}
    inner = {k: v for k, v in record["message"].items() if k in ("message", "errorCode")}
    extra = record["message"]["extraInfo"]
    inner["extraInfo"] = {k: v for k, v in extra.items() if k in ("py_callstack", "timestamp")}
    return {"message": inner, "ftslurm": ours}


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
    ours, inner = record["ftslurm"], record["message"]
    exception = ours["exception"]
    ours = {
        **ours,
        "argv": [clean(argument, 200) for argument in ours["argv"][:20]],
        "stacks": ours["stacks"] and clean(ours["stacks"], 4000),
        "exception": exception and {**exception, "message": clean(exception["message"], 1000)},
    }
    extra = {name: clean(text, 8000) for name, text in inner["extraInfo"].items()}
    return {"message": {**inner, "message": clean(inner["message"], 1000), "extraInfo": extra}, "ftslurm": ours}


def _without_exception(record: Record) -> Record:
    return {**record, "ftslurm": {**record["ftslurm"], "exception": None}}

"""The error record ``error.json``: a failed worker's record, completed with its agent's observations.

The worker writes its record (`ftslurm.records.error`) on its own node; the agent reads it as untrusted input: bounded,
no links followed, validated, and with rank, exit code and signal replaced by the agent's own values.
"""

from __future__ import annotations

import os
import re

from ftslurm.dataclasses import replace
from ftslurm.failures.exceptions import TEXT_LIMIT, clean, describe, headline, traceback_text, where
from ftslurm.failures.reason import reason
from ftslurm.failures.recordfile import encode, read, read_file, write
from ftslurm.records.error import SHM, ErrorRecord, HostResources
from ftslurm.text import cut_middle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

__all__ = ["STACKS", "complete", "complete_elsewhere", "encode", "exit_status", "from_exception", "identity"]
__all__ += ["merge", "read", "summary", "write"]

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
        "local_rank": number("LOCAL_RANK" if "FTSLURM_LOCAL_RANK" not in environment else "FTSLURM_LOCAL_RANK"),
        "world_size": number("WORLD_SIZE"),
    }


def from_exception(
    error: BaseException, trace: TracebackType | None, worker: ErrorRecord, previous: ErrorRecord | None
) -> ErrorRecord:
    """The record of an exception that reached the top level.

    Args:
        error: the exception; a SystemExit that hides no other one makes a record of kind "exit".
        trace: its traceback from the user's first frame on.
        worker: the other values: of its identity, its time, its context.
        previous: the present content of the file: torch's ``@record`` wrote it about this same exception, or
            copied it from a failed worker of a nested launch (then the exception is a ChildFailedError).
    """
    exception = describe(error, trace)
    text, callstack = headline(error), traceback_text(error, trace)
    record = replace(worker, kind="exception", exception=exception)
    if isinstance(error, SystemExit):
        place = where(exception)
        text += f" (at {place})" if place else ""
        why = reason(exception)
        if why is not exception:
            text = f"{why.type}: {why.message}; then {text}" if why.message else f"{why.type}; then {text}"
        kind = "exit" if why is exception else "exception"
        record = replace(record, kind=kind, exit_code=exit_status(error))
    if previous is not None and clean(previous.message) == headline(error):
        record = replace(record, foreign=previous.foreign)
    elif previous is not None:
        theirs = _texts(previous)
        record = replace(record, reported_before=dict(zip(("message", "py_callstack"), theirs, strict=True)))
        if isinstance(error, SystemExit) or type(error).__name__ == "ChildFailedError":
            # The launcher's own exception only reports a failed child; the copied record has its rank and reason.
            text = theirs[0]
            callstack = f"{theirs[1]}\nReported before this ended the process:\n\n{callstack}"
    return replace(record, message=clean(text), traceback=callstack)


def exit_status(error: SystemExit) -> int:
    """The interpreter's exit status for ``error`` (CPython: handle_system_exit)."""
    code: object = error.code
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return int(code) & 0xFF if -(2**63) <= code < 2**63 else 0xFF


def complete(record_dir: str | os.PathLike[str], observed: ErrorRecord) -> ErrorRecord | None:
    """The final record of a worker that has ended, for its agent to publish; None if it succeeded.

    Args:
        record_dir: the directory of error.json and stacks.txt; both may be missing, torn or hostile.
            Unusable parts are named in the record's "notes" and in its message.
        observed: the agent's observations: exit code or signal, time of the end, identity, step, open sections and
            host resources.

    In the result "time_ns" is the time of the exception's recording, if one was recorded (then also in
    "recorded_ns"), else the time of the end.
    """
    if observed.exit_code == 0:
        return None
    written, note = read(record_dir)
    return merge(written, note, _read_stacks(record_dir) if observed.signal else "", observed)


def complete_elsewhere(directory: str | os.PathLike[str], stacks: str, observed: ErrorRecord) -> ErrorRecord | None:
    """The result of `complete` for a record in the rank's directory of the run; None: there is none.

    A worker writes there if its node has no space for a record, or its record directory is missing.

    Args:
        directory: the rank's, in the run directory.
        stacks: faulthandler's text, or empty.
        observed: see `complete`. Attempt, round and rank must be those of the record: no other process was started
            with the same. Its pid need not be the worker's, whose children may have written it (`ftslurm.record`).
    """
    written, note = read(directory)
    if written is None or written.kind not in _BY_WORKERS or written.stopped_by_ftslurm is not None:
        # Nothing, or a record published by an agent.
        return None
    if any(getattr(written, name) != getattr(observed, name) for name in ("attempt", "round", "rank")):
        return None
    return merge(written, note, stacks, observed)


def merge(written: ErrorRecord | None, note: str | None, stacks: str, observed: ErrorRecord) -> ErrorRecord:
    """The result of `complete`; pure.

    Args:
        written: the worker's record, validated by `read`, or None.
        note: the error of an invalid file, if any.
        stacks: faulthandler's text, or empty.
        observed: see `complete`.
    """
    signal = observed.signal
    text, callstack = _ending(observed.exit_code, signal, stacks), stacks
    record = replace(observed, kind="signal" if signal else "exit")
    if written is not None:
        text, callstack = _texts(written)
        text += f"; then {_ending(None, signal, stacks)}" if signal else ""
        # torch stores whole seconds, which would make this rank the first among ranks that failed together.
        time_ns = min(written.time_ns, observed.time_ns)
        record = replace(
            record,
            kind=written.kind,
            time_ns=time_ns,
            recorded_ns=time_ns,
            argv=written.argv or observed.argv,
            step=written.step if observed.step is None else observed.step,
            world_size=written.world_size if observed.world_size is None else observed.world_size,
            exit_code=_wanted_exit(written) if signal and observed.exit_code is None else observed.exit_code,
            exception=written.exception,
            sections=written.sections or observed.sections,
            cuda=written.cuda,
            host_resources=_with_workers(observed.host_resources, written.host_resources),
            reported_before=written.reported_before,
            foreign=written.foreign,
        )
    text += f" ({note})" if note else ""
    return replace(
        record, message=clean(text), traceback=callstack, stacks=stacks or None, notes=(note,) if note else ()
    )


def _wanted_exit(written: ErrorRecord) -> int | None:
    """The code of a sys.exit that a signal preempted: "do not restart" (78) remains valid."""
    code = written.exit_code
    return code if written.exception is not None and code is not None and 0 < code < 256 else None


def _with_workers(agents: HostResources | None, workers: HostResources | None) -> HostResources | None:
    """Return the host's resources with those that only the worker could observe, while it held its part of them."""
    if agents is None or workers is None:
        return agents or workers
    shm = workers.shm
    if shm is None:
        return replace(agents, own_limit=workers.own_limit, file_limit=workers.file_limit)
    known = agents.shm or shm
    spaces = (replace(known, least_free=min(shm.free, known.least)), *(s for s in agents.spaces if s.path != SHM))
    return replace(agents, own_limit=workers.own_limit, file_limit=workers.file_limit, spaces=spaces)


def summary(record: ErrorRecord) -> dict[str, Any]:
    """The Failure dictionary of a completed record: rank, time, and a printable one-line description."""
    names = ("round", "node", "rank", "local_rank", "time_ns", "kind", "exit_code", "signal", "step")
    return {**{name: getattr(record, name) for name in names}, "message": one_line(record.message)}


def one_line(text: str, limit: int = SUMMARY_LIMIT) -> str:
    """``text`` on one line of at most ``limit`` characters, without control sequences for a terminal."""
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", cut_middle(text, 8 * limit))
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return cut_middle(text, limit)


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


def _texts(record: ErrorRecord) -> tuple[str, str]:
    return clean(record.message), clean(record.traceback, TEXT_LIMIT)

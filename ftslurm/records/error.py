"""The error record of a worker: ``rounds/<round>/ranks/<rank>/error.json``, before that in its node's record directory.

The file has the form of torch's error files (torch/distributed/elastic/multiprocessing/errors), so that torch's readers
show it: "message" with the text, the traceback ("py_callstack") and the exit code ("errorCode"). All other values are
under the key "ftslurm".
"""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.records.codec import BadFile, check_schema, record_of, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = ("exception", "exit", "signal", "spawn", "hang")
LIMIT, HOST, UNKNOWN = "limit", "host", "unknown"
"""The exhausted memory behind the kernel's kill of a process: that of a cgroup limit, or the host's."""
NEAR = 0.98
"""Part of a limit of memory from which it counts as reached."""
LOW = 0.02
"""Of the host's memory: with no more than this available, it is exhausted."""
FULL = 0.02
"""Of a filesystem's size: with no more than this free, it counts as full."""
SHM = "/dev/shm"


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback."""

    file: str
    line: int
    function: str
    source: str | None = None

    @property
    def place(self) -> str:
        """``/home/ann/train.py:12 in step``."""
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class ExceptionRecord:
    """An exception with those behind it.

    Attributes:
        type, module: of its class.
        message: ``str()`` of it.
        notes: of PEP 678.
        frames: outermost first.
        cause, context: as of `BaseException`; the context only if Python shows it.
        exceptions: the members of a group (PEP 654).
        hidden: a context that its author does not show (``from None``), in one line.
        frames_left_out: number of frames between those in `frames`.
        links_left_out: number of exceptions between this one and the recorded one behind it.
        masks: it was raised by a cleanup (``finally``, ``__exit__``) and took the place of its context.
        output: the end of the output of a child process that it carries (``CalledProcessError.stderr``).
        raised_again: the exception that took its place, in one line: another process raised it again, or a cleanup
            masked it. Of judged exceptions only, see `ftslurm.failures.reason`.
    """

    type: str
    module: str = ""
    message: str = ""
    notes: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    cause: ExceptionRecord | None = None
    context: ExceptionRecord | None = None
    exceptions: tuple[ExceptionRecord, ...] = ()
    hidden: str = ""
    frames_left_out: int = 0
    links_left_out: int = 0
    masks: bool = False
    output: str = ""
    raised_again: str = ""

    SPARSE = True

    @property
    def link(self) -> ExceptionRecord | None:
        """The exception behind it: its cause, else its context."""
        return self.cause or self.context

    @property
    def inner_file(self) -> str:
        """The file of the innermost frame; empty without frames."""
        return self.frames[-1].file if self.frames else ""


@dataclass(frozen=True)
class Space:
    """A node-local filesystem at a worker's failure, in bytes and inodes.

    `least_free` is the minimum in the seconds before: the space held by a process is free again after its end.
    """

    path: str
    free: int
    total: int
    free_inodes: int | None = None
    total_inodes: int | None = None
    least_free: int | None = None

    SPARSE = True

    @property
    def least(self) -> int:
        """The minimum of free bytes."""
        return self.free if self.least_free is None else min(self.free, self.least_free)

    @property
    def full(self) -> bool:
        """Whether it was full, in bytes or inodes."""
        if self.total_inodes and self.free_inodes == 0:
            return True
        return self.total > 0 and self.least <= FULL * self.total


HAS_PROPERTY = "has a property"
"""In the recorder's own note on an AttributeError: ``Net has a property scaled``."""
IN_LOG = "the kernel's line in the log"
"""The source of out-of-memory kills that are counted by lines of a log, beside which nothing was measured."""


@dataclass(frozen=True)
class OomKills:
    """The kernel's own count of out-of-memory kills in the cgroup of a worker and its agent.

    Attributes:
        recent: kills counted between `window_s` seconds before the worker's end and the end.
        in_round: kills counted since its round began.
        source: a description of the counter's file.
        at_limit: whether a limit of its cgroups was reached in those seconds; None: unknown.
        limit, peak: of the cgroup's memory, in bytes.
        limit_hits: number of times the limit was reached in the round.
    """

    recent: int
    in_round: int
    window_s: float = 0.0
    source: str = "memory.events"
    limit: int | None = None
    peak: int | None = None
    limit_hits: int | None = None
    at_limit: bool | None = None

    SPARSE = True

    @property
    def peaked(self) -> bool:
        """Whether the most memory used was the limit, where it is unknown whether that was reached in those seconds."""
        if self.at_limit is not None or not self.limit or self.peak is None:
            return False
        return self.peak >= NEAR * self.limit


@dataclass(frozen=True)
class HostResources:
    """The host's resources at a worker's failure, observed by its agent; `spaces` and own limits by a failing worker.

    Attributes:
        oom: the cgroup's counter; None: it could not be read.
        node_oom_kills: OOM kills on the whole node in those seconds, of any process (/proc/vmstat).
        spaces: /dev/shm and $TMPDIR.
        core_limit: bytes that a core file may have; -1: no limit.
        core_pattern: where the kernel puts core files.
        unread: resources that could not be read, with reasons.
        memory_total, least_available: the host's memory, and the minimum of available memory, in bytes.
        own_limit: of the worker's address space or data (ulimit -v, -d), in bytes; None: it has none.
        cpu_limit_s: of the worker's CPU time (ulimit -t), in seconds; None: it has none.
        file_limit: of the size of a file that the worker writes (ulimit -f), in bytes; None: it has none.
    """

    oom: OomKills | None = None
    node_oom_kills: int | None = None
    spaces: tuple[Space, ...] = ()
    core_limit: int | None = None
    core_pattern: str = ""
    unread: tuple[str, ...] = ()
    memory_total: int | None = None
    least_available: int | None = None
    own_limit: int | None = None
    cpu_limit_s: int | None = None
    file_limit: int | None = None

    SPARSE = True

    @property
    def ran_out(self) -> str | None:
        """The memory that ran out, LIMIT or HOST; None: unknown."""
        if self.oom is not None and (self.oom.at_limit or self.oom.peaked):
            return LIMIT
        return HOST if is_exhausted(self.memory_total, self.least_available) else None

    @property
    def killed_for(self) -> str:
        """The exhausted memory behind an OOM kill in the worker's cgroup: LIMIT, HOST, UNKNOWN; empty: none counted."""
        return (self.ran_out or UNKNOWN) if self.oom is not None and self.oom.recent else ""

    @property
    def shm(self) -> Space | None:
        """/dev/shm."""
        return next((space for space in self.spaces if space.path == SHM), None)

    @property
    def shm_full(self) -> bool:
        """Whether /dev/shm was full."""
        return self.shm is not None and self.shm.full


def is_exhausted(total: int | None, least_available: int | None) -> bool:
    """Return whether the host's memory was exhausted; both in bytes (MemTotal, MemAvailable of proc(5))."""
    return bool(total and least_available is not None and least_available <= LOW * total)


@dataclass(frozen=True)
class ErrorRecord:
    """A worker's failure: as it recorded that itself, or completed by its agent.

    Attributes:
        kind: one of KINDS.
        time_ns: of the failure, nanoseconds since the epoch; 0: unknown.
        message, traceback: as text, for torch's readers.
        round, node, rank, ...: the worker's.
        exit_code, signal: of its end; a worker records the exit code that it is about to end by.
        step: the last training step that it reported.
        stacks: of a fatal signal or a hang, as faulthandler writes them.
        notes: the agent's, on parts of the worker's record that are unusable.
        sections: those open at the end, with the seconds since their opening.
        cuda: torch's memory statistics by name, in bytes.
        recorded_ns: when the worker recorded it; None: it did not.
        reported_before: "message" and "py_callstack" of a record of another exception that this one replaces.
        stopped_by_ftslurm: whether its agent stopped it; None: not completed by an agent.
        foreign: what others wrote in the file, in the file's form.
    """

    kind: str
    time_ns: int
    message: str = ""
    traceback: str = ""
    run_id: str | None = None
    attempt: str | None = None
    round: int | None = None
    node: str | None = None
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    step: int | None = None
    argv: tuple[str, ...] = ()
    exception: ExceptionRecord | None = None
    stacks: str | None = None
    notes: tuple[str, ...] = ()
    sections: tuple[tuple[str, float], ...] = ()
    cuda: dict[str, int] | None = None
    host_resources: HostResources | None = None
    recorded_ns: int | None = None
    reported_before: dict[str, Any] | None = None
    stopped_by_ftslurm: bool | None = None
    foreign: dict[str, Any] | None = None

    SCHEMA, VERSION = "ftslurm/error", 1
    CHOICES = (("kind", KINDS),)
    SPARSE = True


def error_record_in(
    value: object, where: str, written_ns: int | None = None, *, lenient: bool = False
) -> tuple[ErrorRecord, str | None]:
    """Return the record in an error file's decoded JSON value, and why ftslurm's part of it is unusable, or partly.

    Without that part, as in a file of torch's ``@record``, only message and traceback of an exception are known.

    Args:
        where: the file's name, for errors.
        written_ns: the file's time, for one without ftslurm's part; None: torch's own, in whole seconds.
        lenient: see `ftslurm.records.codec`.

    Raises:
        BadFile: the value has no message.
    """
    if not isinstance(value, dict):
        raise BadFile(f"{where}: expected a JSON object, found {type(value).__name__}")
    outer = value.get("message")
    inner = {"message": outer} if isinstance(outer, str) else outer
    if not isinstance(inner, dict) or not isinstance(inner.get("message"), str):
        raise BadFile(f"{where}: has no message")
    extra = inner.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    text = extra.get("py_callstack")
    ours = value.get("ftslurm")
    outside = {
        "message": inner["message"],
        "traceback": text if isinstance(text, str) else "",
        "foreign": _foreign(value, inner, extra, ours is not None) or None,
    }
    problem = None
    for policy in (False, True) if ours is not None and lenient else (False,) * (ours is not None):
        try:
            found = check_schema(ours, where, ErrorRecord.SCHEMA, ErrorRecord.VERSION)
            return record_of(ErrorRecord, {**found, **outside}, where, lenient=policy), problem
        except BadFile as error:
            problem = problem or str(error)
    time_ns = _torch_time_ns(extra.get("timestamp")) if written_ns is None else written_ns
    return ErrorRecord("exception", time_ns, **outside), problem


def error_file(record: ErrorRecord) -> dict[str, Any]:
    """Return the content of the record's file, as JSON."""
    foreign: Any = record.foreign or {}
    inner = foreign.get("message", {})
    extra = {**inner.get("extraInfo", {}), "timestamp": str(record.time_ns // 1_000_000_000)}
    if record.traceback:  # torch shows the message if this key is missing
        extra["py_callstack"] = record.traceback
    message = {**inner, "message": record.message, "extraInfo": extra}
    code = _error_code(record)
    if code is not None:
        message["errorCode"] = code
    ours = to_json(record)
    for name in ("message", "traceback", "foreign"):
        ours.pop(name, None)
    ours = {"schema": record.SCHEMA, "version": record.VERSION, **ours}
    return {**foreign, "message": message, "ftslurm": ours}


def _foreign(value: dict[str, Any], inner: dict[str, Any], extra: dict[str, Any], ours: bool) -> dict[str, Any]:
    """Return what is neither ftslurm's nor the part of torch's form that ftslurm writes."""
    known = ("message", "extraInfo", "errorCode") if ours else ("message", "extraInfo")
    more = {name: one for name, one in inner.items() if name not in known}
    info = {name: one for name, one in extra.items() if name not in ("py_callstack", "timestamp")}
    if info:
        more["extraInfo"] = info
    rest = {name: one for name, one in value.items() if name not in ("message", "ftslurm")}
    return {**rest, "message": more} if more else rest


def _error_code(record: ErrorRecord) -> int | None:
    """Return torch's exit code of a process: for a signal its negative number (ProcessFailure.exitcode)."""
    import signal

    return -int(getattr(signal, record.signal, 0)) if record.signal else record.exit_code


def _torch_time_ns(stamp: object) -> int:
    digits = str(stamp) if isinstance(stamp, (str, int)) else ""
    # torch writes whole seconds as decimal text; anything else is ignored.
    return int(digits) * 10**9 if digits.isascii() and digits.isdigit() and len(digits) < 11 else 0

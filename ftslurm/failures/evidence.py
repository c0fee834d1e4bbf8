"""The facts about one worker's end, input of the catalogue's rows: frozen, from worker, agent and Slurm."""

from __future__ import annotations

from functools import cached_property

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.reason import by_distributed, handled, reason
from ftslurm.failures.retryability import NON_RETRYABLE_S
from ftslurm.pattern import pattern
from ftslurm.records.error import UNKNOWN, ExceptionRecord, Frame, HostResources

_END = 64 * 1024  # characters of stderr's end
_WATCHDOG_ERROR = pattern(r"watchdog thread terminated with exception: ((?:CUDA|HIP|NCCL) error: [^\n]{1,300})")
CAUSE, HANDLED, CONTEXT, MEMBER = "cause", "handled", "context", "member"

_LOOKUPS = ("KeyError", "IndexError", "AttributeError", "StopIteration", "ValueError", "TypeError", "LookupError")


@dataclass(frozen=True)
class Evidence:
    """The facts about the end of a worker, a node or a job.

    Attributes:
        kind: "exception", "exit", "signal", "spawn", "hang"; where no worker's end is judged "node-lost", "agent-lost",
            "agent-defect", "time-limit", "preempted", "cancelled", "health", "health-check", "scheduler".
        exception: the exception's type name, without its module; None if there was none.
        module: the module of that type.
        message: the exception's text, or the agent's description of the end.
        files: the files of its traceback's frames, outermost first.
        exit_code: the exit status, if the worker ended by itself.
        exit_message: the text with which the program ended itself because of the exception; empty: none.
        signal: the name of the signal that ended it ("SIGKILL").
        step: the last training step it reported; None before the first.
        tail: the end of its stderr; used only by rows that need a runtime's final message.
        notes: of the exception.
        inner: the exceptions behind it, each with its relation: CAUSE ("raise ... from"), HANDLED (the handler of that
            one raised it), CONTEXT (it was raised in what a handler of that one called), or MEMBER (of a group).
        life_s: the worker's lifetime, seconds.
        core_dumped: whether it wrote a core file.
        host_resources: observed by its agent; None: nothing is recorded.
        scheduler: the scheduler's state of the job or step that ended with it ("OUT_OF_MEMORY"); empty: unknown.
        health: the verdict of a health check on its node; empty: none.
        sections: those open at the end, with the seconds since their opening.
        cuda: CUDA's memory statistics by name, in bytes.
        frames: of its traceback, outermost first.
        raised_again: the exception that took its place, in one line; empty: none.
        output: what the exception has of a child process's output.
        nccl_warnings: the last WARN lines of NCCL in its output.
        left_out: the number of exceptions between this one and the one behind it that are not recorded.
    """

    kind: str
    exception: str | None = None
    module: str = ""
    message: str = ""
    files: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: str | None = None
    step: int | None = None
    tail: str = ""
    notes: tuple[str, ...] = ()
    inner: tuple[tuple[str, Evidence], ...] = ()
    life_s: float | None = None
    core_dumped: bool = False
    host_resources: HostResources | None = None
    scheduler: str = ""
    health: str = ""
    sections: tuple[tuple[str, float], ...] = ()
    cuda: tuple[tuple[str, int], ...] = ()
    exit_message: str = ""
    frames: tuple[Frame, ...] = ()
    raised_again: str = ""
    output: str = ""
    nccl_warnings: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def early(self) -> bool:
        """Whether the worker was probably still starting: no reported step, and a short lifetime."""
        return self.step is None and (self.life_s is None or self.life_s < NON_RETRYABLE_S)

    @property
    def oom_kills(self) -> int:
        """OOM kills in its cgroup shortly before its end; 0 without a counter."""
        oom = self.host_resources.oom if self.host_resources else None
        return oom.recent if oom else 0

    @property
    def killed_for(self) -> str:
        """The exhausted memory behind an OOM kill: LIMIT, HOST, UNKNOWN; empty: no kill was counted."""
        counted = self.host_resources.killed_for if self.host_resources else ""
        return counted or (UNKNOWN if self.scheduler == "OUT_OF_MEMORY" else "")

    @property
    def own_limit(self) -> int | None:
        """The limit of its own address space or data, in bytes."""
        return self.host_resources.own_limit if self.host_resources else None

    @property
    def file_limit(self) -> int | None:
        """The limit of the size of its files, in bytes."""
        return self.host_resources.file_limit if self.host_resources else None

    @property
    def cpu_limit_s(self) -> int | None:
        """The limit of its CPU time, in seconds."""
        return self.host_resources.cpu_limit_s if self.host_resources else None

    @property
    def shm_full(self) -> bool:
        """Whether /dev/shm was full."""
        return self.host_resources is not None and self.host_resources.shm_full

    @cached_property
    def by_distributed(self) -> bool:
        """Whether torch.distributed itself raised it."""
        if self.exception is None:
            return False
        return by_distributed(self.exception, self.module, self.message, self.files[-1] if self.files else "")

    @cached_property
    def nccl(self) -> str:
        """NCCL's own texts about an error that torch's process group raised; empty if it raised none."""
        by_nccl = "DistBackendError" in self.tail or "NCCL error: " in self.tail
        if self.exception is None and self.signal == "SIGABRT" and by_nccl:
            return "\n".join([*self.nccl_warnings, self.tail])
        # Other libraries call NCCL themselves.
        if not (self.by_distributed or self.message.startswith("NCCL error")) or "nccl" not in self.message.lower():
            return ""
        return "\n".join([*self.nccl_warnings, self.message])

    @cached_property
    def watchdog_error(self) -> str:
        """The error of CUDA or NCCL by which torch's watchdog of NCCL ended the process; empty: none."""
        if self.signal != "SIGABRT":
            return ""
        found = _WATCHDOG_ERROR.search(self.tail[-_END:])
        return found[1] if found is not None else ""

    @property
    def root(self) -> Evidence:
        """The exception at the other end of a chain of "raise ... from"; itself, if there is none behind it."""
        found = self
        while cause := next((inner for how, inner in found.inner if how == CAUSE), None):
            found = cause
        return found

    @property
    def handled(self) -> Evidence | None:
        """The exception during whose handling this one was raised, if the handler itself raised it; else None."""
        return next((inner for how, inner in self.inner if how == HANDLED), None)

    def raised(self, exception: ExceptionRecord) -> Evidence:
        """Return the evidence of the same end with another exception in its chain."""
        return replace(
            self,
            exception=exception.type,
            module=exception.module,
            message=exception.message,
            files=tuple(frame.file for frame in exception.frames),
            frames=exception.frames,
            notes=exception.notes,
            raised_again=exception.raised_again,
            output=exception.output,
            left_out=exception.links_left_out,
            inner=(),
            tail="",
        )


def _hidden(text: str) -> ExceptionRecord | None:
    """Return the exception that ``from None`` hides: a framework's own one may follow from anything.

    Lookups and conversions that fail are no reason of their own: their authors say more in the exception instead.
    """
    kind, _, message = text.partition(": ")
    name = kind.rpartition(".")[2]
    if not name.isidentifier() or name in _LOOKUPS:
        return None
    return ExceptionRecord(name, "", message)


def with_exception(whole: Evidence, exception: ExceptionRecord) -> Evidence:
    """Return the evidence of an end by an exception and those behind it."""
    inner = [(MEMBER, with_exception(whole, reason(member))) for member in exception.exceptions]
    link = exception.link
    hidden = _hidden(exception.hidden)
    if link is None and hidden is not None:
        inner.append((HANDLED, with_exception(whole, hidden)))
    if link is not None:
        how = CAUSE if exception.cause is not None else HANDLED if handled(exception) is not None else CONTEXT
        inner.insert(0, (how, with_exception(whole, link if how == CONTEXT else reason(link))))
    return replace(whole.raised(exception), inner=tuple(inner))

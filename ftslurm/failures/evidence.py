"""The facts about one worker's end, input of the catalogue's rows: frozen, from worker, agent and Slurm."""

from __future__ import annotations

import re
from functools import cached_property

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.memory import ran_out
from ftslurm.failures.retryability import NON_RETRYABLE_S

UNKNOWN = "unknown"
CAUSE, CONTEXT, MEMBER = "cause", "context", "member"
_RUNTIME_WORDS = re.compile(r"gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL (error|version|WARN)|c10::")
FULL = 0.02  # of a filesystem's size: with no more than this free, it counts as full


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


@dataclass(frozen=True)
class HostResources:
    """The host's resources, observed by the agent at a worker's failure.

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

    @property
    def ran_out(self) -> str | None:
        """The exhausted memory behind an OOM kill, the limit's or the host's; see `ftslurm.failures.memory`."""
        return ran_out(self.oom.at_limit if self.oom else None, self.memory_total, self.least_available)

    @property
    def shm(self) -> Space | None:
        """/dev/shm."""
        return next((space for space in self.spaces if space.path == "/dev/shm"), None)


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
        inner: the exceptions behind it, each with its relation: CAUSE ("raise ... from"), CONTEXT (raised while that
            one was handled), or MEMBER (of an exception group).
        life_s: the worker's lifetime, seconds.
        core_dumped: whether it wrote a core file.
        host_resources: observed by its agent; None: nothing is recorded.
        scheduler: the scheduler's state of the job or step that ended with it ("OUT_OF_MEMORY"); empty: unknown.
        health: the verdict of a health check on its node; empty: none.
        sections: those open at the end, with the seconds since their opening.
        cuda: CUDA's memory statistics by name, in bytes.
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
        if not self.oom_kills and self.scheduler != "OUT_OF_MEMORY":
            return ""
        return (self.host_resources.ran_out if self.host_resources and self.oom_kills else None) or UNKNOWN

    @property
    def own_limit(self) -> int | None:
        """The limit of its own address space or data, in bytes."""
        return self.host_resources.own_limit if self.host_resources else None

    @property
    def cpu_limit_s(self) -> int | None:
        """The limit of its CPU time, in seconds."""
        return self.host_resources.cpu_limit_s if self.host_resources else None

    @property
    def shm_full(self) -> bool:
        """Whether /dev/shm was full."""
        shm = self.host_resources.shm if self.host_resources else None
        return shm is not None and shm.full

    @cached_property
    def by_distributed(self) -> bool:
        """Whether torch.distributed itself raised it: by type, by text of the runtime, or by the innermost frame."""
        if self.exception is None:
            return False
        if self.exception.startswith("Dist") and (self.module.startswith("torch") or not self.module):
            return True
        if self.exception != "RuntimeError":
            return False
        inner = self.files[-1] if self.files else ""
        return "/torch/distributed/" in inner or _RUNTIME_WORDS.search(self.message) is not None

    def raised(
        self, exception: str, module: str, message: str, files: tuple[str, ...], notes: tuple[str, ...] = ()
    ) -> Evidence:
        """Return the evidence of the same end with another exception in its chain."""
        return replace(
            self, exception=exception, module=module, message=message, files=files, notes=notes, inner=(), tail=""
        )

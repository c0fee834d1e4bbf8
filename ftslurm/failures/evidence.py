"""What is known of one worker's end, as the causes judge it: frozen facts, from whoever saw them."""

from __future__ import annotations

import re
from functools import cached_property

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.memory import ran_out
from ftslurm.failures.retryability import HOPELESS_S

UNKNOWN = "unknown"
CAUSE, CONTEXT, MEMBER = "cause", "context", "member"
_RUNTIME_WORDS = re.compile(r"gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL (error|version|WARN)|c10::")
FULL = 0.02  # of a filesystem's size: with no more than this left, it is taken to be full


@dataclass(frozen=True)
class Space:
    """A node-local filesystem when a worker failed, in bytes and inodes.

    `least_free` is the least that was seen in the seconds before: what a process held is free again when it has ended.
    """

    path: str
    free: int
    total: int
    free_inodes: int | None = None
    total_inodes: int | None = None
    least_free: int | None = None

    @property
    def least(self) -> int:
        """Bytes free when it was fullest."""
        return self.free if self.least_free is None else min(self.free, self.least_free)

    @property
    def full(self) -> bool:
        """Whether hardly anything more went in."""
        if self.total_inodes and self.free_inodes == 0:
            return True
        return self.total > 0 and self.least <= FULL * self.total


@dataclass(frozen=True)
class OomKills:
    """The kernel's own count of out-of-memory kills in the cgroup of a worker and its agent.

    Attributes:
        recent: kills counted between `window_s` seconds before the worker's end and the end.
        in_round: kills counted since its round began.
        source: the counter's file, in words.
        at_limit: whether a limit of its cgroups was met in those seconds; None: not known.
        limit, peak: of the cgroup's memory, in bytes.
        limit_hits: how often the limit was hit in the round.
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
    """What the agent saw around a worker that failed.

    Attributes:
        oom: the cgroup's counter; None: it could not be read.
        node_oom_kills: OOM kills on the whole node in those seconds, whosever they were (/proc/vmstat).
        spaces: /dev/shm and $TMPDIR.
        core_limit: bytes that a core file may have; -1: no limit.
        core_pattern: where the kernel puts core files.
        unread: what could not be looked at, and why.
        memory_total, least_available: the host's memory, and the least that was available of it, in bytes.
        own_limit: of the worker's address space or data (ulimit -v, -d), in bytes; None: it has none.
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

    @property
    def ran_out(self) -> str | None:
        """Whose memory ran out, if the kernel killed for that; see `ftslurm.failures.memory`."""
        return ran_out(self.oom.at_limit if self.oom else None, self.memory_total, self.least_available)

    @property
    def shm(self) -> Space | None:
        """/dev/shm."""
        return next((space for space in self.spaces if space.path == "/dev/shm"), None)


@dataclass(frozen=True)
class Evidence:
    """What is known of one worker's end, or of a node's or a job's.

    Attributes:
        kind: "exception", "exit", "signal", "spawn", "hang"; where no worker's end is judged "node-lost", "agent-lost",
            "agent-defect", "time-limit", "preempted", "cancelled", "health", "health-check", "scheduler".
        exception: the exception's type name, without its module; None if there was none.
        module: the module of that type.
        message: the exception's text, or what the agent wrote about the end.
        files: the files of its traceback's frames, outermost first.
        exit_code: the exit status, if the worker ended by itself.
        exit_message: the text with which the program ended itself because of the exception; empty: none.
        signal: the name of the signal that ended it ("SIGKILL").
        step: the last training step it reported; None before the first.
        tail: the end of its stderr; only trusted by rows that need a runtime's own last words.
        notes: of the exception.
        inner: what the exception came from, each with how: CAUSE ("raise ... from"), CONTEXT (raised while that one was
            handled), or MEMBER (of an exception group).
        life_s: how long the worker lived, seconds.
        core_dumped: whether it left a core file.
        surroundings: what its agent saw; None: nothing is recorded.
        scheduler: the scheduler's state of the job or step that ended with it ("OUT_OF_MEMORY"); empty: unknown.
        health: the verdict of a health check on its node; empty: none.
        sections: those open at the end, with the seconds since they were opened.
        cuda: CUDA's memory figures by name, in bytes.
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
        """Whether the worker was still starting, as far as it told: no step, and not long ago."""
        return self.step is None and (self.life_s is None or self.life_s < HOPELESS_S)

    @property
    def oom_kills(self) -> int:
        """OOM kills in its cgroup shortly before its end; 0 where nobody could count."""
        oom = self.host_resources.oom if self.host_resources else None
        return oom.recent if oom else 0

    @property
    def killed_for(self) -> str:
        """Whose memory ran out where the kernel killed for that: LIMIT, HOST, UNKNOWN; empty: nobody counted a kill."""
        if not self.oom_kills and self.scheduler != "OUT_OF_MEMORY":
            return ""
        return (self.host_resources.ran_out if self.host_resources and self.oom_kills else None) or UNKNOWN

    @property
    def own_limit(self) -> int | None:
        """The limit of its own address space or data, in bytes."""
        return self.host_resources.own_limit if self.host_resources else None

    @property
    def shm_full(self) -> bool:
        """Whether /dev/shm was seen to be full."""
        shm = self.host_resources.shm if self.host_resources else None
        return shm is not None and shm.full

    @cached_property
    def by_distributed(self) -> bool:
        """Whether torch.distributed itself raised it: by type, by the runtime's marks, or by the innermost frame."""
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

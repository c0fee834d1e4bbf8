"""The ends of processes and of the job, and the kernel's lines, as a log states them (pure)."""

from __future__ import annotations

import signal

from ftslurm.dataclasses import dataclass, replace
from ftslurm.report.logs.tracebacks import Raised
from ftslurm.slurm.nodelist import expand

_LAST_SIGNAL = 31
"""Of those that end a process by default; above are those of real time."""


@dataclass(frozen=True)
class End:
    """The end of a process, as stated in a log.

    Attributes:
        number: of the line.
        by: what states it: "srun", "torchrun", "table", "deepspeed", "lightning", "spawn", "mpirun", "horovod",
            "composer", "pdsh", "ssh", "parent", "shell", "script", "pod", "condor", "abort" (of MPI).
        text: the line.
        rank, local, node, pid: of the process, as far as stated; ``tasks``: Slurm's.
        code: exit code.
        signal: its name.
        oom: whether Slurm states that memory ran out.
        stopped: whether a launcher had stopped it.
        agent: torchrun's own pid.
        raised: its exception in torchrun's table.
        root: whether torchrun observed it first.
        at: its time, as torchrun prints it; empty: not stated.
    """

    number: int
    by: str
    text: str
    rank: int | None = None
    tasks: tuple[int, ...] = ()
    local: int | None = None
    node: str | None = None
    pid: int | None = None
    code: int | None = None
    signal: str | None = None
    oom: bool = False
    stopped: bool = False
    agent: str | None = None
    raised: Raised | None = None
    root: bool = False
    at: str = ""


@dataclass(frozen=True)
class JobEnd:
    """A statement on a job or step, Slurm's or a launcher's.

    ``state``: as Slurm's states, or "REQUEUED"; ``why``: what is known of a cancellation, in a few words.
    """

    number: int
    text: str
    state: str
    node: str | None
    job_id: str | None
    whole: bool
    at: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Kernel:
    """A line of the kernel; ``kind``: "cgroup" and "host" are OOM kills."""

    number: int
    text: str
    kind: str


@dataclass(frozen=True)
class Ends:
    """All statements on ends in a log, in order."""

    processes: tuple[End, ...] = ()
    job: tuple[JobEnd, ...] = ()
    kernel: tuple[Kernel, ...] = ()
    oom: tuple[int, ...] = ()


def with_code(end: End, code: int) -> End:
    """Return the end with an exit code, or for a negative one with the signal."""
    return replace(end, code=code) if code >= 0 else replace(end, signal=signal_name(-code))


SIGNALS = {
    "Segmentation fault": "SIGSEGV", "Killed": "SIGKILL", "Aborted": "SIGABRT", "Abort": "SIGABRT",
    "Bus error": "SIGBUS", "Terminated": "SIGTERM", "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL", "Interrupt": "SIGINT", "Hangup": "SIGHUP", "Broken pipe": "SIGPIPE",
    "User defined signal 1": "SIGUSR1", "User defined signal 2": "SIGUSR2", "Trace/breakpoint trap": "SIGTRAP",
    "CPU time limit exceeded": "SIGXCPU", "File size limit exceeded": "SIGXFSZ",
}  # fmt: skip
"""Names of signals by their descriptions, as of strsignal(3)."""


def of_code(end: End, code: int) -> End:
    """Return the end with a code as a shell reports it: above 128 a signal, if there is one of that number."""
    return with_code(end, 128 - code if 128 < code <= 128 + _LAST_SIGNAL else code)


def signal_name(number: int) -> str:
    """Return the name of a signal, or ``signal 70`` for a number without one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def nodes_of(text: str | None) -> list[str]:
    """Return the nodes in Slurm's form of a list."""
    if not text:
        return []
    try:
        return list(expand(text))[:64]
    except ValueError:
        return [text]

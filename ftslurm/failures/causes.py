"""The causes of failures that ftslurm knows: one row each, and the pure function that picks the row.

A row says what it is matched by, whether such a failure starts things (*primary*) or follows from another
rank's failure (*cascade*), and what the user can do. Rows are tried in order and the first match wins, so
special rows stand above general ones. A row needs proof: words that anybody can print ("NCCL", "Killed",
"OOM") count only where the runtime itself put them, never because they occur in some output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PRIMARY = "primary"
CASCADE = "cascade"


@dataclass(frozen=True)
class Evidence:
    """What is known of one worker's end.

    Attributes:
        kind: "exception", "exit", "signal", "spawn", "node-lost" or "hang".
        exception: the exception's type name, without its module; None if there was none.
        module: the module of that type.
        message: the exception's text, or what the agent wrote about the end.
        files: the files of its traceback's frames, outermost first.
        exit_code: the exit status, if the worker ended by itself.
        signal: the name of the signal that ended it ("SIGKILL").
        step: the last training step it reported; None before the first.
        tail: the end of its stderr; only trusted by rows that need a runtime's own last words.
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


@dataclass(frozen=True)
class Cause:
    """One row of the registry; `advice` is one or two short sentences, or empty."""

    name: str
    title: str
    role: str
    matches: Callable[[Evidence], bool]
    advice: str = ""


def _exception(*types: str, text: str = "") -> Callable[[Evidence], bool]:
    """Match an exception by its type name (any, if none are given) and a pattern in its message."""
    pattern = re.compile(text) if text else None

    def matches(e: Evidence) -> bool:
        if e.exception is None or (types and e.exception not in types):
            return False
        return pattern is None or pattern.search(e.message) is not None

    return matches


def _signal(*names: str) -> Callable[[Evidence], bool]:
    return lambda e: e.kind == "signal" and (not names or e.signal in names)


def _exit(*codes: int) -> Callable[[Evidence], bool]:
    return lambda e: e.kind == "exit" and (not codes or e.exit_code in codes)


_RUNTIME_WORDS = re.compile(r"gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL (error|version|WARN)|c10::")


def _distributed(e: Evidence) -> bool:
    """Whether torch.distributed itself raised: by type, by the runtime's marks, or by the innermost frame."""
    if e.exception is None:
        return False
    if e.exception.startswith("Dist") and (e.module.startswith("torch") or not e.module):
        return True
    if e.exception != "RuntimeError":
        return False
    inner = e.files[-1] if e.files else ""
    return "/torch/distributed/" in inner or _RUNTIME_WORDS.search(e.message) is not None


def _in_distributed(text: str) -> Callable[[Evidence], bool]:
    pattern = re.compile(text)
    return lambda e: _distributed(e) and pattern.search(e.message) is not None


def _tail_of(signal: str, text: str) -> Callable[[Evidence], bool]:
    pattern = re.compile(text)
    return lambda e: e.kind == "signal" and e.signal == signal and pattern.search(e.tail) is not None


def _at_start(e: Evidence) -> bool:
    types = ("SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError")
    return e.exception in types and e.step is None


ROWS: tuple[Cause, ...] = (
    Cause("spawn", "could not be started", PRIMARY, lambda e: e.kind == "spawn",
          "Check that the program and its interpreter exist on this node and are executable."),
    Cause("node-lost", "node lost", PRIMARY, lambda e: e.kind == "node-lost",
          "Ask Slurm what it knows of the node: sacct, sinfo -R."),
    Cause("hang", "hang", PRIMARY, lambda e: e.kind == "hang",
          "No stacks were collected; see the ranks' output for what each did last."),
    # torch.distributed: what breaks on the survivors when another rank ends.
    Cause("port-in-use", "port in use", PRIMARY, _in_distributed(r"EADDRINUSE|[Aa]ddress already in use"),
          "Another process holds the port. Let ftslurm choose it: do not set MASTER_PORT in the script."),
    Cause("nccl-usage", "NCCL used wrongly", PRIMARY,
          _in_distributed(r"ncclInvalidUsage|Duplicate GPU detected"),
          "Usually two ranks on one GPU: set the device from LOCAL_RANK."),
    Cause("nccl-timeout", "NCCL time-out", CASCADE,
          _in_distributed(r"[Ww]atchdog caught collective operation timeout|NCCL.*[Tt]imed? ?out"),
          "A rank waited for one that did not come: look for a rank that stopped, hung or went elsewhere."),
    Cause("peer-reset", "connection to another rank broke", CASCADE,
          _in_distributed(r"Connection (closed|reset) by peer|Broken pipe|[Ss]ocket closed|Connection refused"
                          r"|recvValue failed|failed to recv, got 0 bytes|Read (error|timeout)|writev?: "),
          "The rank at the other end ended first: its own failure is the one to look for."),
    Cause("collective-timeout", "time-out waiting for other ranks", CASCADE,
          _in_distributed(r"[Tt]imed out|[Tt]imeout|DistStoreError|wait timeout"),
          "A rank waited for one that did not come: look for a rank that stopped, hung or went elsewhere."),
    Cause("nccl", "NCCL error", CASCADE, _in_distributed(r"NCCL|nccl"),
          "Run with NCCL_DEBUG=WARN for NCCL's own reason if no other rank explains this."),
    Cause("nccl-abort", "NCCL's watchdog aborted the process", CASCADE,
          _tail_of("SIGABRT", r"ProcessGroupNCCL.*[Ww]atchdog|Watchdog caught collective operation timeout"),
          "A rank waited for one that did not come: look for a rank that stopped, hung or went elsewhere."),
    # Devices and memory.
    Cause("cuda-oom", "CUDA out of memory", PRIMARY,
          lambda e: (e.exception == "OutOfMemoryError" and e.module.startswith("torch"))
          or _exception("RuntimeError", "AcceleratorError", "OutOfMemoryError",
                        text=r"CUDA out of memory|CUDA error: out of memory")(e),
          "Smaller batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."),
    Cause("cuda-assert", "CUDA device-side assert", PRIMARY,
          _exception("RuntimeError", "AcceleratorError", text="device-side assert triggered"),
          "Often an index out of range. Run with CUDA_LAUNCH_BLOCKING=1 for the right line."),
    Cause("cuda-error", "CUDA error", PRIMARY,
          _exception("RuntimeError", "AcceleratorError", text="^CUDA error"),
          "Look for Xid messages of this node in dmesg; if it is always this node, exclude it."),
    Cause("dataloader-worker", "a DataLoader worker died", PRIMARY,
          _exception("RuntimeError", text=r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)"),
          "Often too little memory or /dev/shm: fewer workers, smaller batches, or more of either."),
    Cause("host-memory", "host memory ran out", PRIMARY,
          lambda e: e.exception == "MemoryError"
          or _exception("RuntimeError", text="DefaultCPUAllocator: can't alloc")(e),
          "More memory for the job (--mem), or less per rank."),
    # The script and its files.
    Cause("start", "the script cannot start", PRIMARY, _at_start,
          "It fails the same way every time: fix the script or its environment before submitting again."),
    Cause("disk-full", "disk full", PRIMARY,
          _exception(text=r"\[Errno 28\]|No space left on device|PytorchStreamWriter failed writing"),
          "Free space on that filesystem, or write elsewhere."),
    Cause("quota", "disk quota exceeded", PRIMARY, _exception(text=r"\[Errno 122\]|[Dd]isk quota exceeded"),
          "Free space under that quota, or write elsewhere."),
    Cause("missing-file", "a file is missing", PRIMARY, _exception("FileNotFoundError"),
          "Check that the path exists on this node too, not only where you submitted."),
    Cause("permission", "permission denied", PRIMARY, _exception("PermissionError"),
          "Check the owner and the mode of the path on this node."),
    Cause("system-exit", "the script ended itself", PRIMARY, _exception("SystemExit"),
          "Its reason is usually in the last lines of its output."),
    Cause("interrupt", "interrupted", PRIMARY, _exception("KeyboardInterrupt"), ""),
    Cause("exception", "Python exception", PRIMARY,
          lambda e: e.exception is not None or e.kind == "exception"),
    # Ends without an exception. A bare SIGKILL is nobody's for sure: the kernel's OOM killer, Slurm and
    # people all use it, so it is never called out-of-memory without a counter that says so.
    Cause("sigkill", "killed by SIGKILL, by whom is unknown", PRIMARY, _signal("SIGKILL"),
          "Look for the kernel's OOM killer (dmesg, sacct: OUT_OF_MEMORY) and for people or tools who kill."),
    Cause("segfault", "segmentation fault", PRIMARY, _signal("SIGSEGV"),
          "Native code crashed: the stacks show the Python line that called it."),
    Cause("bus-error", "bus error", PRIMARY, _signal("SIGBUS"),
          "Often a full /dev/shm or a mapped file that was truncated."),
    Cause("abort", "aborted", PRIMARY, _signal("SIGABRT"),
          "Native code gave up: its reason is in the last lines of stderr."),
    Cause("illegal-instruction", "illegal instruction", PRIMARY, _signal("SIGILL"),
          "A binary built for another CPU than this node's."),
    Cause("terminated", "terminated by SIGTERM, not by ftslurm", PRIMARY, _signal("SIGTERM"),
          "Somebody or something else sent it; Slurm does so before a time limit or a preemption."),
    Cause("signal", "ended by a signal", PRIMARY, _signal()),
    Cause("shell-killed", "a command of the script was killed by SIGKILL", PRIMARY, _exit(137),
          "Exit code 137 is a shell's word for SIGKILL; by whom is unknown."),
    Cause("shell-crashed", "a command of the script crashed", PRIMARY, _exit(134, 135, 139),
          "A shell reports a crash by signal as 128 + its number."),
    Cause("exit", "ended with an exit code", PRIMARY, lambda e: True),
)  # fmt: skip


def classify(evidence: Evidence, rows: Sequence[Cause] = ROWS) -> Cause:
    """Return the first row that matches; the last built-in row matches everything."""
    for row in rows:
        if row.matches(evidence):
            return row
    return ROWS[-1]


def _is_number(text: str) -> bool:
    return not text or text.removeprefix("-").isdigit()


def describe(evidence: Evidence, cause: Cause) -> str:
    """Say in one line what happened, as the middle of "rank 3 on n2: ...". Never empty."""
    if evidence.exception == "SystemExit":
        code = "sys.exit" if evidence.exit_code is None else f"exit code {evidence.exit_code}"
        return code if _is_number(evidence.message) else f"{code}: {evidence.message}"
    if evidence.exception is not None:
        return f"{evidence.exception}: {evidence.message}" if evidence.message else evidence.exception
    if evidence.kind == "signal":
        name = evidence.signal or "a signal"
        return cause.title if name in cause.title else f"{cause.title} ({name})"
    if evidence.kind in ("exception", "spawn", "node-lost", "hang"):
        return evidence.message or cause.title
    if evidence.exit_code is None:
        return evidence.message or "ended, how is not recorded"
    return f"exit code {evidence.exit_code}"

"""Causes of memory, processes and shared memory."""

from __future__ import annotations

import re

from ftslurm.failures.catalogue.cause import PRIMARY, Cause
from ftslurm.failures.evidence import Evidence
from ftslurm.failures.predicates import (
    CHILD_LOST,
    at_end,
    either,
    ended,
    exception,
    loader_gone,
    os_error,
    signal,
    tail,
)
from ftslurm.failures.retryability import PERHAPS
from ftslurm.records.error import HOST, LIMIT, UNKNOWN

_KILLED = either(
    signal("SIGKILL"),
    ended(137),
    exception("RuntimeError", text=r"DataLoader worker \(pid.*(killed by signal: Killed|exited unexpectedly)"),
    exception("RuntimeError", "BrokenProcessPool", "ChildProcessError", text=CHILD_LOST),
    loader_gone,
)

_NO_THREAD_LINE = (
    r"OpenBLAS blas_thread_init: pthread_create failed|libgomp: Thread creation failed|OMP: Error #34"
    r"|.{0,80}: fork: (retry: )?Resource temporarily unavailable|.{0,300}\bthread: Resource temporarily unavailable"
)
_NO_THREAD = rf"(?m)^({_NO_THREAD_LINE})"

BY_SLURM = r"exceeded (?:step |job )?memory limit|Exceeded (?:step|job) memory limit"
"""Slurm measures memory and kills by itself: the kernel and its counters have no part in it."""
BY_BATCH_SYSTEM = r"TERM_(?:MEMLIMIT|SWAP): job killed|PBS: job killed: p?v?mem "
"""LSF and PBS do the same."""
_REFUSED = either(
    exception("MemoryError"),
    exception(
        "RuntimeError",
        text=r"DefaultCPUAllocator: can't alloc|\bbad_alloc\b|unable to mmap .{0,200}allocate memory",
    ),
    os_error(12),
)


def _no_process(e: Evidence) -> bool:
    """Match a process or thread that could not be started: of a lock or a socket, the number means that it is taken."""
    if not os_error(11)(e):
        return False
    if not e.frames:
        return True
    innermost = f"{e.frames[-1].function} {e.frames[-1].source or ''}".lower()
    return any(each in innermost for each in ("fork", "popen", "execute_child", "start", "spawn"))


ROWS: tuple[Cause, ...] = (
    Cause("slurm-memory", "killed by Slurm: its memory limit was exceeded", PRIMARY,
          lambda e: e.signal == "SIGKILL" and re.search(BY_SLURM, e.message) is not None,
          "Request more memory (--mem), use fewer loader workers, or less per rank.",
          not_for="an out-of-memory kill by the kernel", blame=PERHAPS),
    Cause("batch-memory", "killed by the batch system: its memory limit was exceeded", PRIMARY,
          lambda e: e.signal == "SIGKILL" and re.search(BY_BATCH_SYSTEM, e.message) is not None,
          "Request more memory (LSF: -M, -v; PBS: mem), use fewer loader workers, or less per process.",
          not_for="an out-of-memory kill by the kernel", blame=PERHAPS),
    Cause("memory-limit", "killed by the kernel: its memory limit was reached", PRIMARY, _KILLED,
          "Request more memory (--mem, or a container's limit), use fewer loader workers, or less per rank: the node"
          " may have more.",
          proof=lambda e: e.killed_for == LIMIT, not_for="a host without free memory"),
    Cause("host-oom-kill", "killed by the kernel: the host's memory ran out", PRIMARY, _KILLED,
          "Check the node for other users of memory and for leftovers; fewer loader workers, or less per rank.",
          proof=lambda e: e.killed_for == HOST, not_for="a kill at the job's or the rank's own limit", blame=PERHAPS),
    Cause("oom-kill", "killed by the kernel: out of memory", PRIMARY, _KILLED,
          "More memory for the job (--mem), fewer loader workers, or less per rank.",
          proof=lambda e: e.killed_for == UNKNOWN,
          not_for='a SIGKILL without a counted OOM kill, or "OOM" or "Killed" in some output'),
    Cause("ray-memory", "Ray killed a task: its node ran low on memory", PRIMARY,
          exception("OutOfMemoryError", "RayTaskError", text="node running low on memory|memory usage threshold"),
          "Fewer or smaller tasks per node, or more memory for the job (--mem); Ray's own line names node and sizes.",
          not_for="a kill by the kernel, or a GPU's memory"),
    Cause("shm-full", "bus error with a full /dev/shm", PRIMARY,
          either(signal("SIGBUS"), exception("RuntimeError", text=r"DataLoader worker \(pid.*signal: Bus error"),
                 ended(135)),
          "A larger /dev/shm (containers: --shm-size), fewer loader workers, or remove old files in it.",
          proof=lambda e: e.shm_full, not_for="a bus error from a truncated file or a full disk", blame=PERHAPS),
    Cause("shm-space", "/dev/shm is full", PRIMARY,
          exception("RuntimeError", "OSError", text=r"(shared memory|</torch_\d|/dev/shm/).{0,200}No space left"
                    r"|unable to allocate shared memory|insufficient shared memory"),
          "A larger /dev/shm (containers: --shm-size), fewer loader workers, or remove old files in it.",
          not_for="a full disk", behind=True),
    Cause("dataloader-timeout", "the data loader's workers took too long", PRIMARY,
          exception("RuntimeError", text=r"DataLoader timed out after \d+"),
          "Slow storage or a stuck worker: see its stack (py-spy), more workers, or a longer timeout of the loader.",
          not_for="a time-out of a collective"),
    Cause("pin-memory", "the data loader's pin-memory thread ended", PRIMARY,
          exception("RuntimeError", text="Pin memory thread exited unexpectedly"),
          "Its traceback is further up in stderr; often the GPU failed, or file descriptors ran out (ulimit -n;"
          " torch.multiprocessing.set_sharing_strategy('file_system')).",
          not_for="a worker that died"),
    Cause("dataloader-bus", "a DataLoader worker died of a bus error", PRIMARY,
          exception("RuntimeError", text=r"DataLoader worker \(pid.*killed by signal: Bus error"
                                         r"|Unexpected bus error encountered in worker"),
          "Often a full /dev/shm: see df there; a larger one (containers: --shm-size), or fewer loader workers.",
          not_for="a bus error of the rank itself", behind=True),
    Cause("dataloader-worker", "a DataLoader worker died", PRIMARY,
          either(exception("RuntimeError", text=r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)"),
                 loader_gone),
          "Often too little memory or /dev/shm: fewer workers, smaller batches, or more of either.",
          not_for="an exception of the worker, which is raised again with its own type", behind=True, vague=True),
    Cause("address-space", "its limit of address space or data was reached", PRIMARY,
          either(_REFUSED, exception("RuntimeError", text="can't start new thread")),
          "See ulimit -v and -d of the job; the host may have more memory.",
          proof=lambda e: e.own_limit is not None, not_for="memory that the host does not have", behind=True),
    Cause("cpu-kill", "killed, probably at its limit of CPU time", PRIMARY,
          signal("SIGKILL"),
          "See ulimit -t of the job: the kernel kills a process that has used so many seconds of CPU time.",
          proof=lambda e: e.cpu_limit_s is not None, not_for="a kill without a limit of CPU time"),
    Cause("host-memory", "memory could not be allocated", PRIMARY, _REFUSED,
          "More memory for the job (--mem), or less per rank.",
          not_for="CUDA out of memory, or a kill by the kernel", behind=True),
    Cause("process-limit", "no more processes or threads", PRIMARY,
          either(exception("RuntimeError", text=r"can't start new thread|pthread_create|[Tt]hread creation failed"
                           r"|\bResource temporarily unavailable"),
                 tail("SIGSEGV", _NO_THREAD), at_end(_NO_THREAD_LINE), _no_process),
          "Fewer threads (OMP_NUM_THREADS) or loader workers; see ulimit -u and the cgroup's pids.max.",
          not_for="host memory that ran out"),
    Cause("open-files", "too many open files", PRIMARY,
          either(os_error(24, 23),
                 exception("RuntimeError", "OSError", text=r"received 0 items of ancdata|Too many open files"
                           r"|unable to open shared memory object(?!.*(No such file|Permission))")),
          "Raise ulimit -n; torch.multiprocessing.set_sharing_strategy('file_system') for loader workers.",
          not_for="a full disk", behind=True),
)  # fmt: skip

"""The catalogue of causes: one row each.

Rows are tried in order and the first match wins, so special rows precede general ones. Claims beyond the match need
proof: a bare SIGKILL is no out-of-memory kill without a counter's or the scheduler's evidence.
"""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.failures.evidence import UNKNOWN, Evidence
from ftslurm.failures.memory import HOST, LIMIT
from ftslurm.failures.predicates import (
    Match,
    cuda,
    distributed,
    either,
    ended,
    exception,
    kind,
    loader_gone,
    not_finite,
    not_importable,
    os_error,
    scheduler,
    signal,
    tail,
    wrong_usage,
)

PRIMARY, CASCADE = "primary", "cascade"
SAME_NODE, OTHER_NODE, POINTLESS = "same-node", "other-node", "pointless"
RESTARTS = (SAME_NODE, OTHER_NODE, POINTLESS)


@dataclass(frozen=True)
class Cause:
    """One row of the registry.

    Attributes:
        name: the row's key in reports, stable.
        title: text for use after "rank 3 on n2: ".
        role: PRIMARY: an independent failure; CASCADE: a consequence of another rank's failure.
        matches: the predicate that selects it.
        advice: what the user can do, one or two short sentences; may be empty.
        proof: evidence required beyond the match; None: the match is sufficient.
        not_for: similar cases that it must not match.
        restart: which restart makes sense: SAME_NODE, OTHER_NODE or POINTLESS.
        behind: it also matches an exception that was only being handled when the one that ended the worker was raised;
            rows without this match only the cause of a "raise ... from".
        vague: so unspecific that a better row for the exception's cause is used instead.
    """

    name: str
    title: str
    role: str
    matches: Match
    advice: str = ""
    proof: Match | None = None
    not_for: str = ""
    restart: str = SAME_NODE
    behind: bool = False
    vague: bool = False

    def fits(self, evidence: Evidence) -> bool:
        """Whether it matches and has its proof."""
        return self.matches(evidence) and (self.proof is None or self.proof(evidence))


_PEERS = "A rank waited for another one in vain: look for a rank that stopped, hung or took another path."
_ENV = "It fails the same way every time: fix the script or its environment before submitting again."
_WATCHDOG = r"(?m)^(\[rank\d+\]:)?\s*\[[EF][^\]\n]*ProcessGroupNCCL\.cpp:\d+\].*([Ww]atchdog|timeout|aborted)"

_WITHOUT_A_WORKER: tuple[Cause, ...] = (
    Cause("spawn", "could not be started", PRIMARY, kind("spawn"),
          "Check that the program and its interpreter exist on this node and are executable.",
          not_for="a script that starts and then fails", restart=OTHER_NODE),
    Cause("unreachable", "the round's master could not be reached", PRIMARY, kind("unreachable"),
          "Check the network between the two nodes: links, routes, firewall, name resolution (ftslurm doctor).",
          not_for="a connection that breaks while ranks run", restart=OTHER_NODE),
    Cause("health", "the node's device failed a health check", PRIMARY, kind("health"),
          "Drain the node, or exclude it; ask the administrators.",
          proof=lambda e: bool(e.health or e.message),
          not_for="a CUDA error that the script itself caused", restart=OTHER_NODE),
    Cause("health-check", "the node was refused by its health check", PRIMARY, kind("health-check"),
          "See the check's finding; exclude the node until it is repaired.",
          not_for="a node that failed in use", restart=OTHER_NODE),
    Cause("agent-lost", "the node's agent was killed", PRIMARY, kind("agent-lost"),
          "The node itself may be healthy: find what killed the agent (dmesg: the OOM killer; sacct).",
          not_for="a lost node, without any sign of its guardian", restart=OTHER_NODE),
    Cause("agent-defect", "a defect of ftslurm ended the node's agent", PRIMARY, kind("agent-defect"),
          "Neither your program nor the node is the cause: report it, with the files in defects/ of the run directory.",
          not_for="an agent that was killed"),
    Cause("node-lost", "node lost", PRIMARY, kind("node-lost"),
          "See Slurm's view of the node: sacct, sinfo -R.",
          not_for="a rank whose connections broke while its agent lives", restart=OTHER_NODE),
    Cause("hang", "hang", PRIMARY, kind("hang"),
          "No stacks were collected; see the end of each rank's output.",
          not_for="a collective's time-out on a rank that only waited"),
    Cause("time-limit", "the job's time limit", PRIMARY, either(kind("time-limit"), scheduler("TIMEOUT", "DEADLINE")),
          "Request more time, or save and requeue before the limit (--signal).",
          not_for="scancel or a preemption, which send the same signals"),
    Cause("preempted", "preempted", PRIMARY, either(kind("preempted"), scheduler("PREEMPTED")),
          "Slurm gave the nodes to another job; requeue, and save often.",
          not_for="a cancelled job or the time limit"),
    Cause("cancelled", "cancelled by a user", PRIMARY, either(kind("cancelled"), scheduler("CANCELLED")), "",
          not_for="a kill by the time limit or a preemption", restart=POINTLESS),
    Cause("scheduler", "the scheduler failed the job", PRIMARY,
          either(kind("scheduler"), scheduler("BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED", "NODE_FAIL")),
          "See scontrol show job and slurmctld's log; submit again.",
          not_for="a job that Slurm ended because its processes failed", restart=OTHER_NODE),
)  # fmt: skip

_DISTRIBUTED: tuple[Cause, ...] = (
    Cause("port-in-use", "port in use", PRIMARY,
          either(distributed(r"EADDRINUSE|[Aa]ddress already in use"), os_error(98)),
          "Another process holds the port. Let ftslurm choose it: do not set MASTER_PORT in the script.",
          not_for="a refused connection"),
    Cause("nccl-usage", "NCCL used wrongly", PRIMARY, distributed(r"ncclInvalidUsage|Duplicate GPU detected"),
          "Usually two ranks on one GPU: set the device from LOCAL_RANK.",
          not_for="an NCCL error that follows from a dead peer"),
    Cause("nccl-timeout", "NCCL time-out", CASCADE,
          distributed(r"[Ww]atchdog caught collective operation timeout|NCCL.*[Tt]imed? ?out"), _PEERS,
          not_for="the rank that the others waited for", behind=True),
    Cause("peer-reset", "connection to another rank broke", CASCADE,
          distributed(r"Connection (closed|reset) by peer|Broken pipe|[Ss]ocket closed|Connection refused"
                      r"|recvValue failed|failed to recv, got 0 bytes|Read (error|timeout)|writev?: "),
          "The rank at the other end ended first: look for its failure.",
          not_for="a broken connection to a server of the user's own", behind=True),
    Cause("collective-timeout", "time-out waiting for other ranks", CASCADE,
          distributed(r"[Tt]imed out|[Tt]imeout|DistStoreError|wait timeout"), _PEERS,
          not_for="the rank that the others waited for", behind=True),
    Cause("peer-lost", "other ranks did not answer the peer heartbeat", CASCADE, exception("PeerLostError"),
          "Check the ranks that it names.", not_for="a rank that answers with a wrong token"),
    Cause("round-over", "a rank of a past round resumed", CASCADE, exception("RoundIsOver"),
          "Look for the end of that round; the fence prevented its data from replacing newer data.",
          not_for="a rank of the running round"),
    Cause("nccl", "NCCL error", CASCADE, distributed(r"NCCL|nccl"),
          "Run with NCCL_DEBUG=WARN for NCCL's own reason if no other rank explains this.",
          not_for="a warning or a message that only mentions NCCL", behind=True),
    Cause("nccl-abort", "NCCL's watchdog aborted the process", CASCADE, tail("SIGABRT", _WATCHDOG), _PEERS,
          not_for="an abort after a line that only mentions the watchdog"),
)  # fmt: skip

_DEVICES: tuple[Cause, ...] = (
    Cause("cuda-oom", "CUDA out of memory", PRIMARY,
          either(lambda e: e.exception == "OutOfMemoryError" and e.module.startswith("torch"),
                 cuda(r"CUDA out of memory|CUDA error: out of memory")),
          "Smaller batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
          not_for="host memory that ran out", behind=True),
    Cause("cuda-assert", "CUDA device-side assert", PRIMARY, cuda("device-side assert triggered"),
          "Often an index out of range. Run with CUDA_LAUNCH_BLOCKING=1 for the right line.",
          not_for="a broken device", behind=True),
    Cause("gpu-ecc", "uncorrectable memory error of the GPU", PRIMARY, cuda(r"uncorrectable (ECC|NVLink) error"),
          "The GPU or its link is faulty: exclude the node, report it (dmesg: Xid 48, 63, 64, 74, 94, 95).",
          not_for="an illegal memory access, a fault of the program", restart=OTHER_NODE, behind=True),
    Cause("gpu-lost", "the GPU is lost", PRIMARY, cuda(r"fallen off the bus|GPU is lost|GPU access blocked"),
          "The GPU no longer answers (dmesg: Xid 79): exclude the node, report it.",
          not_for="a job without a GPU", restart=OTHER_NODE, behind=True),
    Cause("gpu-missing", "no usable GPU", PRIMARY,
          cuda(r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver|invalid device ordinal"
               r"|CUDA (driver )?initialization( failed|:)"),
          "Check the request for GPUs (--gpus-per-node), CUDA_VISIBLE_DEVICES, and nvidia-smi on this node.",
          not_for="a GPU that failed in use", restart=OTHER_NODE),
    Cause("gpu-busy", "the GPU is busy", PRIMARY, cuda("CUDA-capable devices are busy or unavailable"),
          "Another process, perhaps a leftover one, holds it in exclusive mode: nvidia-smi on this node.",
          not_for="CUDA out of memory", restart=OTHER_NODE),
    Cause("cuda-access", "illegal memory access on the GPU", PRIMARY,
          cuda("illegal memory access|misaligned address|illegal instruction was encountered"),
          "A fault of the program: run with CUDA_LAUNCH_BLOCKING=1, or compute-sanitizer.",
          not_for="a hardware error (ECC, Xid 48)", behind=True),
    Cause("cuda-launch", "a CUDA kernel failed", PRIMARY, cuda("unspecified launch failure|launch timed out"),
          "Mostly a fault of the program (CUDA_LAUNCH_BLOCKING=1); with Xid messages in dmesg, the GPU's.",
          not_for="a proved hardware error", behind=True),
    Cause("cuda-error", "CUDA error", PRIMARY, cuda("^CUDA error"),
          "Look for Xid messages of this node in dmesg; if it repeats on this node, exclude it.",
          not_for="a message that only mentions CUDA"),
)  # fmt: skip

_KILLED = either(
    signal("SIGKILL"),
    ended(137),
    exception("RuntimeError", text=r"DataLoader worker \(pid.*killed by signal: Killed"),
    loader_gone,
)

_REFUSED = either(
    exception("MemoryError"), exception("RuntimeError", text="DefaultCPUAllocator: can't alloc"), os_error(12)
)

_MEMORY: tuple[Cause, ...] = (
    Cause("memory-limit", "killed by the kernel: its memory limit was reached", PRIMARY, _KILLED,
          "Request more memory (--mem), use fewer loader workers, or less per rank: the node itself has more.",
          proof=lambda e: e.killed_for == LIMIT, not_for="a host without free memory"),
    Cause("host-oom-kill", "killed by the kernel: the host's memory ran out", PRIMARY, _KILLED,
          "Check the node for other users of memory and for leftovers; fewer loader workers, or less per rank.",
          proof=lambda e: e.killed_for == HOST, not_for="a kill at the job's or the rank's own limit"),
    Cause("oom-kill", "killed by the kernel: out of memory", PRIMARY, _KILLED,
          "More memory for the job (--mem), fewer loader workers, or less per rank.",
          proof=lambda e: e.killed_for == UNKNOWN,
          not_for='a SIGKILL without a counted OOM kill, or "OOM" or "Killed" in some output'),
    Cause("shm-full", "bus error with a full /dev/shm", PRIMARY,
          either(signal("SIGBUS"), exception("RuntimeError", text=r"DataLoader worker \(pid.*signal: Bus error"),
                 ended(135)),
          "A larger /dev/shm (containers: --shm-size), fewer loader workers, or remove old files in it.",
          proof=lambda e: e.shm_full, not_for="a bus error from a truncated file or a full disk"),
    Cause("shm-space", "/dev/shm is full", PRIMARY,
          exception("RuntimeError", "OSError", text=r"(shared memory|</torch_\d|/dev/shm/).{0,200}No space left"),
          "A larger /dev/shm (containers: --shm-size), fewer loader workers, or remove old files in it.",
          not_for="a full disk", behind=True),
    Cause("dataloader-worker", "a DataLoader worker died", PRIMARY,
          either(exception("RuntimeError", text=r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)"),
                 loader_gone),
          "Often too little memory or /dev/shm: fewer workers, smaller batches, or more of either.",
          not_for="an exception of the worker, which is raised again with its own type"),
    Cause("address-space", "its limit of address space or data was reached", PRIMARY, _REFUSED,
          "See ulimit -v and -d of the job; the host may have more memory.",
          proof=lambda e: e.own_limit is not None, not_for="memory that the host does not have", behind=True),
    Cause("cpu-kill", "killed, probably at its limit of CPU time", PRIMARY,
          signal("SIGKILL"),
          "See ulimit -t of the job: the kernel kills a process that has used so many seconds of CPU time.",
          proof=lambda e: e.cpu_limit_s is not None, not_for="a kill without a limit of CPU time"),
    Cause("host-memory", "host memory ran out", PRIMARY, _REFUSED,
          "More memory for the job (--mem), or less per rank.",
          not_for="CUDA out of memory, or a kill by the kernel", behind=True),
    Cause("process-limit", "no more processes or threads", PRIMARY,
          either(exception("RuntimeError", text="can't start new thread"), os_error(11)),
          "Fewer threads (OMP_NUM_THREADS) or loader workers; see ulimit -u and the cgroup's pids.max.",
          not_for="host memory that ran out"),
    Cause("open-files", "too many open files", PRIMARY, os_error(24, 23),
          "Raise ulimit -n; torch.multiprocessing.set_sharing_strategy('file_system') for loader workers.",
          not_for="a full disk", behind=True),
)  # fmt: skip

_SCRIPT: tuple[Cause, ...] = (
    Cause("syntax-error", "the script cannot start", PRIMARY,
          exception("SyntaxError", "IndentationError", "TabError"), _ENV,
          proof=lambda e: e.early, not_for="text that the running script compiles", restart=POINTLESS),
    Cause("import-error", "the script cannot start", PRIMARY, not_importable, _ENV,
          proof=lambda e: e.early, not_for="an import that fails after training has begun", restart=POINTLESS),
    Cause("wrong-usage", "the script refused its arguments", PRIMARY, wrong_usage,
          "Its message is in its output; the same arguments fail the same way every time.",
          proof=lambda e: e.early, not_for="exit code 2 from elsewhere", restart=POINTLESS),
    Cause("no-stdin", "workers have no stdin", PRIMARY,
          either(exception("EOFError", text="^EOF when reading a line$"), exception("BdbQuit")),
          "Remove breakpoint() and input(): there is no terminal to answer.",
          not_for="a file that ends too early", restart=POINTLESS),
    Cause("missing-script", "the script does not exist", PRIMARY, ended(2, text="^can't open file "),
          "Check the path on this node; it is relative to the submission directory.",
          not_for="a file that the script opens", restart=POINTLESS),
    Cause("missing-program", "the program cannot be started", PRIMARY, ended(126, 127, text="^cannot start "),
          "Check that it exists on this node, in PATH, and is executable.",
          not_for="a command inside the script", restart=POINTLESS),
    Cause("log-file", "a rank's log file could not be opened", PRIMARY, ended(1, text="^cannot open the log file "),
          "Check that filesystem (ftslurm doctor DIR): full, read-only or unmounted; --log-dir moves the logs.",
          not_for="a log file that the script opens"),
    Cause("disk-full", "disk full", PRIMARY, either(os_error(28), exception(text="No space left on device")),
          "Free space (or inodes) on that filesystem, or write elsewhere.",
          not_for="a quota, or a full /dev/shm behind a bus error", behind=True),
    Cause("quota", "disk quota exceeded", PRIMARY, either(os_error(122), exception(text="[Dd]isk quota exceeded")),
          "Free space under that quota, or write elsewhere.", not_for="a full filesystem", behind=True),
    Cause("file-size", "file size limit", PRIMARY, either(os_error(27), signal("SIGXFSZ")),
          "See ulimit -f of the job.", not_for="a full disk", restart=POINTLESS),
    Cause("write-failed", "a file could not be written", PRIMARY,
          exception("RuntimeError", text="PytorchStreamWriter failed writing|unexpected pos [0-9]+ vs"),
          "torch gives no reason; check the target filesystem for a full disk or an exceeded quota.",
          not_for="a disk that is provably full", behind=True),
    Cause("read-only", "read-only filesystem", PRIMARY, os_error(30),
          "Write elsewhere; a filesystem turns read-only after errors (dmesg).",
          not_for="missing permissions", restart=OTHER_NODE, behind=True),
    Cause("filesystem", "the filesystem failed", PRIMARY, os_error(5, 107, 108, 112, 113, 116, 121),
          "The storage or its network, not the script: see dmesg of this node and the storage's state.",
          not_for="a missing file", restart=OTHER_NODE, behind=True),
    Cause("missing-file", "a file is missing", PRIMARY, exception("FileNotFoundError"),
          "Check that the path exists on this node too, not only on the login node.",
          not_for="a module that is missing"),
    Cause("permission", "permission denied", PRIMARY, either(exception("PermissionError"), os_error(1, 13)),
          "Check the owner and the mode of the path on this node.", not_for="a read-only filesystem"),
    Cause("nan", "a number is not finite", PRIMARY, not_finite,
          "Check the learning rate, the batch at that step, and mixed precision; resume from an older checkpoint.",
          not_for="data that happens to hold NaN, or a function with nan in its name"),
    Cause("system-exit", "the script ended itself", PRIMARY, exception("SystemExit"),
          "Its reason is usually in the last lines of its output.", not_for="wrong usage", vague=True),
    Cause("interrupt", "interrupted", PRIMARY, exception("KeyboardInterrupt"),
          not_for="a stop by ftslurm or Slurm", restart=POINTLESS),
    Cause("exception", "Python exception", PRIMARY, lambda e: e.exception is not None or e.kind == "exception",
          not_for="an exception that was caught", vague=True),
)  # fmt: skip

_ENDS: tuple[Cause, ...] = (
    Cause("sigkill", "killed by SIGKILL, sender unknown", PRIMARY, signal("SIGKILL"),
          "Look for the kernel's OOM killer (dmesg, sacct: OUT_OF_MEMORY), and for users or tools that send SIGKILL.",
          not_for="an out-of-memory kill: the OOM killer, Slurm and users all send SIGKILL"),
    Cause("segfault", "segmentation fault", PRIMARY, signal("SIGSEGV"),
          "Native code crashed: the stacks show the Python line that called it.", not_for="an abort"),
    Cause("bus-error", "bus error", PRIMARY, signal("SIGBUS"),
          "Often a mapped file that was truncated, or a full filesystem under it.",
          not_for="a /dev/shm that was observed to be full"),
    Cause("abort", "aborted", PRIMARY, signal("SIGABRT"),
          "Native code aborted: its reason is in the last lines of stderr.", not_for="a segmentation fault"),
    Cause("illegal-instruction", "illegal instruction", PRIMARY, signal("SIGILL"),
          "A binary built for another CPU than this node's.",
          not_for="CUDA's illegal instruction", restart=OTHER_NODE),
    Cause("arithmetic-error", "arithmetic error in native code", PRIMARY, signal("SIGFPE"),
          "Mostly a whole number divided by zero: the stacks show the Python line that called it.",
          not_for="NaN or infinity, which raise no signal"),
    Cause("cpu-limit", "CPU time limit", PRIMARY, signal("SIGXCPU"),
          "See ulimit -t of the job.", not_for="the job's time limit", restart=POINTLESS),
    Cause("terminated", "terminated by SIGTERM, not by ftslurm", PRIMARY, signal("SIGTERM"),
          "A user or another program sent it; Slurm does so before a time limit or a preemption.",
          not_for="a rank that ftslurm stopped"),
    Cause("signal", "ended by a signal", PRIMARY, signal(), not_for="a stop by ftslurm"),
    Cause("shell-killed", "a command of the script was killed by SIGKILL", PRIMARY, ended(137),
          "Exit code 137 is a shell's report of SIGKILL; its sender is unknown.",
          not_for="an out-of-memory kill, without a counter as evidence"),
    Cause("shell-crashed", "a command of the script crashed", PRIMARY, ended(134, 135, 139),
          "A shell reports a crash by signal as 128 + its number.", not_for="a crash of the worker itself"),
    Cause("shell-missing", "a command of the script could not be run", PRIMARY, ended(126, 127),
          "A shell's report of a command that does not exist (127) or is not executable (126).",
          not_for="the worker's own program"),
    Cause("exit", "ended with an exit code", PRIMARY, lambda e: True, not_for="any end with more information"),
)  # fmt: skip

ROWS: tuple[Cause, ...] = (*_WITHOUT_A_WORKER, *_DISTRIBUTED, *_DEVICES, *_MEMORY, *_SCRIPT, *_ENDS)

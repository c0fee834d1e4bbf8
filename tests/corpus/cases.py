"""The corpus: which program of this folder fails how, and what the report must say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ALONE, CASCADE, ALL, RECOVERED = "alone", "cascade", "all", "recovered"
MEMORY = ("memory-limit", "host-oom-kill", "oom-kill", "address-space", "host-memory")
LOSSES = (*MEMORY, "cuda-oom", "nccl", "nccl-timeout", "nccl-abort", "disk-full")


@dataclass(frozen=True)
class Case:
    """One failure.

    Attributes:
        program: a file of this folder.
        cause: the name of its row in `ftslurm.failures.catalogue`.
        expected: what must stand in the first three lines of the text, besides rank, node, place, step and round.
        arguments: of the program.
        options: of ``ftslurm run``.
        rank: the one that fails; None: a node, or the first of ranks that fail alike.
        node: the one that fails; None: the rank's node.
        step: its last step; None: it fails before its first.
        here: whether the place marked "# here" in the program must be named; what kills from outside leaves none.
        ways: ALONE: the others wait and are stopped; CASCADE: they wait on a connection to the rank, which breaks;
            ALL: all ranks fail alike; RECOVERED: alone, with a restart that ends well.
        needs: "torch", "root" (for mounts), "cgroup", "libstdc++", "python3.11".
        small: where a tmpfs of 1 MiB is mounted for the run; "ro": a read-only one at ``small``.
        evidence: a part of the lines that prove the cause.
        exit_code: of the run.
        suspect: for a hang, the rank that the triage must accuse.
        follows: the failure is itself a cascade: the one to blame has not failed.
        never: causes that must not be named, of the first failure or of another rank.
    """

    program: str
    cause: str
    expected: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    rank: int | None = 2
    node: str | None = None
    step: int | None = 7
    here: bool = True
    ways: tuple[str, ...] = (ALONE, CASCADE)
    needs: tuple[str, ...] = ()
    small: str = ""
    evidence: str = ""
    exit_code: int = 1
    follows: bool = False
    never: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The program's name and its arguments."""
        return "-".join((self.program.partition(".")[0], *self.arguments)).strip("-").replace("/", "")


BEATS = ("--heartbeat-timeout", "2", "--hang-timeout", "60")
QUICKLY = ("--heartbeat", "0.5", "--node-timeout", "4")
# All ranks fail before their first step, in the same way, and would again.
AT_START: dict[str, Any] = {"rank": None, "step": None, "exit_code": 78, "ways": (ALL,)}

NO_LABEL = ("row 4711 has no label",)
FROM_STDERR = ("ValueError: row 4711 has no label", "from its stderr")

KINDS = (
    # Python
    Case("exception.py", "exception", ("ValueError: row 4711 has no label",), ways=(ALONE, CASCADE, RECOVERED)),
    Case("chained.py", "exception", ("RuntimeError: cannot load the sample",), rank=1),
    Case("deep_chain.py", "exception", ("PipelineError: stage 48", "KeyError: 'row 4711'")),
    Case("masked.py", "exception", ("ValueError: row 4711 has no label", "cannot close"), ("finally",)),
    Case("masked.py", "exception", ("ValueError: row 4711 has no label", "cannot close"), ("exit",), ways=(ALONE,)),
    Case("of_another_process.py", "exception", ("KeyError: 'label'", "DataLoader worker"), ("loader",),
         needs=("torch",)),
    Case("of_another_process.py", "exception", ("KeyError: 'label'",), ("pool",), ways=(ALONE,)),
    Case("of_another_process.py", "exception", ("KeyError: 'label'",), ("spawn",), needs=("torch",), ways=(ALONE,)),
    Case("silent_assert.py", "exception", ("AssertionError", "assert labels == 4711"), ways=(ALONE,)),
    Case("disk_behind.py", "disk-full", ("checkpoint 7 was not saved", "No space left on device"), rank=3),
    Case("group.py", "missing-file", ("FileNotFoundError", "'shard-0'"), needs=("python3.11",)),
    Case("syntax_error.py", "syntax-error", ("SyntaxError", "model_of_mine.py:1"), here=False, **AT_START),
    Case("import_error.py", "import-error", ("no_such_module_at_all",), **AT_START),
    Case("usage.py", "wrong-usage", ("refused its arguments", "exit code 2"), ("--lr", "high"), **AT_START),
    # What it printed on stderr before an end without a reason
    *(Case("last_output.py", "exception", (*FROM_STDERR, "exit code 3"), (how,), ways=(ALONE,))
      for how in ("prefix", "ranks", "returned", "child")),
    Case("last_output.py", "exception", (*FROM_STDERR, "exit code 3"), ("bar",)),
    Case("last_output.py", "exception", (*FROM_STDERR, "SIGKILL"), ("signal",), ways=(ALONE,)),
    Case("last_output.py", "exit", (*NO_LABEL, "from its stderr", "exit code 3"), ("logged",), here=False,
         ways=(ALONE,)),
    Case("last_output.py", "abort", ("Assertion `labels == 4711' failed",), ("assertion",), here=False, ways=(ALONE,)),
    Case("child_failed.py", "exception", ("exit status 1", "ValueError: row 4711"), ("captured",), ways=(ALONE,)),
    Case("child_failed.py", "exception", ("exit status 1", "ValueError: row 4711"), ("inherited",), ways=(ALONE,)),
    Case("child_failed.py", "disk-full", ("disk full", "exit status 1 (OSError: No space left on device"), ("disk",),
         ways=(ALONE,), evidence="its child's output: OSError: [Errno 28]"),
    Case("child_failed.py", "exception", ("SIGSEGV",), ("crashed",), ways=(ALONE,)),
    # Checkpoints, libraries, collectives, services
    *(Case("checkpoint.py", "checkpoint-damaged", expected, (how,), needs=("torch",), ways=(ALONE,))
      for how, expected in (("truncated", ("central directory",)), ("empty", ("damaged", "EOFError")))),
    Case("checkpoint.py", "checkpoint-mismatch", ("does not fit the model", "saved"), ("mismatch",),
         needs=("torch",), ways=(ALONE,)),
    Case("checkpoint.py", "weights-only", ("torch.load refuses", "allowed global"), ("object",), needs=("torch",),
         ways=(ALONE,)),
    Case("library.py", "library-missing", ("no_such_library.so.3",), ways=(ALONE,)),
    Case("library.py", "heap-corruption", ("SIGABRT", "heap"), ("heap",), here=False, ways=(ALONE,)),
    Case("service.py", "service-name", ("URLError", "Name or service not known"), ("name",), ways=(ALONE,)),
    Case("service.py", "service-busy", ("HTTPError", "429"), ("busy",), ways=(ALONE,)),
    Case("models.py", "model-mismatch", ("DDP expects same model",), rank=None, step=None, here=False,
         needs=("torch",), ways=(ALL,)),
    Case("loader_late.py", "dataloader-timeout", ("DataLoader timed out after 1 seconds",), needs=("torch",),
         ways=(ALONE,)),
    Case("nccl_stuck.py", "nccl-stuck", ("watchdog got stuck",), here=False, ways=(ALONE,)),
    Case("exit_code.py", "system-exit", ("exit code 3",), rank=0),
    Case("exit_text.py", "system-exit", ("the tokenizer has no padding token",)),
    Case("exit_silent.py", "exit", ("exit code 5",), here=False, rank=1),
    # What a program hides that ends itself by an exit code
    Case("hidden.py", "missing-file", ("RuntimeError: no sample in data/train-00007.parquet",), ("code",)),
    Case("hidden.py", "missing-file", ("RuntimeError: no sample in",), ("another-code",), ways=(ALONE,)),
    Case("hidden.py", "missing-file", ("exit code 1: giving up: see the log", "no sample"), ("text",), ways=(ALONE,)),
    Case("hidden_device.py", "gpu-ecc", ("CUDA error: uncorrectable ECC error",), ("gpu",)),
    Case("hidden_device.py", "filesystem", ("No route to host",), ("network",), ways=(ALONE,)),
    Case("hidden_device.py", "filesystem", ("Input/output error",), ("storage",), ways=(ALONE,)),
    Case("exit_78.py", "system-exit", ("exit code 78",), options=("--max-restarts", "3"), exit_code=78),
    Case("shell.sh", "shell-killed", ("SIGKILL", "137"), options=("--no-python",), here=False, step=None,
         ways=(ALONE,)),
    Case("assertion.py", "exception", ("AssertionError: wrong shape (8, 512)",)),
    Case("recursion.py", "exception", ("RecursionError",), rank=0),
    Case("interrupt.py", "interrupt", ("KeyboardInterrupt",)),
    Case("pickling.py", "exception", ("pickle",), rank=3),
    Case("nan_loss.py", "nan", ("loss is nan",)),
    Case("overflow.py", "nan", ("FloatingPointError: overflow",), ways=(ALONE,)),
    # The operating system
    Case("missing_file.py", "missing-file", ("data/train-00007.parquet",)),
    Case("permission.py", "permission", ("Permission denied: 'secret'",)),
    Case("disk_full.py", "disk-full", ("No space left on device",), needs=("root",), small="small"),
    Case("read_only.py", "read-only", ("Read-only file system",), needs=("root",), small="ro", ways=(ALONE,)),
    Case("quota.py", "quota", ("quota exceeded",), ways=(ALONE,)),
    Case("file_size.py", "file-size", ("File too large",), ways=(ALONE,)),
    Case("open_files.py", "open-files", ("Too many open files",)),
    Case("port.py", "port-in-use", ("Address already in use",)),
    Case("torch_port.py", "port-in-use", ("DistNetworkError", "in use"), needs=("torch",), ways=(ALONE,)),
    # Memory
    Case("memory_error.py", "address-space", ("limit of address space or data was reached", "MemoryError"),
         never=("host-memory",), evidence="ulimit: 1 GiB"),
    Case("memory_refused.py", "host-memory", ("MemoryError",), never=("address-space",), ways=(ALONE,)),
    Case("host_oom.py", "memory-limit", ("its memory limit was reached",), here=False, needs=("cgroup",),
         evidence="out-of-memory k", never=("host-oom-kill", "oom-kill")),
    Case("bus_error.py", "shm-full", ("/dev/shm",), ("/dev/shm",), needs=("root",), small="/dev/shm",
         evidence="/dev/shm"),
    Case("bus_error.py", "bus-error", ("SIGBUS",), ("small",), needs=("root",), small="small"),
    Case("loader.py", "dataloader-worker", ("DataLoader worker",), needs=("torch",), ways=(ALONE,)),
    # Signals
    Case("killed.py", "sigkill", ("killed by SIGKILL, sender unknown",), here=False,
         ways=(ALONE, CASCADE, RECOVERED)),
    Case("terminated.py", "terminated", ("SIGTERM", "not by ftslurm"), here=False),
    Case("segfault.py", "segfault", ("segmentation fault (SIGSEGV)",), rank=0),
    Case("abort.py", "abort", ("aborted (SIGABRT)",)),
    Case("cpp_exception.py", "abort", ("aborted (SIGABRT): std::runtime_error: kernel image is not valid",),
         needs=("libstdc++",), ways=(ALONE,)),
    Case("machine_code.py", "illegal-instruction", ("SIGILL",), ("SIGILL",), rank=1),
    Case("machine_code.py", "arithmetic-error", ("arithmetic error", "SIGFPE"), ("SIGFPE",), rank=3),
    Case("cpu_limit.py", "cpu-limit", ("CPU time limit (SIGXCPU)",), here=False, ways=(ALONE,)),
    # Ranks and nodes that are not there any more, or hang
    Case("sleeper.py", "hang", ("fetch",), options=BEATS),
    Case("stopped.py", "hang", ("stopped (SIGSTOP)",), options=BEATS, here=False, rank=3),
    Case("lost.py", "node-lost", ("local1", "lost"), ("node",), QUICKLY, None, "local1", here=False),
    Case("lost.py", "agent-lost", ("agent was killed",), ("agent",), QUICKLY, None, "local1", here=False),
    # torch
    Case("gloo.py", "exception", ("ValueError: row 4711 has no label",), ("exception",), needs=("torch",),
         ways=(ALONE,)),
    Case("gloo.py", "segfault", ("segmentation fault",), ("segfault",), here=False, needs=("torch",), ways=(ALONE,)),
    Case("gloo.py", "sigkill", ("killed by SIGKILL",), ("killed",), here=False, needs=("torch",), ways=(ALONE,)),
    Case("gloo.py", "hang", ("has not joined all_reduce",), ("late",), here=False, needs=("torch",), ways=(ALONE,)),
    Case("constructed.py", "cuda-oom", ("CUDA out of memory",), ("oom",), needs=("torch",), ways=(ALONE,)),
    Case("constructed.py", "cuda-assert", ("device-side assert",), ("assert",), here=False, needs=("torch",),
         ways=(ALONE,)),
)  # fmt: skip

SOCKETS = tuple(
    Case("lost.py", f"{what}-lost", ("local1", "lost"), (what, "sockets"), QUICKLY, None, "local1", here=False)
    for what in ("agent", "node")
)

LABEL = ("ValueError: row 4711 has no label",)
DECOYS = (
    Case("decoy_oom_line.py", "exception", LABEL, never=LOSSES),
    Case("decoy_caught.py", "exception", LABEL, never=("cuda-oom", *MEMORY)),
    Case("decoy_caught_crash.py", "segfault", ("SIGSEGV",), never=("missing-file",), ways=(ALONE,)),
    Case("decoy_survived.py", "system-exit", ("exit code 3",), ("exit",), never=("cuda-oom", *MEMORY), ways=(ALONE,)),
    Case("decoy_survived.py", "exit", ("exit code 3",), ("os",), here=False, never=("cuda-oom", *MEMORY),
         ways=(ALONE,)),
    Case("decoy_fallback.py", "system-exit", ("exit code 3",), never=("import-error",), ways=(ALONE,)),
    Case("decoy_handled.py", "exception", ("TypeError: unsupported label type",), never=("nan",), ways=(ALONE,)),
    Case("decoy_sibling.py", "exception", LABEL, never=("cuda-assert",)),
    Case("decoy_nccl.py", "system-exit", ("exit code 3",), never=("nccl", "nccl-timeout", "nccl-abort"), ways=(ALONE,)),
    Case("decoy_nccl_message.py", "exception", ("ValueError: option backend",), never=LOSSES, ways=(ALONE,)),
    Case("decoy_killed.py", "system-exit", ("exit code 1",), never=(*MEMORY, "sigkill"), ways=(ALONE,)),
    Case("decoy_no_space.py", "exception", LABEL, never=("disk-full", "shm-space"), ways=(ALONE,)),
    Case("decoy_child.py", "exception", LABEL, never=("segfault", "shell-crashed"), ways=(ALONE,)),
    Case("decoy_nan.py", "exception", ("KeyError: 'nan'",), never=("nan",), ways=(ALONE,)),
)  # fmt: skip

"""Advice on a failed worker that agrees with the evidence beside it, where that of its cause's row may not (pure).

A row knows the kind of failure. What an agent observed (no out-of-memory kill, no stacks, an empty stderr) can exclude
the usual reason that the row advises to look for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ftslurm.failures.message_line import message_line, refusal
from ftslurm.failures.own_code import is_library
from ftslurm.failures.reason import is_code
from ftslurm.pattern import pattern
from ftslurm.report.alike import ALL, EVERY_NODE, Alike
from ftslurm.report.facts import Attempt, LogTail
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.object_advice import advice_on_object
from ftslurm.text import safe, size

_LOADER_CRASH = pattern(
    r"killed by signal: (?!Killed|Bus error)|Unexpected (segmentation fault|floating-point exception|illegal instr)"
)
TIMED_OUT = 124
_NO_STACKS = (
    "Native code crashed, and there are no stacks, unless the script sends faulthandler's to a file: start it with"
    " PYTHONFAULTHANDLER=1, or keep a core."
)
_BACKTRACE = pattern(r"=== backtrace|[Cc]aught signal \d+|Process received signal|Signal: \w+|(?m:^ *#?0:? +0x)")
_NATIVE_FRAME = pattern(
    r"(?m)^.{0,80}?(?:#?\[? ?\d{1,3}\]? +0x[0-9a-f]{4,16}:? (?:in )?|\[ ?\d+\] [^\s(]{1,300}\()([A-Za-z_]\w*)"
)
_OF_HANDLER = pattern(r"_{0,2}(?:funlockfile|restore_rt|sigaction|libc_|GI_|killpg|raise|abort)|ucs_|mca_base")
_RENDEZVOUS = "/torch/distributed/rendezvous.py"
_CRASHED = ("segfault", "arithmetic-error")
_OF_SIGNAL = {
    "SIGPIPE": "It wrote to a pipe or a socket whose reader had gone.",
    "SIGALRM": "An alarm of its own (signal.alarm, setitimer) had no handler.",
    "SIGVTALRM": "A timer of its own (setitimer) had no handler.",
    "SIGPROF": "A timer of its own, or a profiler's, had no handler.",
}
_HIDING = pattern(
    r"cannot import name '[^']{1,100}' from (?:partially initialized module )?'(\w+)' .{0,60}\((/[^()\n]{1,400})\)"
)
_LARGE = 0.5
"""Part of the host's memory that was available when it refused an allocation: the request was too large by itself."""
_OWN_MEMORY = pattern(r"this process has ([\d.]{1,12}) ([KMGT]?i?B|bytes)")
# Of torch before 2.1.
_OLD_MEMORY = pattern(
    r"; ([\d.]{1,12}) ([KMGT]i?B) total capacity; .{0,60}; ([\d.]{1,12}) ([KMGT]?i?B|bytes) free; ([\d.]{1,12})"
    r" ([KMGT]?i?B|bytes) reserved"
)
_OF_OTHERS = (
    "Others have most of this GPU's memory: another rank on the same GPU (each needs its own, by LOCAL_RANK), or a"
    " leftover of another job."
)
_OTHERS_MEMORY = pattern(r"Process (\d{1,10}) has ([\d.]{1,12}) ([KMGT]?i?B|bytes)")
_ALLOCATED = pattern(
    r"Of the allocated memory ([\d.]{1,12}) ([KMGT]?i?B|bytes) is allocated by PyTorch, and ([\d.]{1,12})"
    r" ([KMGT]?i?B|bytes) is reserved"
)
_WANTED = pattern(
    r"Tried to allocate ([\d.]{1,12}) ([KMGT]?i?B|bytes).{1,120}? of which ([\d.]{1,12}) ([KMGT]?i?B|bytes) is free"
)
LARGE_SHARE = 0.25
"""What another process has of a GPU, at least, as a part of what this one has, to be a reason why it is full."""
LIBRARIES = 2
"""What a process has of a GPU, at most, as a multiple of what torch allocated: its context and libraries need some."""
_OBJECT = pattern(r"\b(?:s3|gs|gcs|oci|az|abfss?|hdfs|oss)://")
_TORCH_SYMBOL = pattern(r"undefined symbol: \w{0,20}(?:c10|torch|at\d?[A-Z_])")
_LOCAL_RANK = pattern(r"unrecognized arguments: .{0,200}(?P<option>--local[-_]rank)\b")
_OF_JULIA = pattern(r"(?m)\bin expression starting at (?P<place>\S{1,400}:\d{1,9})$")
# Of services that others run, and of their clients.
_HOSTED = pattern(
    r"\b(?:huggingface\.co|hf\.co|wandb\.(?:ai|com)|amazonaws\.com|googleapis\.com|github\w*\.com|windows\.net|openai\.com"
    r"|pytorch\.org|anthropic\.com|aliyuncs\.com|modelscope\.cn)\b"
)
_CLIENT = pattern(
    r"/(?:wandb|huggingface_hub|datasets|boto3|botocore|s3fs|s3transfer|gcsfs|google|mlflow|comet_ml|neptune|clearml|nltk"
    r"|openai|anthropic|modelscope|evaluate)/|/torch/hub\.py$|/transformers/utils/hub\.py$"
)
_OWN_SERVER = "If the server is one of the job's own (vLLM, a reward model), see its log; else wait and try again."
_FULL = pattern(
    r"(?m)^[\w./-]{1,80}: [^\n]{1,200}?: (?:Disk quota exceeded|No space left on device)$"
    r"|^[^\n]{0,120}\bquota of [^\n]{1,40} (?:reached|exceeded)\b[^\n]{0,40}$"
)
_FLAG = pattern(r"(?<![\w-])--?[A-Za-z][\w-]*")


def advice_on(
    worker: FailedWorker, tails: Sequence[LogTail], same: Alike | None, attempt: Attempt | None
) -> str | None:
    """Return the advice, empty if none is needed; None: that of the cause's row is right.

    Args:
        worker: the first failure, judged.
        tails: the ends of its output.
        same: the ranks that failed alike.
        attempt: the attempt that started it, if ftslurm did.
    """
    name, stderr = worker.cause.name, next((tail.text for tail in tails if tail.stream == "stderr"), "")
    if name in ("dataloader-worker", "dataloader-bus"):
        return _loader(worker, stderr)
    if name == "sigkill" and _no_oom_kill(worker):
        return "The kernel counted no out-of-memory kill here: look for users or tools that send SIGKILL."
    if name == "signal" and worker.signal in _OF_SIGNAL:
        return _OF_SIGNAL[worker.signal]
    if name == "abort":
        return _abort(worker, stderr, attempt)
    if name in _CRASHED and not worker.stacks and "(most recent call first)" not in stderr:
        return _native(stderr)
    if name in ("system-exit", "exit"):
        return _exit(worker, tails, attempt)
    if name in _BY_CAUSE:
        return _BY_CAUSE[name](worker)
    if name == "write-failed" and (seen := _FULL.search(stderr)) is not None:
        return f'Another program printed why: "{seen[0].strip()}": free space there, or write elsewhere.'
    if of_object := advice_on_object(worker):
        return of_object
    if name == "import-error":
        return _import(worker, same, attempt)
    if name == "wrong-usage":
        return _arguments(stderr, attempt)
    if name in ("master-unreachable", "library-mismatch", "port-in-use", "collective-mismatch", "nccl"):
        return _of_torch(worker, attempt)
    return _missing_file(worker, same) if name == "missing-file" else None


def _missing_file(worker: FailedWorker, same: Alike | None) -> str | None:
    if worker.frames and worker.frames[-1].file.endswith("/shared_memory.py"):
        return "No process on this node has created this block of shared memory, or one has removed it."
    if _OBJECT.search(worker.what):
        return "Check that this object exists in the remote store, and whether all of it was uploaded there."
    if same is not None and same.scope in (ALL, EVERY_NODE) and len(same.nodes) > 1:
        return "It is missing on all nodes: check the path, and whether it is mounted there (or in the container)."
    return None


def _abort(worker: FailedWorker, stderr: str, attempt: Attempt | None) -> str | None:
    if ": " in worker.what:
        return ""  # its last message is quoted
    if stderr.strip():
        return None
    if attempt is None:
        return "Native code, or the script itself (os.abort), aborted; these logs do not have its own last output."
    stacks = "its stacks show where" if worker.stacks else "PYTHONFAULTHANDLER=1 or a core file shows where"
    return f"Native code, or the script itself (os.abort), aborted without a message: {stacks}."


def _of_torch(worker: FailedWorker, attempt: Attempt | None) -> str | None:
    if worker.cause.name == "library-mismatch":
        built = _TORCH_SYMBOL.search(worker.what) is not None
        return "The extension was built for another torch: install or build it again for this one." if built else None
    if worker.cause.name == "collective-mismatch":
        both = " calls " in message_line(worker.what)
        return "Compare the ranks' code paths and shapes at this call." if both else None
    if worker.cause.name == "port-in-use":
        return _port(worker, attempt)
    if worker.cause.name == "nccl":
        return "" if worker.nccl_warnings else None  # its own reason is known
    if not _by_agent(worker):
        by_master = any(_RENDEZVOUS in frame.file or "distributed_c10d" in frame.file for frame in worker.frames)
        return _OWN_SERVER if worker.frames and not by_master and worker.exception is not None else None
    return (
        "torchrun's agent did not reach the host and port of --rdzv-endpoint: see whether torchrun runs there, and"
        " name resolution and firewall between the nodes."
    )


def _service(worker: FailedWorker) -> str | None:
    """Advice on a server that was not reached: one that the job started itself is in reach of compute nodes."""
    message = worker.exception.message if worker.exception is not None else ""
    outside = _HOSTED.search(message) or any(_CLIENT.search(frame.file) for frame in worker.frames)
    return None if outside else _OWN_SERVER


def _port(worker: FailedWorker, attempt: Attempt | None) -> str | None:
    if _by_agent(worker):
        return (
            "torchrun's agent could not listen, and started no rank: another process holds the port. Give another"
            " --master-port or --rdzv-endpoint."
        )
    if any(_RENDEZVOUS in frame.file for frame in worker.frames):
        if worker.rank > 0:
            return "Only rank 0 listens for the others: this rank acted as rank 0. See whether the script changes RANK."
        if attempt is not None and attempt.option("master_port") is None:
            return (
                "The port was free before: see whether another rank acts as rank 0, as by a RANK that the script sets."
            )
    return None


def _by_agent(worker: FailedWorker) -> bool:
    """Return whether torchrun's agent, before any rank, did not reach the others."""
    name = worker.exception.type if worker.exception is not None else ""
    return name == "RendezvousConnectionError" or any("/elastic/rendezvous/" in frame.file for frame in worker.frames)


def _exit(worker: FailedWorker, tails: Sequence[LogTail], attempt: Attempt | None) -> str | None:
    if worker.cause.name == "system-exit" and worker.exception is not None and not is_code(worker.exception.message):
        return ""  # its message is the reason
    if {"stderr", "output"} & set(worker.evidence):
        return ""  # it is quoted from there
    if worker.exit_code == TIMED_OUT:
        return (
            "timeout(1) ends with 124 when its time is over, a program by a limit of its own: see what it waited for."
        )
    if any(tail.text.strip() for tail in tails):
        return ""  # their ends are shown
    if attempt is None and not tails:
        return None
    if worker.frames:
        return "It printed nothing: see the condition at that line."
    if attempt is not None and attempt.option("no_python"):
        return "It printed nothing here: see whether the script sends its output elsewhere."
    return "It printed nothing, and no exception ended it: look for os._exit in the script and its libraries."


def _native(stderr: str) -> str:
    """Advice on a crash without Python's stacks: libraries such as UCX or MPI may have printed native ones."""
    if (julia := _OF_JULIA.search(stderr)) is not None:
        return f"Native code crashed in Julia's expression at {safe(julia['place'])}."
    begin = _BACKTRACE.search(stderr)
    if begin is None and "forrtl: " in stderr:
        return "The stack in its output shows the line of the program."
    if begin is None:
        return _NO_STACKS
    known = (found[1] for found in _NATIVE_FRAME.finditer(stderr, begin.start()))
    function = next((name for name in known if not _OF_HANDLER.match(name)), None)
    where = f" in {safe(function)[:100]}" if function is not None else ""
    return f"Native code crashed{where}: its own backtrace is in the end of its stderr."


def _no_oom_kill(worker: FailedWorker) -> bool:
    resources = worker.host_resources
    if resources is None or resources.oom is None:
        return False
    return not resources.oom.recent and not resources.node_oom_kills and worker.scheduler != "OUT_OF_MEMORY"


def _loader(worker: FailedWorker, stderr: str) -> str | None:
    message = worker.exception.message if worker.exception is not None else ""
    if _LOADER_CRASH.search(message) or _LOADER_CRASH.search(stderr):
        return "The loader's process crashed in native code: num_workers=0 shows the Python line that called it."
    resources = worker.host_resources
    if not _no_oom_kill(worker) or resources is None or resources.shm_full:
        return None
    if "killed by signal: Killed" in message:
        return "The kernel counted no out-of-memory kill here: look for users or tools that send SIGKILL."
    return "Memory and /dev/shm were not short: see the end of its stderr; num_workers=0 shows the worker's own error."


def _gpu_memory(worker: FailedWorker) -> str | None:
    """Advice on a GPU that others fill: which process, by torch's message."""
    message = worker.exception.message if worker.exception is not None else ""
    if worker.exception is not None and worker.exception.type in ("ResourceExhaustedError", "XlaRuntimeError"):
        return "Smaller batch, or rematerialization; see also whether another process is on this GPU."
    if (old := _OLD_MEMORY.search(message)) is not None:
        total, free, reserved = (_bytes(*old.group(i, i + 1)) for i in (1, 3, 5))
        return _OF_OTHERS if total - free - reserved > max(reserved, total / 2) else None
    if message.startswith("HIP out of memory"):
        return "Smaller batch, activation checkpointing, or PYTORCH_HIP_ALLOC_CONF=expandable_segments:True."
    own = _OWN_MEMORY.search(message)
    others = [
        (_bytes(found[2], found[3]), found[1], f"{found[2]} {found[3]}") for found in _OTHERS_MEMORY.finditer(message)
    ]
    # In a container torch does not know which process of the list is its own.
    by_torch = _ALLOCATED.search(message) if own is None and len(others) > 1 else None
    mine = _bytes(own[1], own[2]) if own is not None else None
    if by_torch is not None:
        mine = LIBRARIES * (_bytes(by_torch[1], by_torch[2]) + _bytes(by_torch[3], by_torch[4]))
    if mine is None or not others:
        return None
    its, pid, amount = max(others)
    if its > mine:
        share = ", more than this rank"
    elif own is not None and its >= mine * LARGE_SHARE and _would_fit(message, its):
        share = ", without which this would fit"
    else:
        return None
    return (
        f"Process {pid} has {amount} of this GPU{share}: another rank on the same GPU (each needs its own, by"
        " LOCAL_RANK), or a leftover of another job."
    )


def _would_fit(message: str, its: float) -> bool:
    """Whether what was to be allocated is free together with another process's memory, in bytes."""
    wanted = _WANTED.search(message)
    if wanted is None:
        return False
    return _bytes(wanted[1], wanted[2]) <= its + _bytes(wanted[3], wanted[4])


def _bytes(number: str, unit: str) -> float:
    return float(number) * 1024.0 ** ("KMGT".index(unit[0]) + 1 if unit[0] in "KMGT" else 0)


def _gradient(worker: FailedWorker) -> str | None:
    """Advice on a gradient that torch's anomaly detection found."""
    if worker.exception is None or not worker.exception.message.startswith("Function '"):
        return None
    return "That function has no finite gradient at its input: 0 in a sqrt, log, norm or division, or inf before it."


def _refused_memory(worker: FailedWorker) -> str | None:
    resources = worker.host_resources
    total = resources.memory_total if resources is not None else None
    least = resources.least_available if resources is not None else None
    if not total or least is None or least < _LARGE * total:
        return None
    return f"{size(least)} of memory were available: one allocation asked for more, or a limit (ulimit -v) is lower."


def _import(worker: FailedWorker, same: Alike | None, attempt: Attempt | None) -> str | None:
    if attempt is None or attempt.python is None or worker.exception is None:
        return None
    hiding = _HIDING.search(worker.exception.message)
    if hiding is not None and hiding[1] in sys.stdlib_module_names and not is_library(hiding[2]):
        return f"Rename {safe(hiding[2])}: it hides a module of Python that others import."
    if "circular import" in worker.exception.message or "partially initialized module" in worker.exception.message:
        return "Modules import each other: move one of the imports into a function, or what both need into a third."
    if hiding is not None and not is_library(hiding[2]):
        return f"{safe(hiding[2])} does not define that name: see whether it is the intended file and version."
    python = safe(attempt.python)
    if worker.exception.type != "ModuleNotFoundError":
        return f"Check the environment of {python}, which ran the script."
    if same is not None and same.scope in (ALL, EVERY_NODE):
        return (
            f"The script was run by {python}: if that is not the intended environment, activate it before submitting."
        )
    return f"Check that the module is installed for {python} on this node too."


def _arguments(stderr: str, attempt: Attempt | None) -> str | None:
    if (refused := _LOCAL_RANK.search(refusal(stderr))) is not None:
        return (
            f"The launcher adds {refused['option']} to the arguments: accept it, or use torchrun or ftslurm, whose"
            " ranks read LOCAL_RANK."
        )
    if attempt is None:
        return None
    from ftslurm.agent.option_table import OPTIONS

    ours = {flag for option in OPTIONS for flag in option.flags}
    line = refusal(stderr)
    given = {word.partition("=")[0] for word in attempt.command}
    wrong = [flag for flag in _FLAG.findall(line) if flag in ours and flag in given]
    if wrong and ("unrecognized" in line or "No such option" in line or "nknown" in line):
        return f"{wrong[0]} is an option of ftslurm: put it before the program (ftslurm run {wrong[0]} ... PROGRAM)."
    return "Correct the program's own arguments: the same ones fail the same way every time." if line else None


_BY_CAUSE = {
    "cuda-oom": _gpu_memory,
    "host-memory": _refused_memory,
    "nan": _gradient,
    "service-unreachable": _service,
}

"""Predicates over the evidence that the rows of causes are built from (pure).

Words that any program can print ("NCCL", "Killed", "OOM") count only where the runtime itself put them: in the message
of an exception of the right type, or in the runtime's log format before an abort. Patterns are compiled on first use:
most reports need few of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ftslurm.failures.evidence import Evidence
from ftslurm.failures.nccl import is_stuck
from ftslurm.failures.own_code import gave_up_waiting, is_library
from ftslurm.failures.reason import PARSERS, links
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord

Match = Callable[[Evidence], bool]

_CUDA_TYPES = ("RuntimeError", "AcceleratorError", "OutOfMemoryError", "DeferredCudaCallError", "CUDARuntimeError")
_END = 4096  # characters of stderr's end
_OS_TYPES = frozenset(
    (
        "OSError", "IOError", "EnvironmentError", "BlockingIOError", "FileNotFoundError", "PermissionError",
        "NotADirectoryError", "ConnectionError", "InterruptedError", "ProcessLookupError", "TimeoutError",
    )
)  # fmt: skip
_OF_COMPILERS_ONLY = (
    "PTXASError",
    "InductorError",
    "BackendCompilerFailed",
    "CppCompileError",
    "CompileTimeAssertionFailure",
)
CHILD_LOST = r"terminated abruptly|abruptly died|[Ww]orker (?:process )?died|workers? (?:is|are) no longer alive"
"""In the message of a pool of processes of which one was killed."""
_CHILD_KILLED = pattern(rf"killed by signal: Killed|exited unexpectedly|SIGKILL|{CHILD_LOST}")


def lost_child(raised: ExceptionRecord) -> bool:
    """Return whether an exception reports that a child process was killed, as by the kernel where memory ran out."""
    return any(_CHILD_KILLED.search(each.message) for each in links(raised))


def exception(*types: str, text: str = "") -> Match:
    """Match an exception by its type name (any, if none are given) and a pattern in its message."""

    def matches(e: Evidence) -> bool:
        if e.exception is None or (types and e.exception not in types):
            return False
        return not text or re.search(text, e.message) is not None

    return matches


def os_error(*numbers: int) -> Match:
    """Match an error of the operating system by the number at the start of Python's message: ``[Errno 28]``."""
    numbered = pattern(rf"\A\[Errno ({'|'.join(map(str, numbers))})\]")
    return lambda e: e.exception is not None and numbered.search(e.message) is not None


def not_quoted(match: Match, text: str) -> Match:
    """Match, but for an exception of the program's own code whose message has the text behind words of its own.

    There it is quoted: of another job, of a file's name, of a server's answer. What it was raised from is judged by
    itself.
    """

    def matches(e: Evidence) -> bool:
        last = e.frames[-1] if e.frames else None
        own = last is not None and not is_library(last.file) and (last.source or "").lstrip().startswith("raise ")
        return match(e) and not (own and re.match(rf"(?:[\w ]{{1,20}}: )?(?:{text})", e.message) is None)

    return matches


def cuda(text: str) -> Match:
    """Match torch's exceptions for CUDA errors, by a pattern in the message; also those that NCCL met."""
    by_torch = not_quoted(exception(*_CUDA_TYPES, text=text), text)
    return lambda e: (
        by_torch(e)
        or ("Cuda failure" in e.nccl and re.search(text, e.nccl) is not None)
        or (bool(e.watchdog_error) and re.search(text, e.watchdog_error) is not None)
    )


def signal(*names: str) -> Match:
    """Match an end by one of these signals, or by any."""
    return lambda e: e.kind == "signal" and (not names or e.signal in names)


def ended(*codes: int, text: str = "") -> Match:
    """Match an end by one of these exit codes, or any, without an exception; ``text``: a pattern in its message."""

    def matches(e: Evidence) -> bool:
        if e.kind != "exit" or e.exception is not None or (codes and e.exit_code not in codes):
            return False
        return not text or re.search(text, e.message) is not None

    return matches


def kind(*kinds: str) -> Match:
    """Match by the kind of end."""
    return lambda e: e.kind in kinds


def spawned(text: str) -> Match:
    """Match what could not be started, by a pattern in the description of the end."""
    return lambda e: e.kind == "spawn" and re.search(text, e.message) is not None


# EIO, ENOMEM, EBUSY, ENFILE, EMFILE, ENOSPC, EROFS, ENOLCK, ESTALE, EDQUOT.
_OF_FILESYSTEM = pattern(r"(?:\w{1,40}Error: )?\[Errno (?:5|12|16|23|24|28|30|37|116|122)\] ")


def by_compiler(*types: str) -> Match:
    """Match an exception of torch's or Triton's compilers by its type; text of another process lacks the module.

    What its message consists of may be an error of the disk or the filesystem, which no compiler caused.
    """
    return lambda e: (
        e.exception in types
        and _OF_FILESYSTEM.match(e.message) is None
        and (e.module.partition(".")[0] in ("torch", "triton") or (not e.module and e.exception in _OF_COMPILERS_ONLY))
    )


def scheduler(*states: str) -> Match:
    """Match by the scheduler's state; it ends jobs by these signals only."""
    return lambda e: e.scheduler in states and (e.signal in ("SIGTERM", "SIGKILL", "SIGINT") or e.kind == "scheduler")


def either(*matches: Match) -> Match:
    """Match if any of these matches."""
    return lambda e: any(match(e) for match in matches)


def tail(name: str, text: str) -> Match:
    """Match an end by that signal with a runtime's final message on stderr."""
    return lambda e: e.kind == "signal" and e.signal == name and re.search(text, e.tail) is not None


def distributed(text: str) -> Match:
    """Match what torch.distributed itself raised, by a pattern in its message."""
    return lambda e: e.by_distributed and re.search(text, e.message) is not None


UNRESOLVED = r"cannot be retrieved \(gai error|[Nn]ame or service not known|failure in name resolution"


def unresolved(e: Evidence) -> bool:
    """Match a master that was not reached because its name has no address, by torch's warnings before."""
    of_client = "client socket has " in e.message and (e.by_distributed or e.exception == "TimeoutError")
    return of_client and re.search(UNRESOLVED, e.tail) is not None


def nccl(text: str) -> Match:
    """Match an error of NCCL by a pattern in its last error or its WARN lines."""
    return lambda e: bool(e.nccl) and re.search(text, e.nccl) is not None


def watchdog(text: str) -> Match:
    """Match an abort by torch's watchdog of NCCL, by a pattern in the error that it gives."""
    return lambda e: bool(e.watchdog_error) and re.search(text, e.watchdog_error) is not None


def nccl_stuck(e: Evidence) -> bool:
    """Match a rank whose own NCCL watchdog got stuck, by torch's heartbeat monitor."""
    if e.by_distributed:
        return is_stuck(e.message)
    return e.kind == "signal" and e.signal == "SIGABRT" and is_stuck(e.tail)


def at_end(text: str) -> Match:
    """Match an end without an exception by a line's beginning in the last lines of stderr."""
    labelled = pattern(rf"(?m)^(?:\[rank\d+\]: ?| *\d+: )?(?:{text})")

    def matches(e: Evidence) -> bool:
        silent = e.exception in (None, "SystemExit") and e.kind in ("exit", "signal", "exception")
        return silent and labelled.search(e.tail[-_END:]) is not None

    return matches


def client(text: str = "") -> Match:
    """Match an exception of a client library of an external service, by a pattern in type and message."""

    def matches(e: Evidence) -> bool:
        if e.exception is None or e.by_distributed:
            return False
        of_library = e.module.partition(".")[0] in _CLIENTS or (not e.module and e.exception in _CLIENT_TYPES)
        return of_library and re.search(text, f"{e.exception}: {e.message}") is not None

    return matches


_CLIENTS = frozenset(
    (
        "requests", "urllib3", "urllib", "http", "httpx", "httpcore", "aiohttp", "botocore", "boto3", "s3fs",
        "s3transfer", "aiobotocore", "gcsfs", "google", "azure", "adlfs", "fsspec", "huggingface_hub", "datasets",
        "wandb", "mlflow", "comet_ml", "neptune", "clearml", "streaming", "webdataset", "minio", "paramiko", "grpc",
        "redis", "pymongo", "psycopg2", "kafka", "oss2", "multistorageclient",
    )
)  # fmt: skip
_CLIENT_TYPES = frozenset(("HfHubHTTPError", "HTTPError", "ClientError", "MaxRetryError", "ReadTimeoutError"))
"""Names by which loggers, which leave out the module, print the exceptions of such libraries."""
_GONE = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError")


def loader_gone(e: Evidence) -> bool:
    """Match a loader that fetches a tensor from a worker that has gone: the socket breaks before torch looks."""
    if e.exception not in _GONE:
        return False
    return any("/torch/utils/data/" in file for file in e.files) and any(
        file.endswith("/multiprocessing/resource_sharer.py") for file in e.files
    )


def not_saved(match: Match) -> Match:
    """Match what happens where a checkpoint is loaded, and not where one is saved."""

    def matches(e: Evidence) -> bool:
        return match(e) and not any(file.endswith("/state_dict_saver.py") for file in e.files)

    return matches


def main_run_again(e: Evidence) -> bool:
    """Match a child process that ran the script's top level again, to find there what it shall do."""
    again = any(frame.function.startswith("_fixup_main_from_") for frame in e.frames)
    return again or (
        e.exception == "RuntimeError" and "before the current process has finished its bootst" in e.message
    )


def xid(*numbers: int) -> Match:
    """Match an error of CUDA beside which the kernel reported one of these Xids of a GPU."""
    line = pattern(rf"NVRM: Xid \([^)]{{1,60}}\): ({'|'.join(map(str, numbers))})\b")
    by_cuda = cuda(r"(CUDA|cuBLAS|CUBLAS|cuDNN|NVML) ?\w* ?error|Cuda failure|CUDNN_STATUS|CUBLAS_STATUS")

    def matches(e: Evidence) -> bool:
        stated = e.exception == "RuntimeError" and line.match(e.message) is not None
        return stated or (by_cuda(e) and any(line.search(note) for note in e.notes))

    return matches


def not_importable(e: Evidence) -> bool:
    """Match a module that is not there or cannot be loaded, for ``python -m`` too."""
    return e.exception in ("ImportError", "ModuleNotFoundError") or (e.module, e.exception) == ("runpy", "_Error")


_REFUSED = pattern(r"[\w./-]{1,200}: error: |(?:ERROR|Error): ")


def interrupted_wait(e: Evidence) -> bool:
    """Match an exception by which a signal's handler, such as of an alarm, interrupted the wait for a collective."""
    return e.exception is not None and gave_up_waiting(e.exception, e.message, e.frames)


def wrong_usage(e: Evidence) -> bool:
    """Match a script that refused its arguments: exit code 2 raised by a parser of command lines, not by the script."""
    if e.kind == "exit" and e.exception is None and e.exit_code == 2:
        return _REFUSED.match(e.message) is not None
    if e.exception not in ("SystemExit", "FireExit") or e.exit_code != 2 or not e.files:
        return False
    return PARSERS.search(e.files[-1]) is not None


_QUANTITY = r"\b(loss|losses|gradients?|grads?|grad[_ ]norm|weights?|logits?|activations?|perplexity)\b"
_NOT_FINITE = r"\b(nans?|infs?|infinity|infinite|not finite|non-?finite)\b"
_NAN = (
    rf"{_QUANTITY}.{{0,60}}{_NOT_FINITE}|{_NOT_FINITE}.{{0,60}}{_QUANTITY}"
    r"|returned nan values in its \d+th output|found invalid values:.{0,400}\bnan\b"
)
_NAN_NEVER = frozenset(("KeyError", "TypeError", "AttributeError", "ImportError", "ModuleNotFoundError", "NameError"))


def not_finite(e: Evidence) -> bool:
    """Match a check of the training's numbers that found NaN or infinity."""
    if e.exception is None or e.exception in _NAN_NEVER or e.exception in _OS_TYPES:
        return False
    if "inconsistent between workers" in e.message and re.search(r"= *-?(?:nan|inf)\b", e.message) is None:
        return False
    return (
        e.exception == "FloatingPointError" or re.search(_NAN, e.message[:4096], re.IGNORECASE | re.DOTALL) is not None
    )


_DAMAGED = (
    r"PytorchStreamReader failed|invalid header or archive is corrupted|failed finding central directory"
    r"|not a (ZIP archive|zip file)|[Bb]ad (CRC-32|magic number)|pickle data was truncated|Ran out of input"
    r"|invalid load key|could not find MARK|unexpected EOF, expected \d+ more bytes|Error while deserializing"
    r"|checkpoint .{0,80}(corrupt|truncated|incomplete)|(corrupt|truncated)\w* .{0,60}checkpoint"
)
_LOADERS = (
    "/torch/serialization.py",
    "/torch/distributed/checkpoint/",
    "/safetensors/",
    "/pickle.py",
    "/zipfile.py",
    "ckpt",
)
_OF_CHECKPOINTS = tuple(part for part in _LOADERS if part not in ("/pickle.py", "/zipfile.py"))
_FORMAT_ERRORS = ("RuntimeError", "ValueError", "BadZipFile", "SafetensorError", "OSError", "error", "Exception")


def damaged(e: Evidence) -> bool:
    """Match a checkpoint that is damaged or cut off, by the messages of the formats: zip, pickle, safetensors, DCP."""
    if e.exception is None:
        return False
    of_torch = any("/torch/serialization.py" in file for file in e.files)
    if e.exception in ("EOFError", "UnpicklingError"):
        # Not of a queue between processes.
        between = any("/multiprocessing/" in file for file in e.files)
        # Bytes in memory came from another process, too.
        between = between or (bool(e.frames) and "pickle.loads(" in (e.frames[-1].source or ""))
        return not between and (re.search(_DAMAGED, e.message) is not None or (of_torch and not e.message))
    if re.search(_DAMAGED, e.message) is None:
        # A position before the beginning of a file that is cut off.
        by_reader = any(frame.function == "load" and "/torch/serialization.py" in frame.file for frame in e.frames)
        return by_reader and e.exception == "OSError" and e.message == "[Errno 22] Invalid argument"
    if e.exception == "BadZipFile" and not any(part in file for file in e.files for part in _OF_CHECKPOINTS):
        return False  # of the user's own data
    by_loader = any(part in file for file in e.files for part in _LOADERS)
    return e.exception in _FORMAT_ERRORS or (by_loader and e.exception.endswith("Error"))


def with_path(*numbers: int) -> Match:
    """Match an error of the operating system that names a file: of a socket, the same number means something else."""
    named = pattern(rf"\A\[Errno ({'|'.join(map(str, numbers))})\][^'\"]*: ['\"]")
    return lambda e: e.exception is not None and named.search(e.message) is not None


_CORRUPTED = (
    r"silent data corruption|\b(weight|param(eter)?|replica|gradient)\w*[ -](hash|checksum|fingerprint)\w*.{0,60}"
    r"(mis-?match|not match|differ)|(hash|checksum|fingerprint)\w* .{0,40}(mis-?match|not match|differ)\w*.{0,60}"
    r"\b(replica|DP ranks|data[- ]parallel)"
)


def corrupted(e: Evidence) -> bool:
    """Match a check that found replicas of the model to differ."""
    if e.exception is None or e.exception in _NAN_NEVER:
        return False
    return re.search(_CORRUPTED, e.message[:4096], re.IGNORECASE) is not None

"""Predicates over the evidence that the rows of causes are built from (pure).

Words that any program can print ("NCCL", "Killed", "OOM") count only where the runtime itself put them: in the message
of an exception of the right type, or in the runtime's log format before an abort. Patterns are compiled on first use:
most reports need few of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ftslurm.failures.evidence import Evidence
from ftslurm.failures.reason import PARSERS

Match = Callable[[Evidence], bool]

_DOTALL = re.DOTALL | re.MULTILINE
_CUDA_TYPES = ("RuntimeError", "AcceleratorError", "OutOfMemoryError")
_OS_TYPES = frozenset(
    (
        "OSError", "IOError", "EnvironmentError", "BlockingIOError", "FileNotFoundError", "PermissionError",
        "NotADirectoryError", "ConnectionError", "InterruptedError", "ProcessLookupError", "TimeoutError",
    )
)  # fmt: skip


def exception(*types: str, text: str = "") -> Match:
    """Match an exception by its type name (any, if none are given) and a pattern in its message."""

    def matches(e: Evidence) -> bool:
        if e.exception is None or (types and e.exception not in types):
            return False
        return not text or re.search(text, e.message) is not None

    return matches


def os_error(*numbers: int) -> Match:
    """Match an error of the operating system by the number at the start of Python's message: ``[Errno 28]``.

    Also where it was raised in a DataLoader's worker, whose traceback is then part of the message.
    """
    number = "|".join(map(str, numbers))
    pattern = re.compile(
        rf"\A\[Errno ({number})\]|^Caught \w+ in DataLoader worker.*^\w+: \[Errno ({number})\]", _DOTALL
    )
    return lambda e: e.exception is not None and pattern.search(e.message) is not None


def cuda(text: str) -> Match:
    """Match torch's exceptions for CUDA errors, by a pattern in the message."""
    return exception(*_CUDA_TYPES, text=text)


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


_GONE = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError")


def loader_gone(e: Evidence) -> bool:
    """Match a loader that fetches a tensor from a worker that has gone: the socket breaks before torch looks."""
    if e.exception not in _GONE:
        return False
    return any("/torch/utils/data/" in file for file in e.files) and any(
        file.endswith("/multiprocessing/resource_sharer.py") for file in e.files
    )


def not_importable(e: Evidence) -> bool:
    """Match a module that is not there or cannot be loaded, for ``python -m`` too."""
    return e.exception in ("ImportError", "ModuleNotFoundError") or (e.module, e.exception) == ("runpy", "_Error")


def wrong_usage(e: Evidence) -> bool:
    """Match a script that refused its arguments: exit code 2 raised by a parser of command lines, not by the script."""
    if e.exception != "SystemExit" or e.exit_code != 2 or not e.files:
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
    return (
        e.exception == "FloatingPointError" or re.search(_NAN, e.message[:4096], re.IGNORECASE | re.DOTALL) is not None
    )

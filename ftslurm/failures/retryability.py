"""Whether a worker would fail again in the same way: the part that an agent needs at once (pure).

The complete catalogue (`ftslurm.failures.causes`) is more precise, but it costs time and memory that an agent should
not spend while a round waits to be stopped. A non-retryable failure here is POINTLESS to restart there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftslurm.failures.memory import HOST, ran_out
from ftslurm.failures.reason import EXIT, links, reason, refuses_arguments
from ftslurm.failures.signature import signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NON_RETRYABLE_S = 600.0
"""Seconds after a worker's start in which an import or syntax error counts as one at start; modules may be on NFS."""

DO_NOT_RESTART = "78"
"""A script's exit code to prevent restarts; see `ftslurm.rendezvous.state.EXIT_DO_NOT_REQUEUE`."""

START_S = 60.0
"""Seconds in which any other failure counts as one at start, if no step was reported."""

_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_IMPORT = ("ImportError", "ModuleNotFoundError")
_RUNPY = ("runpy", "_Error")
"""The exception of ``python -m`` for a module that does not exist or cannot be run."""
_FROM_OUTSIDE = ("KeyboardInterrupt",)
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
_HARDWARE = re.compile(
    r"uncorrectable (ECC|NVLink) error|fallen off the bus|GPU is lost|GPU access blocked|hardware stack error"
    r"|CUDA-capable devices are busy or unavailable|unspecified launch failure|[Uu]ncorrectable memory error"
)
_NODE_ERRNOS = re.compile(
    r"\A(Caught \w+ in DataLoader worker.*^\w+: )?\[Errno (5|28|30|107|108|112|113|116|121)\]", re.DOTALL | re.MULTILINE
)
"""EIO, ENOSPC, EROFS, ENOTCONN, ESTALE and similar: errors of devices and mounts. Also if raised in a DataLoader's
worker, whose traceback is then part of the message."""
_GPU = re.compile(r"\bCUDA\b|\bcuda(Error|\w*:)|\bCUDNN_|\bcuBLAS|CUBLAS_|\bHIP (error|runtime)")
_OWN = re.compile(r"out of memory|device-side assert|no kernel image|invalid (configuration|argument|value)")
_NODE_SIGNALS = ("SIGBUS", "SIGILL", "SIGSEGV", "SIGABRT", "SIGFPE", "SIGKILL")
_PEERS = re.compile(r"/torch/distributed/|gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL\b")
_UNREACHABLE = re.compile(r"Connect(ion)?\w*Error|BrokenPipe|Timeout|MaxRetry|URLError|gaierror|NameResolution")
"""Types of exceptions for a missing answer from outside the program: it may answer next time."""


def retryability(record: Mapping[str, Any], life_s: float) -> dict[str, Any]:
    """Return the part of a failure's summary about the prospects of a restart.

    Args:
        record: the error record, completed.
        life_s: the worker's lifetime, in seconds.

    Returns:
        "at_start": it failed at start, by itself. "again": why it would fail again, as text, or None.
        "everywhere": on any node, because the script or its arguments are wrong, not something missing on a node.
        "blame": "node": its message names the node's hardware; "perhaps": the node may be the cause; None: hardly.
        "signature": for comparison with other rounds' failures, see `ftslurm.failures.signature`; or None.
    """
    return {**_prospect(record, life_s), "blame": blame(record), "signature": signature(record)}


def blame(record: Mapping[str, Any]) -> str | None:
    """Return whether the node may be the cause of a failure; it is not for a program's own error (a ValueError).

    Broken connections are caused by a peer far more often than by the node. An out-of-memory kill counts if the host's
    memory was exhausted: on a node filled by another job's leftovers it repeats. A kill at the job's own limit would
    happen on any node.
    """
    ours = record["ftslurm"]
    chain = [*links(ours["exception"])] if ours.get("exception") else []
    texts = [f"{link.get('type') or ''}: {link.get('message') or ''}" for link in chain]
    if any(map(_HARDWARE.search, [*texts, _text(record)])):
        return "node"
    if chain:
        return "perhaps" if any(map(_may_be_nodes, chain, texts)) else None
    by_signal = ours.get("signal") in _NODE_SIGNALS and not _killed_at_its_own_limit(ours)
    return "perhaps" if ours["kind"] in ("spawn", "hang") or by_signal else None


def _killed_at_its_own_limit(ours: Mapping[str, Any]) -> bool:
    """Whether it was a kill at a limit of CPU time, or for memory without evidence that the host's was exhausted."""
    resources = ours.get("host_resources") or {}
    if ours["signal"] == "SIGKILL" and resources.get("cpu_limit_s") is not None:
        return True
    oom = resources.get("oom") or {}
    if ours["signal"] != "SIGKILL" or not oom.get("recent"):
        return False
    return ran_out(oom.get("at_limit"), *(resources.get("memory") or (None, None))) != HOST


def _may_be_nodes(link: Mapping[str, Any], text: str) -> bool:
    errno = _NODE_ERRNOS.search(str(link.get("message") or ""))
    return bool(errno or (_GPU.search(text) and not _OWN.search(text)))


def _prospect(record: Mapping[str, Any], life_s: float) -> dict[str, Any]:
    ours = record["ftslurm"]
    exception = ours.get("exception") or {}
    if exception.get("type") == EXIT and exception.get("message") == DO_NOT_RESTART:
        # Its exit may not have completed: it may have been stopped while it ended.
        return {"at_start": False, "again": f"it ended with code {DO_NOT_RESTART}", "everywhere": True}
    if asks_for_input(reason(exception)):
        return {"at_start": False, "again": "workers have no stdin (breakpoint() or input())", "everywhere": True}
    if ours.get("step") is not None:
        return {"at_start": False, "again": None, "everywhere": False}
    again, everywhere = (
        _non_retryable(ours, reason(exception), _text(record)) if life_s < NON_RETRYABLE_S else (None, False)
    )
    return {
        "at_start": life_s < START_S and _by_itself(ours, exception),
        "again": again,
        "everywhere": everywhere,
    }


def asks_for_input(exception: Mapping[str, Any]) -> bool:
    """Return whether input() or breakpoint()'s debugger reached the end of stdin, which is empty for workers."""
    name = exception.get("type")
    return name == "BdbQuit" or (name == "EOFError" and exception.get("message") == "EOF when reading a line")


def _non_retryable(ours: Mapping[str, Any], exception: Mapping[str, Any], text: str) -> tuple[str | None, bool]:
    name, code = exception.get("type"), ours.get("exit_code")
    if name in _SYNTAX or name in _IMPORT:
        return f"{name} at start", name in _SYNTAX
    if (exception.get("module"), name) == _RUNPY:
        return "Python cannot run the module", False
    if code == 2 and refuses_arguments(exception):
        return "the script refused its arguments", True
    if name is None and code == 2 and text.startswith("can't open file "):
        return "the script does not exist", False
    if name is None and code in (126, 127) and text.startswith("cannot start "):
        return "the program cannot be started", False
    return None, False


def _by_itself(ours: Mapping[str, Any], exception: Mapping[str, Any]) -> bool:
    """Whether neither a kill from outside nor another rank, a server or the network caused it."""
    if ours.get("signal") is not None and ours["kind"] == "signal":
        return ours["signal"] in _CRASHES
    if reason(exception).get("type") in _FROM_OUTSIDE:
        return False
    if unanswered(reason(exception).get("type") or ""):
        return False
    return not any(map(_by_peers, links(exception)))


def unanswered(name: str) -> bool:
    """Return whether an exception of that type means that something outside the program did not answer or vanished."""
    return _UNREACHABLE.search(name) is not None


def _by_peers(exception: Mapping[str, Any]) -> bool:
    name, frames = exception.get("type") or "", exception.get("frames") or ()
    inner = frames[-1]["file"] if frames else ""
    found = _PEERS.search(inner) or _PEERS.search(exception.get("message") or "")
    return name.startswith("Dist") or found is not None


def _text(record: Mapping[str, Any]) -> str:
    message = record["message"]
    return str(message if isinstance(message, str) else message.get("message", ""))

"""Whether a worker would fail again the same way: as much of it as an agent must know at once (pure).

The whole registry (`ftslurm.failures.causes`) judges better, afterwards, but it costs an agent time and memory that it
should not spend while a round waits to be stopped. What is called hopeless here is POINTLESS to restart there.
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

HOPELESS_S = 600.0
"""An import or a syntax error counts as one at start so long after the worker's start; modules may come over NFS."""

DO_NOT_RESTART = "78"
"""The code with which a script says so; see `ftslurm.rendezvous.state.EXIT_DO_NOT_REQUEUE`."""

START_S = 60.0
"""Any other failure counts as one at start for so long, if no step was reported."""

_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_IMPORT = ("ImportError", "ModuleNotFoundError")
_RUNPY = ("runpy", "_Error")
"""What ``python -m`` raises for a module that is not there, or cannot be run."""
_FROM_OUTSIDE = ("KeyboardInterrupt",)
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
_HARDWARE = re.compile(
    r"uncorrectable (ECC|NVLink) error|fallen off the bus|GPU is lost|GPU access blocked|hardware stack error"
    r"|CUDA-capable devices are busy or unavailable|unspecified launch failure|[Uu]ncorrectable memory error"
)
_NODE_ERRNOS = re.compile(
    r"\A(Caught \w+ in DataLoader worker.*^\w+: )?\[Errno (5|28|30|107|108|112|113|116|121)\]", re.DOTALL | re.MULTILINE
)
"""Such as EIO, ENOSPC, EROFS, ENOTCONN, ESTALE: what an operating system says of its devices and mounts. Also where it
was raised in a DataLoader's worker, whose traceback is then part of the message."""
_GPU = re.compile(r"\bCUDA\b|\bcuda(Error|\w*:)|\bCUDNN_|\bcuBLAS|CUBLAS_|\bHIP (error|runtime)")
_OWN = re.compile(r"out of memory|device-side assert|no kernel image|invalid (configuration|argument|value)")
_NODE_SIGNALS = ("SIGBUS", "SIGILL", "SIGSEGV", "SIGABRT", "SIGFPE", "SIGKILL")
_PEERS = re.compile(r"/torch/distributed/|gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL\b")
_UNREACHABLE = re.compile(r"Connect(ion)?\w*Error|BrokenPipe|Timeout|MaxRetry|URLError|gaierror|NameResolution")
"""Types of exceptions by which something outside of the program did not answer: it may the next time."""


def retryability(record: Mapping[str, Any], life_s: float) -> dict[str, Any]:
    """Return the part of a failure's short form that says what a restart would bring.

    Args:
        record: the error record, completed.
        life_s: how long the worker lived, in seconds.

    Returns:
        "at_start": it failed as it started, by itself. "again": why it would fail again, in words, or None.
        "everywhere": it would on any node, for the script or its arguments are wrong, not what a node lacks.
        "blame": "node": its words name the node's hardware; "perhaps": the node may be to blame; None: hardly.
        "signature": what another round's failure is compared by, see `ftslurm.failures.signature`; or None.
    """
    return {**_prospect(record, life_s), "blame": blame(record), "signature": signature(record)}


def blame(record: Mapping[str, Any]) -> str | None:
    """Tell whether a failure may be its node's; what a program says of itself (a ValueError) is not.

    Connections that break are a peer's doing far more often than the node's. An out-of-memory kill counts where the
    host's memory ran out: on a node that somebody else's leftovers fill it comes again. One at the job's own limit
    would come on any node.
    """
    ours = record["ftslurm"]
    chain = [*links(ours["exception"])] if ours.get("exception") else []
    said = [f"{link.get('type') or ''}: {link.get('message') or ''}" for link in chain]
    if any(map(_HARDWARE.search, [*said, _text(record)])):
        return "node"
    if chain:
        return "perhaps" if any(map(_may_be_nodes, chain, said)) else None
    by_signal = ours.get("signal") in _NODE_SIGNALS and not _killed_for_its_own_memory(ours)
    return "perhaps" if ours["kind"] in ("spawn", "hang") or by_signal else None


def _killed_for_its_own_memory(ours: Mapping[str, Any]) -> bool:
    """Whether the kernel killed for memory, and nothing shows that it was the host's that ran out."""
    around = ours.get("host_resources") or {}
    oom = around.get("oom") or {}
    if ours["signal"] != "SIGKILL" or not oom.get("recent"):
        return False
    return ran_out(oom.get("at_limit"), *(around.get("memory") or (None, None))) != HOST


def _may_be_nodes(link: Mapping[str, Any], said: str) -> bool:
    errno = _NODE_ERRNOS.search(str(link.get("message") or ""))
    return bool(errno or (_GPU.search(said) and not _OWN.search(said)))


def _prospect(record: Mapping[str, Any], life_s: float) -> dict[str, Any]:
    ours = record["ftslurm"]
    exception = ours.get("exception") or {}
    if exception.get("type") == EXIT and exception.get("message") == DO_NOT_RESTART:
        # It need not have got that far: perhaps it was stopped on its way out.
        return {"at_start": False, "again": f"it ended with code {DO_NOT_RESTART}", "everywhere": True}
    if asks_for_input(reason(exception)):
        return {"at_start": False, "again": "workers have no stdin (breakpoint() or input())", "everywhere": True}
    if ours.get("step") is not None:
        return {"at_start": False, "again": None, "everywhere": False}
    again, everywhere = _hopeless(ours, reason(exception), _text(record)) if life_s < HOPELESS_S else (None, False)
    return {
        "at_start": life_s < START_S and _by_itself(ours, exception),
        "again": again,
        "everywhere": everywhere,
    }


def asks_for_input(exception: Mapping[str, Any]) -> bool:
    """Tell whether input() or the debugger behind breakpoint() has met the end of stdin, which is empty for workers."""
    name = exception.get("type")
    return name == "BdbQuit" or (name == "EOFError" and exception.get("message") == "EOF when reading a line")


def _hopeless(ours: Mapping[str, Any], exception: Mapping[str, Any], text: str) -> tuple[str | None, bool]:
    name, code = exception.get("type"), ours.get("exit_code")
    if name in _SYNTAX or name in _IMPORT:
        return f"{name} at start", name in _SYNTAX
    if (exception.get("module"), name) == _RUNPY:
        return "Python cannot run the module", False
    if code == 2 and refuses_arguments(exception):
        return "the script refused its arguments", True
    if name is None and code == 2 and text.startswith("can't open file "):
        return "the script is not there", False
    if name is None and code in (126, 127) and text.startswith("cannot start "):
        return "the program cannot be started", False
    return None, False


def _by_itself(ours: Mapping[str, Any], exception: Mapping[str, Any]) -> bool:
    """Whether it was neither killed from outside nor let down by another rank, a server or the network."""
    if ours.get("signal") is not None and ours["kind"] == "signal":
        return ours["signal"] in _CRASHES
    if reason(exception).get("type") in _FROM_OUTSIDE:
        return False
    if unanswered(reason(exception).get("type") or ""):
        return False
    return not any(map(_by_peers, links(exception)))


def unanswered(name: str) -> bool:
    """Tell whether an exception of that type says that something outside of the program did not answer, or went."""
    return _UNREACHABLE.search(name) is not None


def _by_peers(exception: Mapping[str, Any]) -> bool:
    name, frames = exception.get("type") or "", exception.get("frames") or ()
    inner = frames[-1]["file"] if frames else ""
    said = _PEERS.search(inner) or _PEERS.search(exception.get("message") or "")
    return name.startswith("Dist") or said is not None


def _text(record: Mapping[str, Any]) -> str:
    message = record["message"]
    return str(message if isinstance(message, str) else message.get("message", ""))

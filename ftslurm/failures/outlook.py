"""Whether a worker would fail again the same way: as much of it as an agent must know at once (pure).

The whole registry (`ftslurm.failures.causes`) judges better, afterwards, but it costs an agent time and memory that it
should not spend while a round waits to be stopped. What is called hopeless here is POINTLESS to restart there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
_PARSERS = re.compile(r"/(argparse|optparse)\.py$|/(click|typer|absl)/")
_HARDWARE = re.compile(
    r"uncorrectable (ECC|NVLink) error|fallen off the bus|GPU is lost|GPU access blocked|hardware stack error"
    r"|CUDA-capable devices are busy or unavailable|unspecified launch failure|[Uu]ncorrectable memory error"
)
_NODE_ERRNOS = re.compile(r"^\[Errno (5|28|30|107|108|112|113|116|121)\]")
"""Such as EIO, ENOSPC, EROFS, ENOTCONN, ESTALE: what an operating system says of its devices and mounts."""
_GPU = re.compile(r"\bCUDA\b|\bcuda(Error|\w*:)|\bCUDNN_|\bcuBLAS|CUBLAS_|\bHIP (error|runtime)")
_OWN = re.compile(r"out of memory|device-side assert|no kernel image|invalid (configuration|argument|value)")
_NODE_SIGNALS = ("SIGBUS", "SIGILL", "SIGSEGV", "SIGABRT", "SIGFPE", "SIGKILL")
_PEERS = re.compile(r"/torch/distributed/|gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL\b")


def outlook(record: Mapping[str, Any], life_s: float) -> dict[str, Any]:
    """Return the part of a failure's short form that says what a restart would bring.

    Args:
        record: the error record, completed.
        life_s: how long the worker lived, in seconds.

    Returns:
        "at_start": it failed as it started, by itself. "again": why it would fail again, in words, or None.
        "everywhere": it would on any node, for the script or its arguments are wrong, not what a node lacks.
        "blame": "node": its words name the node's hardware; "perhaps": the node may be to blame; None: hardly.
    """
    return {**_prospect(record, life_s), "blame": blame(record)}


def blame(record: Mapping[str, Any]) -> str | None:
    """Tell whether a failure may be its node's; what a program says of itself (a ValueError) is not.

    Connections that break are a peer's doing far more often than the node's. An out-of-memory kill counts: on a node
    that somebody else's leftovers fill it comes again.
    """
    ours = record["ftslurm"]
    exception = ours.get("exception") or {}
    text = f"{exception.get('type') or ''}: {exception.get('message') or ''} {_text(record)}"
    if _HARDWARE.search(text):
        return "node"
    if exception:
        errno = _NODE_ERRNOS.search(str(exception.get("message") or ""))
        gpu = _GPU.search(text) and not _OWN.search(text)
        return "perhaps" if errno or gpu else None
    return "perhaps" if ours["kind"] in ("spawn", "hang") or ours.get("signal") in _NODE_SIGNALS else None


def _prospect(record: Mapping[str, Any], life_s: float) -> dict[str, Any]:
    ours = record["ftslurm"]
    exception = ours.get("exception") or {}
    if exception.get("type") == "SystemExit" and exception.get("message") == DO_NOT_RESTART:
        # It need not have got that far: perhaps it was stopped on its way out.
        return {"at_start": False, "again": f"it ended with code {DO_NOT_RESTART}", "everywhere": True}
    if ours.get("step") is not None:
        return {"at_start": False, "again": None, "everywhere": False}
    again, everywhere = _hopeless(ours, exception, _text(record)) if life_s < HOPELESS_S else (None, False)
    return {
        "at_start": life_s < START_S and _by_itself(ours, exception),
        "again": again,
        "everywhere": everywhere,
    }


def _hopeless(ours: Mapping[str, Any], exception: Mapping[str, Any], text: str) -> tuple[str | None, bool]:
    name = exception.get("type")
    if name in _SYNTAX or name in _IMPORT:
        return f"{name} at start", name in _SYNTAX
    code, frames = ours.get("exit_code"), exception.get("frames") or ()
    if name == "SystemExit" and code == 2 and frames and _PARSERS.search(frames[-1]["file"]):
        return "the script refused its arguments", True
    if name is None and code == 2 and text.startswith("can't open file "):
        return "the script is not there", False
    if name is None and code in (126, 127) and text.startswith("cannot start "):
        return "the program cannot be started", False
    return None, False


def _by_itself(ours: Mapping[str, Any], exception: Mapping[str, Any]) -> bool:
    """Whether it was neither killed from outside nor let down by another rank."""
    if ours.get("signal") is not None and ours["kind"] == "signal":
        return ours["signal"] in _CRASHES
    name, frames = exception.get("type") or "", exception.get("frames") or ()
    inner = frames[-1]["file"] if frames else ""
    return not (name.startswith("Dist") or _PEERS.search(inner) or _PEERS.search(exception.get("message") or ""))


def _text(record: Mapping[str, Any]) -> str:
    message = record["message"]
    return str(message if isinstance(message, str) else message.get("message", ""))

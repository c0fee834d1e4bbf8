"""Whether a worker would fail again the same way: as much of it as an agent must know at once (pure).

The whole registry (`ftslurm.failures.causes`) judges better, afterwards, but it costs an agent time and memory that it
should not spend while a round waits to be stopped. What is called hopeless here is POINTLESS to restart there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_PEERS = re.compile(r"/torch/distributed/|gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL\b")


def outlook(record: Mapping[str, Any], life_s: float) -> dict[str, Any]:
    """Return the part of a failure's short form that says what a restart would bring.

    Args:
        record: the error record, completed.
        life_s: how long the worker lived, in seconds.

    Returns:
        "at_start": it failed as it started, by itself. "again": why it would fail again, in words, or None.
        "everywhere": it would on any node, for the script or its arguments are wrong, not what a node lacks.
    """
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

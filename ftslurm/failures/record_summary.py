"""The short form of an error record, for the round's file of its node: what a report needs of a rank that only follows.

When one rank of 16,384 fails, the others leave 16,383 records that say the same. The short form has what differs and a
signature of the rest, so that of the ranks with one signature one record is read, and of the others none (pure).
"""

from __future__ import annotations

import json
import re

from ftslurm.failures.digest import digest
from ftslurm.failures.reason import reason

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MESSAGE_LIMIT = 300
SAME, ALIKE = "=", "~"
"""What a signature begins with: the records say the same but for `VARIES` in their messages if it is ALIKE."""

# Begins with digits or a letter on purpose: a pattern that may begin with a bracket or a boundary takes twice as long.
VARIES = re.compile(
    r"\d+(?:(?:\.\d{1,3}){3}\b\]?(?::\d{1,5}\b)?| (?:ms|milliseconds)\b)|[Rr]ank:? ?\d+\b",
)
"""In what the messages of ranks differ that broke their connections to the same one: addresses, times and ranks."""

COMMON, OWN = ("kind", "type", "module", "where", "like"), ("message", "step", "time_ns")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen|/ftslurm/(worker|boot/)")


def record_summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the short form of a completed error record.

    Returns:
        ``kind``, ``step`` and ``time_ns`` as there; ``type`` and ``module`` of the exception that is judged (see
        `ftslurm.failures.reason`), None without one;
        ``message``: its first line, or the record's; ``where``: "file:line in function" of the innermost frame that is
        no library's, else of the innermost one, or None; ``like``: the signature.
    """
    ours = record["ftslurm"]
    whole = ours.get("exception") or {}
    exception, text = reason(whole), _text(record)
    said = exception.get("message") if exception else text
    return {
        "kind": ours.get("kind"),
        "type": exception.get("type"),
        "module": exception.get("module"),
        "message": str(said or "").strip().split("\n", 1)[0][:MESSAGE_LIMIT],
        "where": _where(exception),
        "step": ours.get("step"),
        "time_ns": ours.get("time_ns"),
        "like": _signature(ours, whole, text),
    }


def in_table(shorts: Mapping[int, Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """Return the short forms of a node's ranks as its file has them: what several have in common stands there once.

    Args:
        shorts: by rank.

    Returns:
        The file's ``errors``: ``kind``, ``type``, ``module``, ``where`` and ``like``; and each worker's ``error``: the
        place of its own in that list, ``of``, with its ``message``, ``time_ns`` and, if known, ``step``.
    """
    table: list[dict[str, Any]] = []
    entries: dict[int, dict[str, Any]] = {}
    for rank, said in shorts.items():
        common = {name: said[name] for name in COMMON}
        if common not in table:
            table.append(common)
        entries[rank] = {"of": table.index(common), **{name: said[name] for name in OWN if said[name] is not None}}
    return table, entries


def is_library(file: str) -> bool:
    """Whether a file is no part of the user's own code."""
    return _LIBRARY.search(file) is not None


def _text(record: Mapping[str, Any]) -> str:
    message = record["message"]
    return str(message if isinstance(message, str) else message.get("message", ""))


def _where(exception: Mapping[str, Any]) -> str | None:
    frames = exception.get("frames") or ()
    if not frames:
        return None
    frame = next((frame for frame in reversed(frames) if not is_library(frame["file"])), frames[-1])
    return f"{frame['file']}:{frame['line']} in {frame['function']}"


def _signature(ours: Mapping[str, Any], whole: Mapping[str, Any], text: str) -> str:
    exception = reason(whole)
    alike = bool(exception) and _by_peers(ours, exception)
    said = VARIES.sub("#", text) if alike else text
    judged = [ours.get("kind"), ours.get("exit_code"), ours.get("signal"), said, _raised(exception, alike=alike)]
    judged.append(None if exception is whole else whole.get("message"))
    judged.append(_proofs(ours))
    return (ALIKE if alike else SAME) + digest(json.dumps(judged, sort_keys=True), 8)


def _by_peers(ours: Mapping[str, Any], exception: Mapping[str, Any]) -> bool:
    """Whether torch.distributed, or our own heartbeat between ranks, raised it, and nothing else is behind it."""
    from ftslurm.failures.evidence import Evidence

    if any(exception.get(name) for name in ("cause", "context", "exceptions", "notes")):
        return False
    name, files = str(exception.get("type")), tuple(str(frame["file"]) for frame in exception.get("frames") or ())
    raised = (name, str(exception.get("module")), str(exception.get("message")), files)
    return name == "PeerLostError" or Evidence(str(ours.get("kind")), *raised).by_distributed


def _raised(exception: Mapping[str, Any], *, alike: bool) -> list[Any]:
    """All of an exception that a cause may be told from, or that is shown of a rank."""
    if not exception:
        return []
    said = str(exception.get("message"))
    return [
        *(exception.get(name) for name in ("type", "module", "notes")),
        VARIES.sub("#", said) if alike else said,
        [[frame["file"], frame["line"], frame["function"]] for frame in exception.get("frames") or ()],
        _raised(exception.get("cause") or {}, alike=False),
        _raised(exception.get("context") or {}, alike=False),
        [_raised(member, alike=False) for member in exception.get("exceptions") or ()],
    ]


def _proofs(ours: Mapping[str, Any]) -> list[object]:
    """What else causes look at: for whose memory the kernel killed, whether it has a limit, if /dev/shm was full."""
    from ftslurm.failures.evidence import Evidence
    from ftslurm.report.host_resources import host_resources_from

    seen = Evidence("", host_resources=host_resources_from(ours))
    return [seen.killed_for, seen.own_limit is not None, seen.shm_full]

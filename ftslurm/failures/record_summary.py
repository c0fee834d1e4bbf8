"""The summary of an error record, for its node's file of the round: all that a report needs of a cascade.

When one rank of 16,384 fails, the others write 16,383 nearly equal records. The summary contains the differences and a
signature of the rest, so that the report reads one record per signature (pure).
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
EQUAL, SIMILAR = "=", "~"
"""First character of a signature: the records are equal, if SIMILAR except for `VARIES` in their messages."""

# Begins with digits or a letter: a pattern that may begin with a bracket or a boundary takes twice as long.
VARIES = re.compile(
    r"\d+(?:(?:\.\d{1,3}){3}\b\]?(?::\d{1,5}\b)?| (?:ms|milliseconds)\b)|[Rr]ank:? ?\d+\b",
)
"""The differences between messages of ranks whose connections to the same rank broke: addresses, times and ranks."""

COMMON, OWN = ("kind", "type", "module", "where", "signature"), ("message", "step", "time_ns")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen|/ftslurm/(worker|boot/)")


def record_summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a completed error record.

    Returns:
        ``kind``, ``step`` and ``time_ns`` as there; ``type`` and ``module`` of the exception that is judged (see
        `ftslurm.failures.reason`), None without one;
        ``message``: its first line, or the record's; ``where``: "file:line in function" of the innermost frame that is
        no library's, else of the innermost one, or None; ``signature``: the signature.
    """
    ours = record["ftslurm"]
    whole = ours.get("exception") or {}
    exception, text = reason(whole), _text(record)
    message = exception.get("message") if exception else text
    return {
        "kind": ours.get("kind"),
        "type": exception.get("type"),
        "module": exception.get("module"),
        "message": str(message or "").strip().split("\n", 1)[0][:MESSAGE_LIMIT],
        "where": _where(exception),
        "step": ours.get("step"),
        "time_ns": ours.get("time_ns"),
        "signature": _signature(ours, whole, text),
    }


def in_table(summaries: Mapping[int, Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """Return the record summaries of a node's ranks as in its file: common parts are stored once.

    Args:
        summaries: by rank.

    Returns:
        The file's ``errors``: ``kind``, ``type``, ``module``, ``where`` and ``signature``; and each worker's ``error``:
        ``of``, its index in that list, with its ``message``, ``time_ns`` and, if known, ``step``.
    """
    table: list[dict[str, Any]] = []
    entries: dict[int, dict[str, Any]] = {}
    for rank, text in summaries.items():
        common = {name: text[name] for name in COMMON}
        if common not in table:
            table.append(common)
        entries[rank] = {"of": table.index(common), **{name: text[name] for name in OWN if text[name] is not None}}
    return table, entries


def is_library(file: str) -> bool:
    """Whether a file is not part of the user's own code."""
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
    similar = bool(exception) and _by_peers(ours, exception)
    text = VARIES.sub("#", text) if similar else text
    judged = [ours.get("kind"), ours.get("exit_code"), ours.get("signal"), text, _raised(exception, similar=similar)]
    judged.append(None if exception is whole else whole.get("message"))
    judged.append(_evidence(ours))
    return (SIMILAR if similar else EQUAL) + digest(json.dumps(judged, sort_keys=True), 8)


def _by_peers(ours: Mapping[str, Any], exception: Mapping[str, Any]) -> bool:
    """Whether torch.distributed or ftslurm's peer heartbeat raised it, with no other exception behind it."""
    from ftslurm.failures.evidence import Evidence

    if any(exception.get(name) for name in ("cause", "context", "exceptions", "notes")):
        return False
    name, files = str(exception.get("type")), tuple(str(frame["file"]) for frame in exception.get("frames") or ())
    raised = (name, str(exception.get("module")), str(exception.get("message")), files)
    return name == "PeerLostError" or Evidence(str(ours.get("kind")), *raised).by_distributed


def _raised(exception: Mapping[str, Any], *, similar: bool) -> list[Any]:
    """All parts of an exception that a cause may depend on, or that are shown of a rank."""
    if not exception:
        return []
    text = str(exception.get("message"))
    return [
        *(exception.get(name) for name in ("type", "module", "notes")),
        VARIES.sub("#", text) if similar else text,
        [[frame["file"], frame["line"], frame["function"]] for frame in exception.get("frames") or ()],
        _raised(exception.get("cause") or {}, similar=False),
        _raised(exception.get("context") or {}, similar=False),
        [_raised(member, similar=False) for member in exception.get("exceptions") or ()],
    ]


def _evidence(ours: Mapping[str, Any]) -> list[object]:
    """Further input of causes: the cgroup of an OOM kill, whether it has a limit, whether /dev/shm was full."""
    from ftslurm.failures.evidence import Evidence
    from ftslurm.report.host_resources import host_resources_from

    evidence = Evidence("", host_resources=host_resources_from(ours))
    return [evidence.killed_for, evidence.own_limit is not None, evidence.shm_full, evidence.cpu_limit_s is not None]

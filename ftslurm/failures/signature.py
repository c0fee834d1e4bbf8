"""The signature for comparing two failures: of the exception, or of the end of stderr (pure).

An exit code is no proof that two failures are the same: a program that logs its exceptions, a shell script, ``uv run``
or ``apptainer`` ends by the same code for every reason. Without anything to compare there is no signature, and
such a failure equals no other one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftslurm.failures.digest import digest
from ftslurm.failures.reason import Recorded, is_bare_exit, links, reason
from ftslurm.failures.record import crash_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OUTPUT_LIMIT = 16 * 1024
"""Bytes read from the end of stderr."""
LINES = 20
"""Lines of stderr that are compared: a traceback of usual length and the output just before it."""

_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{6,}\b|\btmp[a-z0-9_]{8}\b|\d+")
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_PEERS = re.compile(
    r"(\[rank\d+\]: ?)?"
    r"([\w.]*\.Dist\w*(Error|Exception)\b|[\w.]*(Error|Exception): .*(gloo[/:]|TCPStore|c10d::|\bNCCL\b))"
)
"""An exception of torch.distributed: a consequence of another rank's failure, without information about that."""


def signature(record: Mapping[str, Any]) -> str | None:
    """Return a failure's signature from its error record; None if the record contains nothing to compare.

    Args:
        record: the error record, completed.
    """
    ours = record["ftslurm"]
    exception = reason(ours.get("exception") or {})
    if exception.get("type") and not is_bare_exit(exception):
        # The whole chain: programs wrap every failure into one exception type of their own.
        return _digest(*(line for link in links(exception) for line in _lines(link)))
    crashed = crash_place(ours.get("stacks") or "") if ours.get("signal") else ""
    return _digest(crashed) if crashed else None


def of_output(end: str) -> str | None:
    """Return a failure's signature from its output; None if that contains nothing to compare.

    Numbers, addresses and names of temporary files do not count.

    Args:
        end: the last lines of stderr, from the beginning of a line on.
    """
    # Of a line that is rewritten (a progress bar) a terminal shows the last state.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in _COLOUR.sub("", end).split("\n")]
    last = [line for line in lines if line][-LINES:]
    if not last or any(map(_PEERS.match, last)):
        return None
    return _digest(*map(_normal, last))


def _lines(exception: Recorded) -> tuple[str, ...]:
    frames = exception.get("frames") or ()
    place = f"{frames[-1]['file']}:{frames[-1]['line']} in {frames[-1]['function']}" if frames else ""
    text = _normal(str(exception.get("message")))
    return f"{exception.get('type')}: {text}", place, _normal(str(exception.get("hidden") or ""))


def _normal(text: str) -> str:
    return _VARIABLE.sub("#", text)


def _digest(*lines: str) -> str:
    return digest("\n".join(lines), 4)

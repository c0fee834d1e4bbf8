"""The summary of an error record, for its node's file of the round: all that a report needs of a cascade.

When one rank of 16,384 fails, the others write 16,383 nearly equal records. The summary contains the differences and a
signature of the rest, so that the report reads one record per signature (pure).
"""

from __future__ import annotations

import json

from ftslurm.failures.message_line import message_line
from ftslurm.failures.own_code import own_frame
from ftslurm.failures.reason import by_distributed, judged
from ftslurm.failures.signature import digest
from ftslurm.pattern import pattern
from ftslurm.records.error import ErrorRecord, ExceptionRecord, HostResources
from ftslurm.records.round import RecordSummary
from ftslurm.text import cut_middle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE_LIMIT = 300
EQUAL, SIMILAR = "=", "~"
"""First character of a signature: the records are equal, if SIMILAR except for `VARIES` in their messages."""

# Begins with digits or a letter: a pattern that may begin with a bracket or a boundary takes twice as long.
VARIES = pattern(
    r"\d+(?:(?:\.\d{1,3}){3}\b\]?(?::\d{1,5}\b)?| (?:ms|milliseconds)\b)|[Rr]ank:? ?\d+\b",
)
"""The differences between messages of ranks whose connections to the same rank broke: addresses, times and ranks."""


def record_summary(record: ErrorRecord) -> RecordSummary:
    """Return the summary of a completed error record; the exception is the judged one (`ftslurm.failures.reason`)."""
    exception = judged(record)
    message = exception.message if exception is not None else record.message
    return RecordSummary(
        kind=record.kind,
        type=exception.type if exception is not None else None,
        module=exception.module if exception is not None else "",
        message=cut_middle(message_line(message), MESSAGE_LIMIT),
        where=_where(exception),
        step=record.step,
        time_ns=record.time_ns,
        signature=_signature(record, exception),
    )


def _where(exception: ExceptionRecord | None) -> str | None:
    return None if exception is None or not exception.frames else own_frame(exception.frames).place


def _signature(record: ErrorRecord, exception: ExceptionRecord | None) -> str:
    similar = exception is not None and _by_peers(exception)
    text = VARIES.sub("#", record.message) if similar else record.message
    differing = [record.kind, record.exit_code, record.signal, text, _raised(exception, similar=similar)]
    whole = record.exception
    differing.append(None if whole is None or whole is exception else whole.message)
    differing.append(_evidence(record.host_resources or HostResources()))
    return (SIMILAR if similar else EQUAL) + digest(json.dumps(differing), 8)


def _by_peers(exception: ExceptionRecord) -> bool:
    """Whether torch.distributed or ftslurm's peer heartbeat raised it, with no other exception behind it."""
    if exception.cause or exception.context or exception.exceptions or exception.notes:
        return False
    place = (exception.module, exception.message, exception.inner_file)
    return exception.type == "PeerLostError" or by_distributed(exception.type, *place)


def _raised(exception: ExceptionRecord | None, *, similar: bool) -> list[Any]:
    """All parts of an exception that a cause may depend on, or that are shown of a rank."""
    if exception is None:
        return []
    return [
        exception.type,
        exception.module,
        exception.notes,
        VARIES.sub("#", exception.message) if similar else exception.message,
        [frame.place for frame in exception.frames],
        _raised(exception.cause, similar=False),
        _raised(exception.context, similar=False),
        [_raised(member, similar=False) for member in exception.exceptions],
        exception.hidden,
    ]


def _evidence(resources: HostResources) -> list[object]:
    """Further input of causes: the cgroup of an OOM kill, whether it has a limit, whether /dev/shm was full."""
    own = (resources.own_limit, resources.cpu_limit_s, resources.file_limit)
    limits = (limit is not None for limit in own)
    return [resources.killed_for, resources.shm_full, *limits]

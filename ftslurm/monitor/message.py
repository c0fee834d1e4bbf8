"""One line of the node's pipe <-> a message (pure): torch's `FileTimerRequest`, or a client's of ours.

No content of a line raises an exception: an invalid one yields `MalformedMessage` with a reason. The source of
torch's format is torch/distributed/elastic/timer/file_based_local_timer.py (2.13): `{"version", "pid", "scope_id",
"expiration_time", "signal"}`, the expiration in seconds since the epoch, a negative one meaning "release".
"""

from __future__ import annotations

import json
import re
import select

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.heartbeat_page import INF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

LIMIT = select.PIPE_BUF  # bytes of a line without its newline; more is not written at one go
TEXT_LIMIT = 120  # characters of a name or a reason that are shown
VERSION = 1
TIMEOUTS, MISUSE, FINISHED = "timeouts", "misuse", "finished"
KINDS = (TIMEOUTS, MISUSE, FINISHED)
_MAX_PID, _MAX_SIGNAL = 2**22, 64
_STARTS = (b'{"version"', b'{"ftslurm"')
_TORCH_TIMER = re.compile(
    rb'(\{"version": \d+, "pid": \d+, "scope_id": "[^"\\{]*"), "expiration_time": [-+.e\d]+, "signal": -?\d+\}'
)
"""As torch writes it; the group identifies the timer."""


@dataclass(frozen=True)
class Timer:
    """A torch timer; `expiration_s` since the epoch, None to release it; `signal` 0 or less: only report."""

    pid: int
    scope: str
    expiration_s: float | None
    signal: int


@dataclass(frozen=True)
class ClientMessage:
    """A message of ours.

    Attributes:
        kind: "timeouts" (the heartbeat page holds new ones), "misuse" or "finished".
        rank: the local rank.
        pid: of the sender.
        what, name: description of a misuse, and its section.
    """

    kind: str
    rank: int
    pid: int
    what: str = ""
    name: str = ""


@dataclass(frozen=True)
class MalformedMessage:
    """A line that is no message."""

    reason: str


def encode(message: ClientMessage) -> bytes:
    """Return the line of `message`, newline included, at most `LIMIT` bytes."""
    content: dict[str, object] = {"ftslurm": VERSION, "kind": message.kind, "rank": message.rank, "pid": message.pid}
    if message.what:
        content["what"] = message.what[:TEXT_LIMIT]
    if message.name:
        content["name"] = message.name[:TEXT_LIMIT]
    # A newline in front: if another writer died in the middle of a line, this one is not lost with it.
    return b"\n" + json.dumps(content).encode() + b"\n"


def newest(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines that count of those that were read at one moment: of each of torch's timers only the last.

    A rank that renews a timer in a tight loop would keep the pipe full for all ranks of its node: to parse a line takes
    30 us, and to find out here that it is out of date 1 us.
    """
    newer: set[bytes] = set()
    kept = []
    for line in reversed(lines):
        timer = _TORCH_TIMER.fullmatch(line)
        if timer is None:
            kept.append(line)
        elif timer[1] not in newer:
            newer.add(timer[1])
            kept.append(line)
    return kept[::-1]


def parse(line: bytes) -> Timer | ClientMessage | MalformedMessage:
    """Read one line, without its newline."""
    message = _parse(line)
    if isinstance(message, MalformedMessage):
        # Half a line of a writer that died, and a whole one glued to it. Inside a string the quotes would be escaped.
        at = max(line.rfind(start) for start in _STARTS)
        if at > 0:
            rest = _parse(line[at:])
            return message if isinstance(rest, MalformedMessage) else rest
    return message


def _parse(line: bytes) -> Timer | ClientMessage | MalformedMessage:
    if len(line) > LIMIT:
        return MalformedMessage(f"longer than {LIMIT} bytes")
    if not line.startswith(b"{"):
        return MalformedMessage(f"expected a JSON object, found {line[:40]!r}")
    try:
        content = json.loads(line.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
        return _client_message(content) if "ftslurm" in content else _timer(content)
    except (ValueError, RecursionError) as problem:
        return MalformedMessage(f"{str(problem)[:TEXT_LIMIT]}: {line[:40]!r}")


def _timer(content: dict[str, Any]) -> Timer:
    _whole(content, "version", 0, 2**31)
    expiration = content.get("expiration_time")
    if isinstance(expiration, bool) or not isinstance(expiration, (int, float)):
        raise ValueError(f"expiration_time should be a number, found {expiration!r:.40}")
    # Digits without end overflow; 1e999 is read as infinite.
    seconds = float(expiration) if abs(expiration) < 1e300 else INF
    if not abs(seconds) < INF:
        raise ValueError("expiration_time is too large")
    return Timer(
        pid=_whole(content, "pid", 1, _MAX_PID),
        scope=_text(content, "scope_id", LIMIT),
        expiration_s=None if seconds < 0 else seconds,
        signal=max(_whole(content, "signal", -(2**31), _MAX_SIGNAL), 0),
    )


def _client_message(content: dict[str, Any]) -> ClientMessage:
    version = _whole(content, "ftslurm", 0, 2**31)
    kind = _text(content, "kind", TEXT_LIMIT)
    if version != VERSION or kind not in KINDS:
        raise ValueError(f"a message {kind!r:.40} of version {version} is not known")
    texts = [_text(content, name, TEXT_LIMIT) if name in content else "" for name in ("what", "name")]
    return ClientMessage(kind, _whole(content, "rank", 0, 2**20), _whole(content, "pid", 1, _MAX_PID), *texts)


def _whole(content: dict[str, Any], name: str, low: int, high: int) -> int:
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} should be a whole number from {low} to {high}, found {str(value)[:40]!r}")
    return value


def _text(content: dict[str, Any], name: str, limit: int) -> str:
    value = content.get(name)
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError(f"{name} should be a string, found {str(value)[:40]!r}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("duplicate key")
    return content


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def shown(text: str) -> str:
    """Return untrusted `text`, quoted, shortened and printable everywhere."""
    return ascii(text) if len(text) <= TEXT_LIMIT else f"{text[: TEXT_LIMIT // 2]!a}...{text[-TEXT_LIMIT // 3 :]!a}"

"""Exclusion and strikes of a node, and the encoding of their two files (pure).

Users edit these files: their content is always validated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ftslurm.dataclasses import dataclass, replace
from ftslurm.records.codec import BadFile, decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA, VERSION = "ftslurm/excluded", 1
STRIKES_SCHEMA, STRIKES_VERSION = "ftslurm/strikes", 1
KEPT_STRIKES = 16
"""Number of strikes that a file keeps, the newest ones."""
_TEXT = 400
_QUOTED = 60


@dataclass(frozen=True)
class Strike:
    """A failure that began on the node.

    Attributes:
        time_ns: nanoseconds since the epoch.
        run: the run's id.
        reason: the failure, one line.
    """

    time_ns: int
    run: str
    reason: str


@dataclass(frozen=True)
class Exclusion:
    """Exclusion and strikes of one node.

    Attributes:
        reason: why the node is excluded, one line.
        by: its author: a user's name, or "run <id>".
        since_ns: its start, nanoseconds since the epoch.
        until_ns: its end; None: until the node is allowed again. If not after `since_ns`, the node was never excluded
            and has strikes only.
        strikes: oldest first.
    """

    node: str
    reason: str
    by: str
    since_ns: int
    until_ns: int | None
    strikes: tuple[Strike, ...] = ()

    def holds(self, now_ns: int) -> bool:
        """Return whether the node is excluded at that time."""
        return self.until_ns is None or now_ns < self.until_ns

    def with_strikes(self, strikes: Iterable[Strike]) -> Exclusion:
        """Return it with the strikes of the node's strike file added."""
        return replace(self, strikes=merged(self.strikes, strikes))


def never_excluded(node: str, strike: Strike) -> Exclusion:
    """Return the entry of a node that has a strike and was never excluded."""
    return Exclusion(node, "", f"run {strike.run}", strike.time_ns, strike.time_ns)


def merged(*groups: Iterable[Strike]) -> tuple[Strike, ...]:
    """Return the newest `KEPT_STRIKES` strikes of several files, each once, oldest first."""
    every = dict.fromkeys(strike for group in groups for strike in group)
    return tuple(sorted(every, key=lambda strike: strike.time_ns)[-KEPT_STRIKES:])


def encode_exclusion(known: Exclusion) -> bytes:
    """Return the content of a node's exclusion file."""
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "node": known.node,
        "reason": known.reason,
        "by": known.by,
        "since_ns": known.since_ns,
        "until_ns": known.until_ns,
    }
    if known.strikes:
        fields["strikes"] = _strikes_to_json(known.strikes)
    return _json(fields)


def encode_strikes(node: str, strikes: Iterable[Strike]) -> bytes:
    """Return the content of a node's strike file."""
    fields = {"schema": STRIKES_SCHEMA, "version": STRIKES_VERSION, "node": node}
    return _json({**fields, "strikes": _strikes_to_json(strikes)})


def decode_exclusion(data: bytes, path: str) -> Exclusion:
    """Decode an exclusion file; those of earlier versions contain strikes too.

    A manually written file may omit the node (then empty), the reason and the author; without an end it holds until the
    node is allowed.

    Raises:
        BadFile: it is not such a file; the text has the reason.
    """
    fields = decode(data, path, SCHEMA, VERSION)
    since_ns = _time(fields, "since_ns", path)
    until_ns = None if fields.get("until_ns") is None else _time(fields, "until_ns", path)
    never = until_ns is not None and until_ns <= since_ns
    return Exclusion(
        node=_text(fields, "node", path),
        reason=_text(fields, "reason", path) or ("" if never else "no reason given"),
        by=_text(fields, "by", path),
        since_ns=since_ns,
        until_ns=until_ns,
        strikes=_strikes(fields, path),
    )


def decode_strikes(data: bytes, path: str) -> tuple[Strike, ...]:
    """Decode a strike file, oldest strike first.

    Raises:
        BadFile: it is not such a file; the text has the reason.
    """
    return _strikes(decode(data, path, STRIKES_SCHEMA, STRIKES_VERSION), path)


def as_line(text: str) -> str:
    """Return a text normalised for these files: one printable line of limited length."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_TEXT]


def quoted(value: object) -> str:
    """Return an invalid value as quoted in a problem."""
    return ascii(value)[:_QUOTED]


def _json(fields: Mapping[str, Any]) -> bytes:
    # Indented, since users read these files.
    return json.dumps(fields, indent=2).encode("ascii") + b"\n"


def _strikes_to_json(strikes: Iterable[Strike]) -> list[dict[str, Any]]:
    return [{"time_ns": one.time_ns, "run": one.run, "reason": one.reason} for one in strikes]


def _strikes(fields: Mapping[str, Any], path: str) -> tuple[Strike, ...]:
    strikes = fields.get("strikes", [])
    if not isinstance(strikes, list) or not all(isinstance(strike, dict) for strike in strikes):
        raise BadFile(f"{path}: its strikes are {quoted(strikes)}, expected a list of objects")
    return tuple(
        Strike(_time(strike, "time_ns", path), _text(strike, "run", path), _text(strike, "reason", path))
        for strike in strikes[-KEPT_STRIKES:]
    )


def _text(fields: Mapping[str, Any], name: str, path: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise BadFile(f"{path}: its {name} is {quoted(value)}, expected a text")
    return as_line(value)


def _time(fields: Mapping[str, Any], name: str, path: str) -> int:
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise BadFile(f"{path}: its {name} is {quoted(value)}, expected nanoseconds since the epoch")
    return value

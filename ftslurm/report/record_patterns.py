"""Error records that differ from an earlier one only in digits: decoded from the positions of those (pure).

When one rank of 16,384 fails, the others write 16,383 records of a few KiB that differ only in ranks, addresses and
times. Parsing each takes four times as long as reading it. Here the digits of a record are masked; if the result equals
that of an earlier record, both have the same structure, and only the values with digits are decoded. Unusual values
are left to the parser, so that the result always equals the parser's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container

from ftslurm.dataclasses import dataclass
from ftslurm.failures.reason import EXIT
from ftslurm.report.decode import judged_path, rank_error_from
from ftslurm.report.facts import Exc, RankError
from ftslurm.report.host_resources import cuda_from, host_resources_from, sections_from
from ftslurm.report.reading import parse_json

KEPT = 512
SIZE_LIMIT = 64 * 1024
_MASK = bytes(ord("0") if ord("0") <= byte <= ord("9") else byte for byte in range(256))
_DIGIT = re.compile(rb"[0-9]")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)

Path = tuple[str, ...]
_OURS = "ftslurm"
_NUMBERS: dict[Path, str] = {(_OURS, name): name for name in ("time_ns", "local_rank", "exit_code", "step", "pid")}
_TEXTS: dict[Path, str] = {
    ("message", "message"): "message",
    ("message", "extraInfo", "py_callstack"): "traceback",
    (_OURS, "node"): "node",
    (_OURS, "host"): "host",
}
# Not trusted or not needed; the folder gives the rank.
_UNUSED: set[Path] = {("message", "errorCode"), ("message", "extraInfo", "timestamp")}
_UNUSED |= {(_OURS, name) for name in ("rank", "round", "world_size", "recorded_ns", "run_id", "attempt")}
_PARTS: set[Path] = {(_OURS, name) for name in ("host_resources", "shm", "memory_limit", "sections", "cuda")}
_VARYING: set[Path] = {*_NUMBERS, *_TEXTS, *_UNUSED, *_PARTS}
_SKIP, _TEXT, _PART, _CHECKED, _NUMBER = range(5)


class RecordDecoder:
    """Decodes the error records of a run."""

    def __init__(self) -> None:
        self._patterns: dict[bytes, _Pattern | None] = {}

    def error(self, data: bytes, rank: int) -> RankError:
        """Return the result of `rank_error_from` for the same file.

        Raises:
            Malformed: as `rank_error_from` does.
        """
        if len(data) > SIZE_LIMIT:
            return rank_error_from(parse_json(data), rank)
        key = data.translate(_MASK)
        pattern = self._patterns.get(key)
        if pattern is not None:
            found = pattern.error(data, rank)
            if found is not None:
                return found
        value = parse_json(data)
        error = rank_error_from(value, rank)
        if key not in self._patterns and len(self._patterns) < KEPT:
            self._patterns[key] = _pattern(data, error, _judged(value))
        return error


def _judged(record: object) -> Path:
    """Return the path of the judged exception's message; empty for an exit, whose code decides which is judged."""
    ours = record.get(_OURS) if isinstance(record, dict) else None
    exception = ours.get("exception") if isinstance(ours, dict) else None
    keys = judged_path(exception)
    hidden = keys or not isinstance(exception, dict) or exception.get("type") != EXIT
    return (_OURS, "exception", *keys, "message") if hidden else ()


@dataclass(frozen=True)
class _Position:
    start: int
    end: int
    path: Path


@dataclass(frozen=True)
class _Pattern:
    """A record, and the positions of the values that may differ in others."""

    first: RankError
    places: tuple[tuple[int, int, bytes, int, str], ...]  # start, end, the value, kind of value, its name
    fixed: tuple[tuple[slice, bytes], ...]  # the bytes between them
    parts: dict[Path, slice]

    def error(self, data: bytes, rank: int) -> RankError | None:
        """Decode a record of this pattern; None if it has to be parsed."""
        for span, same in self.fixed:
            if data[span] != same:
                return None
        changes: dict[str, object] = {"rank": rank}
        parts = False
        for start, end, same, kind, name in self.places:
            piece = data[start:end]
            if piece == same or kind == _SKIP:
                continue
            if kind == _TEXT:
                # A text without a backslash needs no decoding.
                changes[name] = json.loads(piece) if b"\\" in piece else piece[1:-1].decode()
            elif kind == _PART:
                parts = True
            elif len(piece) > 18 + (piece[0] < 0x39) or (piece[0] == 0x30 and len(piece) > 1):
                return None  # no whole number below 9 * 10**18
            elif kind == _NUMBER:
                changes[name] = int(piece)
        if "exception" in changes:
            changes["exception"] = _with_message(self.first.exception, changes["exception"])
        if parts:
            try:
                self._parts(data, changes)
            except ValueError:
                return None
        return _with_changes(self.first, changes)

    def _parts(self, data: bytes, changes: dict[str, object]) -> None:
        found = {path[1]: json.loads(data[span]) for path, span in self.parts.items()}
        changes["host_resources"] = host_resources_from(found)
        changes["sections"] = sections_from(found.get("sections"))
        changes["cuda"] = cuda_from(found.get("cuda"))


def _with_changes(first: RankError, changes: dict[str, object]) -> RankError:
    # As `dataclasses.replace` would do it, without calling __init__ for 16,384 ranks.
    error = object.__new__(RankError)
    error.__dict__.update(first.__dict__, **changes)
    return error


def _with_message(exception: Exc | None, text: object) -> Exc | None:
    if exception is None:
        return None
    other = object.__new__(Exc)
    other.__dict__.update(exception.__dict__, message=text)
    return other


def _pattern(data: bytes, error: RankError, judged: Path) -> _Pattern | None:
    """Find the positions of the values that may differ; None for an unusual record.

    Args:
        data, error: the record.
        judged: the path of its exception's message.
    """
    try:
        walk = _Walk(data)
    except (RecursionError, ValueError, IndexError):
        return None
    if walk.twice:
        return None
    values = {place.path: place for place in walk.values}
    varying = _VARYING | {judged}
    places = [place for place in walk.values if place.path in varying and _DIGIT.search(data, place.start, place.end)]
    stamped = (_OURS, "time_ns") in values and error.time_ns is not None
    texts = {judged, *_TEXTS}
    if not all(_as_expected(data[place.start : place.end], place.path, texts, stamped=stamped) for place in places):
        return None
    fixed, start = [], 0
    for place in places:
        fixed.append(slice(start, place.start))
        start = place.end
    fixed.append(slice(start, len(data)))
    parts = {path: slice(values[path].start, values[path].end) for path in _PARTS if path in values}
    named = tuple((p.start, p.end, data[p.start : p.end], *_meaning(p.path, data[p.start])) for p in places)
    return _Pattern(error, named, tuple((span, data[span]) for span in fixed), parts)


def _meaning(path: Path, begin: int) -> tuple[int, str]:
    if path in _UNUSED:
        return (_SKIP if begin == 0x22 else _CHECKED), ""
    if path in _PARTS:
        return _PART, ""
    return (_NUMBER, _NUMBERS[path]) if path in _NUMBERS else (_TEXT, _TEXTS.get(path, "exception"))


def _as_expected(piece: bytes, path: Path, texts: Container[Path], *, stamped: bool) -> bool:
    """Whether the value has the type expected at this path, so that its position determines it."""
    if path in _PARTS:
        return piece[:1] in (b"{", b"[")
    if path in texts:
        return piece[:1] == b'"'
    # torch's time is used only where ftslurm's is missing.
    if path in _UNUSED and piece[:1] == b'"':
        return stamped or path[-1] != "timestamp"
    return piece.isdigit() and (stamped or path[-1] != "timestamp")


class _Walk:
    """The values in a JSON object that has been parsed before; lists and `_PARTS` only as a whole."""

    def __init__(self, data: bytes) -> None:
        self.values: list[_Position] = []
        self.twice = False
        self._tokens = [(token.start(), token.end(), token[0]) for token in _TOKEN.finditer(data)]
        self._paths: set[Path] = set()
        self._value(0, (), keep=True)

    def _value(self, i: int, path: Path, *, keep: bool) -> int:
        """Take the value that begins with token ``i``; return the number of the token behind it."""
        start, end, piece = self._tokens[i]
        whole = path in _PARTS or piece == b"["
        if piece in (b"{", b"["):
            i += 1
            while self._tokens[i][2] not in (b"}", b"]"):
                name = None
                if piece == b"{":
                    name = json.loads(self._tokens[i][2])
                    i += 2  # the colon
                i = self._value(i, (*path, name) if name is not None else path, keep=keep and not whole)
                i += self._tokens[i][2] == b","
            end = self._tokens[i][1]
        if keep:
            # Of a duplicate key the last one counts.
            self.twice = self.twice or path in self._paths
            self._paths.add(path)
            if whole or piece != b"{":
                self.values.append(_Position(start, end, path))
        return i + 1


__all__ = ["RecordDecoder"]

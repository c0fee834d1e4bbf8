"""Reduce a document of torch's flight recorder to what is kept of it (pure)."""

from __future__ import annotations

from ftslurm.monitor.flight_server import GROUPS as MEMBERS
from ftslurm.records.codec import BadFile, Mismatch, parse_json, record_of
from ftslurm.records.flight import Collective, GroupConfig, GroupStatus, Trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEWEST = 50
"""Entries that are kept of each group, the newest ones."""
OPEN = 200
"""Entries that are kept of those that are not retired in each group, the oldest ones: the rank waits in the first."""
LISTED = 1024
"""Ranks of a group that are kept where they are all ranks from 0 on."""
GROUPS = 500
"""Groups whose configuration and state are kept."""
TENSORS, DIMENSIONS = 16, 8
TEXT = 200


def read(data: bytes, where: str) -> Trace:
    """Return the reduced recorder's content in a JSON document.

    Args:
        data: as ``POST /handler/fr_trace_json`` answers.
        where: whose it is, for errors.

    Raises:
        BadFile: it is not such a document.
    """
    try:
        return reduce(parse_json(data), where)
    except Mismatch as error:
        raise BadFile(f"{where}: {error}") from None


def reduce(document: object, where: str = "the flight recorder's document") -> Trace:
    """Return what is kept of a decoded document of torch's flight recorder; entries of an unknown form are left out.

    Raises:
        BadFile: it is not such a document.
    """
    if not isinstance(document, dict):
        raise BadFile(f"{where}: expected a JSON object, found {type(document).__name__}")
    # Without any entry since its start, the recorder leaves the list out.
    found = document.get("entries", [])
    if not isinstance(found, list):
        raise BadFile(f"{where}: its entries are no list")
    # Bounded before they are read: a full recorder has 2,000 entries, and a node 64 ranks.
    kept = [entry for entry in map(_entry, _bounded(found)) if entry is not None]
    return Trace(
        tuple(kept),
        _configs(document),
        {name: _status(one) for name, one in _groups(document.get("pg_status"))},
        len(found) - len(kept),
        _text(document.get("version")),
    )


def _entry(value: object) -> Collective | None:
    if not isinstance(value, dict):
        return None
    group = value.get("process_group")
    if not isinstance(group, (list, tuple)) or len(group) != 2:
        return None
    reduced = {
        **value,
        "process_group": [_text(part) for part in group],
        "profiling_name": _text(value.get("profiling_name")),
        "input_sizes": _shapes(value.get("input_sizes")),
        "output_sizes": _shapes(value.get("output_sizes")),
        "input_dtypes": _texts(value.get("input_dtypes")),
        "output_dtypes": _texts(value.get("output_dtypes")),
        # torch writes 0 for what it did not notice (gloo), or null.
        "time_discovered_started_ns": value.get("time_discovered_started_ns") or None,
        "time_discovered_completed_ns": value.get("time_discovered_completed_ns") or None,
    }
    try:
        return record_of(Collective, reduced, "entry", lenient=True)
    except BadFile:
        return None


def _bounded(entries: list[Any]) -> list[Any]:
    """Return the newest entries of each group, and the oldest of those that are not retired, in their order."""
    groups = [_group(entry) for entry in entries]
    left: dict[str, int] = {}
    for group in groups:
        left[group] = left.get(group, 0) + 1
    open_: dict[str, int] = {}
    kept = []
    for entry, group in zip(entries, groups, strict=True):
        left[group] -= 1
        is_open = isinstance(entry, dict) and entry.get("retired") is not True
        open_[group] = open_.get(group, 0) + is_open
        if left[group] < NEWEST or (is_open and open_[group] <= OPEN):
            kept.append(entry)
    return kept


def _group(entry: object) -> str:
    group = entry.get("process_group") if isinstance(entry, dict) else None
    return str(group[0])[:TEXT] if isinstance(group, (list, tuple)) and group else ""


def _groups(value: object) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, dict):
        return []
    return [(_text(name), one) for name, one in list(value.items())[:GROUPS] if isinstance(one, dict)]


def _configs(document: dict[str, Any]) -> dict[str, GroupConfig]:
    found = {name: _config(one) for name, one in _groups(document.get("pg_config"))}
    left = document.get(MEMBERS)
    for name, ranks in list(left.items())[:GROUPS] if isinstance(left, dict) else ():
        known = found.get(_text(name), GroupConfig())
        found[_text(name)] = known if known.ranks else GroupConfig(known.desc, _ranks(ranks))
    return found


def _config(value: dict[str, Any]) -> GroupConfig:
    desc, ranks = _text(value.get("desc")), _ranks(value.get("ranks"))
    # Each of 16,384 ranks would list all of them: 1.5 GB of files.
    return GroupConfig(desc, () if len(ranks) > LISTED and ranks == tuple(range(len(ranks))) else ranks)


def _ranks(value: object) -> tuple[int, ...]:
    """Return a group's ranks, a list or, as torch writes it, its text ``[0, 1]``."""
    parts = value.strip("[] ").split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    numbers = [str(part).strip() for part in parts]
    return tuple(int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) < 10)


def _status(value: dict[str, Any]) -> GroupStatus:
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return GroupStatus(*(_number(value.get(name)) for name in names))


def _number(value: object) -> int | None:
    """Return a sequence number, a number or its text; -1 is torch's word for none."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _shapes(value: object) -> list[list[int]]:
    if not isinstance(value, (list, tuple)):
        return []
    return [list(one)[:DIMENSIONS] for one in value[:TENSORS] if isinstance(one, (list, tuple))]


def _texts(value: object) -> list[str]:
    return [_text(one) for one in value[:TENSORS]] if isinstance(value, (list, tuple)) else []


def _text(value: object) -> str:
    """Return a document's text: printable, and not longer than any that torch writes."""
    return "".join(c if c.isprintable() else "?" for c in str(value or "")[:TEXT])

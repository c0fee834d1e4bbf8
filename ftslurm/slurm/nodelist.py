"""Slurm's hostlist notation: expansion of `n[008-011]` to names, and compression (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain, product, zip_longest

MAX_NAMES = 65_536
"""Maximal number of names of a list; Slurm's own limit for a single range (MAX_RANGE in hostlist.c)."""

_MAX_DIGITS = 18  # Slurm's numbers have 64 bits and wrap silently: refuse larger ones
_QUOTED = 160  # characters of a long list quoted in a message
_SEPARATOR = re.compile(r"[ \t\r\n]*,[ \t\r\n]*|[ \t\r\n]+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_PLAIN = re.compile(r"[A-Za-z0-9._-]*")

_Bracket = tuple[tuple[int, int, int], ...]  # (first, last, minimal digits) of each range


class NodeListError(ValueError):
    """An invalid node list; the text has the list, the position and what was expected there."""


def expand(text: str) -> list[str]:
    """Return the node names of the Slurm node list `text`.

    Order, zero padding and repeated names are those of `scontrol show hostnames`: `n[008-010]` is
    n008, n009, n010 (the range's first number sets the width); of several brackets the last one varies
    fastest, then the *first* one, the last but one slowest. Names are separated by commas with optional white
    space, or by white space alone. An empty text has no nodes.

    Stricter than Slurm, which expands `n[1-3` to a node "n]", drops empty elements and reads `[1-]`
    as 1: all of these are errors here, as are nested brackets (Slurm refuses or misreads them). More
    permissive in one point: text after the last bracket (`n[1-3]-ib`) is accepted, Slurm refuses it.

    Raises:
        NodeListError: `text` is malformed, a name contains a character other than letters, digits, `.`, `_`
            and `-` or starts with `-` or `.`, or it has more than MAX_NAMES names.
    """
    names: list[str] = []
    for start, end in _elements(text):
        literals, brackets = _parse_element(text, start, end)
        count = len(names) + _size(brackets)
        if count > MAX_NAMES:
            raise _error(text, start, f"at most {MAX_NAMES} names in all", f"{count} up to here")
        names.extend(_names(literals, brackets))
    return names


def compress(names: Iterable[str]) -> str:
    """Return the shortest simple node list for `names`: `expand(compress(x)) == list(x)`.

    Order and repetitions are kept. Only a number at a name's end is put in brackets, because Slurm
    refuses text after them; the result is valid for `--exclude` and `--nodelist`.

    Raises:
        NodeListError: a name is not a plain node name, or there are more than MAX_NAMES.
    """
    groups: list[tuple[str, list[tuple[str, str]]]] = []  # (prefix, [(first, last)]) as digit strings
    total = 0
    for name in names:
        total += 1
        _check_name(name)
        prefix, digits = _split(name)
        if not digits:
            groups.append((name, []))
        elif groups and groups[-1][1] and groups[-1][0] == prefix:
            _append(groups[-1][1], digits)
        else:
            groups.append((prefix, [(digits, digits)]))
    if total > MAX_NAMES:
        raise NodeListError(f"cannot write a node list of {total} names: at most {MAX_NAMES} are expected")
    return ",".join(_element_text(prefix, ranges) for prefix, ranges in groups)


def _elements(text: str) -> list[tuple[int, int]]:
    """Split at the separators outside brackets: (start, end) of each element."""
    bounds = []
    at = len(text) - len(text.lstrip(" \t\r\n"))
    stop = len(text.rstrip(" \t\r\n"))
    if at >= stop:
        return []
    start = at
    depth = 0
    while at < stop:
        if text[at] == "[":
            depth += 1
        elif text[at] == "]":
            depth -= 1
        elif depth <= 0 and (separator := _SEPARATOR.match(text, at, stop)):
            bounds.append(_nonempty(text, start, at))
            start = at = separator.end()
            continue
        at += 1
    bounds.append(_nonempty(text, start, stop))
    return bounds


def _nonempty(text: str, start: int, end: int) -> tuple[int, int]:
    if start == end:
        raise _error(text, start, "a node name", None)
    return start, end


def _parse_element(text: str, start: int, end: int) -> tuple[list[str], list[_Bracket]]:
    """Parse `literal ([ranges] literal)*`; always one literal more than brackets."""
    literals: list[str] = []
    brackets: list[_Bracket] = []
    at = start
    while True:
        literal_end = _literal_end(text, at, end)
        if not literals and literal_end > at and text[at] in "-.":
            raise _error(text, at, "a letter, a digit or '_' as a name's first character", text[at])
        literals.append(text[at:literal_end])
        if literal_end == end:
            return literals, brackets
        close = text.find("]", literal_end, end)
        if close < 0:
            opened = f"']' to close the bracket opened at position {literal_end + 1}"
            raise _error(text, end, opened, None)
        brackets.append(_parse_bracket(text, literal_end + 1, close))
        at = close + 1


def _literal_end(text: str, at: int, end: int) -> int:
    match = _PLAIN.match(text, at, end)
    stop = match.end() if match else at
    if stop < end and text[stop] != "[":
        expected = "a '[' before this ']'" if text[stop] == "]" else "a letter, a digit or one of . _ - , ["
        raise _error(text, stop, expected, text[stop])
    return stop


def _parse_bracket(text: str, start: int, close: int) -> _Bracket:
    """Parse the comma-separated ranges of text[start:close]."""
    ranges = []
    at = start
    for part in text[start:close].split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            nested = " (brackets do not nest)" if "[" in part else ""
            raise _error(text, at, f"a number or a range like 1-16 inside the brackets{nested}", part)
        low, high = match.group(1), match.group(2) or match.group(1)
        if max(len(low), len(high)) > _MAX_DIGITS:
            raise _error(text, at, f"a number of at most {_MAX_DIGITS} digits", part)
        if int(high) < int(low):
            raise _error(text, at, "a range that does not run backwards", part)
        ranges.append((int(low), int(high), len(low)))
        at += len(part) + 1
    return tuple(ranges)


def _size(brackets: Sequence[_Bracket]) -> int:
    size = 1
    for bracket in brackets:
        size *= sum(high - low + 1 for low, high, _ in bracket)
    return size


def _names(literals: Sequence[str], brackets: Sequence[_Bracket]) -> list[str]:
    """Expand one element in the order of hostlist.c's _push_range_list.

    That function removes the brackets from the right: the last one becomes the innermost loop, the others
    are nested in the order of removal, so the last but one is the outermost loop.
    """
    *outer, inner = [[""]] if not brackets else [_numbers(bracket) for bracket in brackets]
    names = []
    for combination in product(*reversed(outer), inner):
        numbers = (*combination[-2::-1], combination[-1])
        names.append("".join(chain.from_iterable(zip_longest(literals, numbers, fillvalue=""))))
    return names


def _numbers(bracket: _Bracket) -> list[str]:
    return [f"{number:0{width}d}" for low, high, width in bracket for number in range(low, high + 1)]


def _check_name(name: str) -> None:
    match = _PLAIN.fullmatch(name)
    if match is None or not name or name[0] in "-.":
        raise NodeListError(
            f"cannot write {_quoted(name)} into a node list: expected a node name of letters, "
            "digits, '.', '_' and '-' that starts with none of '.' and '-'"
        )


def _split(name: str) -> tuple[str, str]:
    """Split a name before the number at its end; ("n1a", "") if there is none that fits a range."""
    prefix = name.rstrip("0123456789")
    digits = name[len(prefix) :]
    return (name, "") if len(digits) > _MAX_DIGITS else (prefix, digits)


def _append(ranges: list[tuple[str, str]], digits: str) -> None:
    """Extend the last range by `digits` if expand would yield it next, else begin another range."""
    first, last = ranges[-1]
    if digits == f"{int(last) + 1:0{len(first)}d}":
        ranges[-1] = (first, digits)
    else:
        ranges.append((digits, digits))


def _element_text(prefix: str, ranges: Sequence[tuple[str, str]]) -> str:
    if not ranges:
        return prefix
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return prefix + ranges[0][0]
    return f"{prefix}[{','.join(low if low == high else f'{low}-{high}' for low, high in ranges)}]"


def _error(text: str, at: int, expected: str, found: str | None) -> NodeListError:
    what = "nothing" if found is None else _quoted(found, 40)
    return NodeListError(
        f"bad node list {_quoted(text, around=at)}: expected {expected} at position {at + 1}, found {what}"
    )


def _quoted(text: str, limit: int = _QUOTED, around: int = 0) -> str:
    """Quote `text`, truncated to `limit` characters around the position `around`."""
    start = max(0, min(around - limit // 2, len(text) - limit))
    cut = text[start : start + limit]
    return ("..." if start else "") + ascii(cut) + ("..." if start + limit < len(text) else "")

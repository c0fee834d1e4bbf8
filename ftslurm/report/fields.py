"""Reading single fields of untrusted JSON objects: the right type, or None, or `Malformed`."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

INT_LIMIT = 2**63

Json: TypeAlias = "Mapping[str, Any]"


class Malformed(ValueError):
    """A file's content does not match its format; the text is for the user."""


def integer(o: Json, key: str) -> int | None:
    """Return a whole number below 2**63, or None."""
    value = o.get(key)
    # Not isinstance: JSON's true and false are no numbers.
    return value if type(value) is int and -INT_LIMIT <= value < INT_LIMIT else None


def number(o: Json, key: str) -> float | None:
    """Return a finite number, or None."""
    value = o.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
        return None
    return float(value)


def text(o: Json, key: str) -> str | None:
    """Return text, or None."""
    value = o.get(key)
    return value if isinstance(value, str) else None


def need_integer(o: Json, key: str) -> int:
    """Return a whole number."""
    value = integer(o, key)
    if value is None:
        raise Malformed(f"{key}: expected a number, found {brief(o.get(key))}")
    return value


def need_text(o: Json, key: str) -> str:
    """Return text."""
    value = text(o, key)
    if value is None:
        raise Malformed(f"{key}: expected text, found {brief(o.get(key))}")
    return value


def objects(o: Json, key: str) -> list[Json]:
    """Return the objects in a list, without other elements."""
    value = o.get(key)
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []


def texts(o: Json, key: str) -> tuple[str, ...]:
    """Return the texts in a list, without other elements."""
    value = o.get(key)
    return tuple(x for x in value if isinstance(x, str)) if isinstance(value, list) else ()


def brief(value: object) -> str:
    """Format a value in few characters."""
    shown = repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return shown if len(shown) <= 60 else shown[:57] + "..."

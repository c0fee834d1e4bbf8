"""Typed reading of JSON objects; errors name the file and the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftslurm.sharedfs.publish import BadFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")


class Fields:
    """A JSON object with type-checked access to its fields.

    Args:
        value: the object; any other type raises `BadFile`.
        where: the file (and the position in it), for errors.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise BadFile(f"{where}: expected an object, found {type(value).__name__}")
        self._value = value
        self._where = where

    def _get(self, name: str, kind: type[T], what: str) -> T:
        value = self._value.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadFile(f"{self._where}: field {name!r} should be {what}, found {value!r:.80}")
        return value

    def text(self, name: str) -> str:
        """Return a string field."""
        return self._get(name, str, "a string")

    def number(self, name: str) -> int:
        """Return an integer field."""
        return self._get(name, int, "an integer")

    def seconds(self, name: str) -> float:
        """Return an integer or float field as float."""
        value = self._value.get(name)
        try:
            return float(value) if isinstance(value, float) else float(self.number(name))
        except OverflowError:
            raise BadFile(
                f"{self._where}: field {name!r} should be seconds, found a number of 309 digits or more"
            ) from None

    def maybe_text(self, name: str) -> str | None:
        """Return a string field or None."""
        return None if self._value.get(name) is None else self.text(name)

    def maybe_number(self, name: str) -> int | None:
        """Return an integer field or None."""
        return None if self._value.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Return whether a field is true; a missing field is false."""
        return self._value.get(name) is True

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self._get(name, list, "a list")
        if not all(isinstance(value, str) for value in values):
            raise BadFile(f"{self._where}: field {name!r} should be a list of strings")
        return tuple(values)

    def object(self, name: str, read: Callable[[Fields], T]) -> T:
        """Return an object field, decoded by `read`."""
        return read(Fields(self._value.get(name), f"{self._where}: {name}"))

    def read(self, name: str, read: Callable[[Any, str], T]) -> T:
        """Return a field decoded by `read(value, where)`; its `ValueError` becomes `BadFile`."""
        try:
            return read(self._value.get(name), f"{self._where}: {name}")
        except ValueError as error:
            raise BadFile(str(error)) from None

    def maybe_read(self, name: str, read: Callable[[Any, str], T]) -> T | None:
        """Return a field decoded as by `read`, or None."""
        return None if self._value.get(name) is None else self.read(name, read)

    def maybe_object(self, name: str, read: Callable[[Fields], T]) -> T | None:
        """Return an object field decoded by `read`, or None."""
        return None if self._value.get(name) is None else self.object(name, read)

    def objects(self, name: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        """Return a list of objects, each decoded by `read`."""
        values: list[Any] = self._get(name, list, "a list")
        return tuple(read(Fields(value, f"{self._where}: {name}[{i}]")) for i, value in enumerate(values))

"""JSON files from and to data classes, by the classes' annotations: the only validation of a run directory's files.

A class's annotations are its format. Supported are ``int`` (below 2**63), ``float`` (finite; whole numbers too),
``str``, ``bool``, ``dict[str, X]`` (``dict[str, Any]``: any object), ``tuple[X, ...]``, ``tuple[X, Y]``, ``X | None``,
and other such classes. A class may define ``CHOICES`` (pairs of a field and its allowed values) or
``from_json(value, where)`` (its own reading; raises ValueError). A field with a default may be missing.

Two policies read the same format:

*strict*, for agents, which act on the content: any field of a wrong type makes the file unusable.

*lenient*, for reports, which show what there is: a wrong value of a field that may be None or missing counts as
missing, a wrong list is empty, a wrong element of a list is left out, and only a field without which the object has no
meaning makes it unusable. A bad ``step`` must not cost the traceback beside it.

Unknown keys are ignored: a newer minor version may add some.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias, TypeVar

    T = TypeVar("T")
    Read: TypeAlias = Callable[[Any, bool, int], Any]  # value, lenient, depth

INT_LIMIT = 2**63
MAX_DEPTH = 16
"""Objects inside objects: a chain of exceptions has at most 8 links, anything deeper is hostile."""

_MISSING: Any = object()
_formats: dict[type, list[tuple[str, Read, Any, Any]]] = {}


class BadFile(ValueError):
    """A file's content is not of the expected form; the text names the file and the error."""


class NewerFormat(BadFile):
    """A file was written by a newer ftslurm than this one."""


class Mismatch(ValueError):
    """A value that does not fit its format; the text has the path to it, what was expected and what was found."""


def read_record(cls: type[T], data: bytes, where: str, *, lenient: bool = False) -> T:
    """Return the record in a file's content.

    Args:
        cls: its class, with ``SCHEMA`` and ``VERSION``.
        where: the file's name, for errors.

    Raises:
        BadFile: it is not such a record; one line with `where`, what was expected and what was found.
    """
    kind: Any = cls
    return record_of(cls, decode(data, where, kind.SCHEMA, kind.VERSION), where, lenient=lenient)


def record_in(cls: type[T], value: object, where: str, *, lenient: bool = False) -> T:
    """Return the record in a file's decoded JSON value; raises as `read_record`."""
    kind: Any = cls
    return record_of(cls, check_schema(value, where, kind.SCHEMA, kind.VERSION), where, lenient=lenient)


def record_of(cls: type[T], value: object, where: str, *, lenient: bool = False) -> T:
    """Return a JSON object without a schema as an instance of `cls`; raises as `read_record`."""
    try:
        return _read_object(cls, value, lenient, 0)  # type: ignore[no-any-return]
    except Mismatch as error:
        raise BadFile(f"{where}: {error}") from None


def write_record(record: Any) -> bytes:
    """Return a record as a file's content: one line of ASCII JSON with its schema and version first."""
    value = {"schema": record.SCHEMA, "version": record.VERSION, **to_json(record)}
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def to_json(record: Any) -> dict[str, Any]:
    """Return a record as a JSON object; of a ``SPARSE`` class without values that equal the field's default."""
    cls = type(record)
    values = ((name, getattr(record, name)) for name in cls.__annotations__)
    if hasattr(cls, "SPARSE"):
        return {name: _plain(value) for name, value in values if value != getattr(cls, name, _MISSING)}
    return {name: _plain(value) for name, value in values}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return to_json(value) if hasattr(type(value), "__match_args__") else value


def encode(value: Mapping[str, Any]) -> bytes:
    """Return `value` as one line of ASCII JSON (lone surrogates, as in undecodable file names, escaped)."""
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def decode(data: bytes, where: str, schema: str, version: int) -> dict[str, Any]:
    """Return the JSON object in `data` after checking its schema.

    Args:
        data: the file's content.
        where: the file's name, for the error.
        schema: the expected "schema".
        version: the newest supported "version".

    Raises:
        NewerFormat: the object's version is larger.
        BadFile: it is not such an object.
    """
    try:
        value = parse_json(data)
    except Mismatch as error:
        raise BadFile(f"{where}: {error}") from None
    return check_schema(value, where, schema, version)


def parse_json(data: bytes, hook: Callable[[dict[str, Any]], object] | None = None) -> object:
    """Return the value of a file's JSON text; the one wording for all readers.

    Args:
        data: the text.
        hook: is called with each object of it, and returns what takes its place.

    Raises:
        Mismatch: it is empty, torn or no JSON; the text is the reason.
    """
    if not data.strip(b" \t\r\n\0"):
        raise Mismatch("empty")
    try:
        value: object = json.loads(data.decode("utf-8"), object_hook=hook)
    except UnicodeDecodeError as error:
        raise Mismatch(f"not text (byte {error.start} is not UTF-8)") from None
    except RecursionError:
        raise Mismatch("nested too deeply") from None
    except ValueError as error:
        raise Mismatch(f"torn or not JSON ({error})") from None
    return value


def check_schema(value: object, where: str, schema: str, version: int) -> dict[str, Any]:
    """Return a decoded JSON value if it is an object of that schema, in a supported version; raises as `decode`."""
    if not isinstance(value, dict) or value.get("schema") != schema:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise BadFile(f"{where}: expected a JSON object of {schema}, found {found!r}")
    found_version = value.get("version")
    if not isinstance(found_version, int) or isinstance(found_version, bool):
        raise BadFile(f"{where}: its version is {found_version!r}, expected a number up to {version}")
    if found_version > version:
        raise NewerFormat(
            f"{where}: made by a newer ftslurm (format {found_version}, this one supports up to {version}); "
            "use that ftslurm, or another run id"
        )
    return value


def brief(value: object) -> str:
    """Return a value as quoted in an error, in few characters."""
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def _read_object(cls: Any, value: Any, lenient: bool, depth: int) -> Any:
    if not isinstance(value, dict):
        raise Mismatch(f"expected an object, found {brief(value)}")
    if depth > MAX_DEPTH:
        raise Mismatch(f"expected at most {MAX_DEPTH} objects inside each other")
    format_ = _formats.get(cls)
    if format_ is None:
        format_ = _formats[cls] = _format_of(cls)
    values = []
    for name, read, default, choices in format_:
        given = value.get(name, default)
        if given is not default:
            try:
                given = read(given, lenient, depth + 1)
                if choices is not None and given not in choices:
                    raise Mismatch(f"should be one of {', '.join(choices)}, found {brief(given)}")
            except Mismatch as error:
                if not lenient or default is _MISSING:
                    raise Mismatch(_with_path(name, error)) from None
                given = default
        elif given is _MISSING:
            raise Mismatch(f"field {name!r} is missing")
        values.append(given)
    return cls(*values)


def _with_path(name: str, error: Mismatch) -> str:
    text = str(error)
    return f"field {name!r} {text}" if text.startswith("should be") else f"{name}: {text}"


def _format_of(cls: Any) -> list[tuple[str, Read, Any, Any]]:
    import sys

    names = vars(sys.modules[cls.__module__])
    choices: Any = dict(getattr(cls, "CHOICES", ()))
    fields = []
    for name, annotation in cls.__annotations__.items():
        default = getattr(cls, name, None if annotation.endswith("| None") else _MISSING)
        fields.append((name, _reader(annotation.strip(), names), default, choices.get(name)))
    return fields


def _reader(annotation: str, names: Any) -> Read:
    if annotation.endswith("| None"):
        inner = _reader(annotation[: -len("| None")].strip(), names)
        return lambda value, lenient, depth: None if value is None else inner(value, lenient, depth)
    if annotation.startswith("tuple["):
        parts = _split(annotation[len("tuple[") : -1])
        readers = [_reader(part, names) for part in parts if part != "..."]
        return _list_reader(readers[0]) if parts[-1] == "..." else _tuple_reader(readers)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if annotation.startswith("dict[str, "):
        return _dict_reader(_reader(annotation[len("dict[str, ") : -1], names))
    cls = names[annotation]
    if hasattr(cls, "from_json"):
        return _own_reader(cls.from_json)
    return lambda value, lenient, depth: _read_object(cls, value, lenient, depth)


def _split(text: str) -> list[str]:
    """Return the parts between the commas that are in no bracket."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _list_reader(read: Read) -> Read:
    def read_list(value: Any, lenient: bool, depth: int) -> tuple[Any, ...]:
        if not isinstance(value, list):
            if lenient:
                return ()
            raise Mismatch(f"should be a list, found {brief(value)}")
        found = []
        for index, one in enumerate(value):
            try:
                found.append(read(one, lenient, depth))
            except Mismatch as error:
                if not lenient:
                    raise Mismatch(f"[{index}]: {error}") from None
        return tuple(found)

    return read_list


def _tuple_reader(readers: list[Read]) -> Read:
    def read_tuple(value: Any, lenient: bool, depth: int) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise Mismatch(f"should be a list of {len(readers)} values, found {brief(value)}")
        return tuple(read(one, lenient, depth) for read, one in zip(readers, value, strict=True))

    return read_tuple


def _dict_reader(read: Read) -> Read:
    def read_dict(value: Any, lenient: bool, depth: int) -> dict[str, Any]:
        found = {}
        for key, one in _read_any_object(value, lenient, depth).items():
            try:
                found[key] = read(one, lenient, depth)
            except Mismatch as error:
                if not lenient:
                    raise Mismatch(f"[{key!r:.40}]: {error}") from None
        return found

    return read_dict


def _own_reader(from_json: Callable[[Any, str], Any]) -> Read:
    def read_own(value: Any, lenient: bool, depth: int) -> Any:
        try:
            return from_json(value, "it")
        except ValueError as error:
            raise Mismatch(str(error).removeprefix("it: ")) from None

    return read_own


def _read_int(value: Any, lenient: bool, depth: int) -> int:
    # Not isinstance: JSON's true and false are no numbers.
    if type(value) is not int or not -INT_LIMIT <= value < INT_LIMIT:
        raise Mismatch(f"should be an integer, found {brief(value)}")
    return value


def _read_float(value: Any, lenient: bool, depth: int) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e18:
        raise Mismatch(f"should be a number, found {brief(value)}")
    return float(value)


def _read_text(value: Any, lenient: bool, depth: int) -> str:
    if type(value) is not str:
        raise Mismatch(f"should be a string, found {brief(value)}")
    return value


def _read_flag(value: Any, lenient: bool, depth: int) -> bool:
    if type(value) is not bool:
        raise Mismatch(f"should be true or false, found {brief(value)}")
    return value


def _read_any_object(value: Any, lenient: bool, depth: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Mismatch(f"should be an object, found {brief(value)}")
    return value


_SIMPLE: dict[str, Read] = {
    "int": _read_int,
    "float": _read_float,
    "str": _read_text,
    "bool": _read_flag,
    "dict[str, Any]": _read_any_object,
}

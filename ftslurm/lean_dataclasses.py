"""The implementation of `ftslurm.dataclasses` at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIELDS = "_ftslurm_fields"
_MISSING: Any = object()


class _Field:
    """One field: its default or default factory, and whether `==` and `repr` take it into account."""

    __slots__ = ("compare", "default", "default_factory", "shown")

    def __init__(self, default: Any, default_factory: Any, compare: bool, shown: bool) -> None:
        self.default = default
        self.default_factory = default_factory
        self.compare = compare
        self.shown = shown


_PLAIN = _Field(_MISSING, _MISSING, True, True)
"""Most fields: only a name."""


def field(
    *,
    default: Any = _MISSING,
    default_factory: Any = _MISSING,
    compare: bool = True,
    repr: bool = True,
) -> Any:
    """Return the description of a field, as `dataclasses.field` does."""
    return _Field(default, default_factory, compare, repr)


def dataclass(cls: type | None = None, /, *, frozen: bool = False) -> Any:
    """Make a class a data class, as `dataclasses.dataclass` does; see `ftslurm.dataclasses` for what is left out."""
    return (lambda one: _make(one, frozen)) if cls is None else _make(cls, frozen)


def replace(instance: Any, /, **changes: Any) -> Any:
    """Return a copy with some fields changed, as `dataclasses.replace` does."""
    for name in getattr(type(instance), _FIELDS):
        if name not in changes:
            changes[name] = getattr(instance, name)
    return type(instance)(**changes)


def asdict(instance: Any) -> dict[str, Any]:
    """Return the fields as a dictionary, nested data classes too; unlike `dataclasses.asdict` it copies nothing else
    but lists, tuples and dictionaries.
    """
    return {name: _plain(getattr(instance, name)) for name in getattr(type(instance), _FIELDS)}


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in (str, int, float, bool, type(None)):
        return value
    if hasattr(kind, _FIELDS):
        return asdict(value)
    if isinstance(value, (list, tuple)):
        return kind(_plain(one) for one in value)
    if isinstance(value, dict):
        return kind((_plain(key), _plain(one)) for key, one in value.items())
    return value


def _make(cls: Any, frozen: bool) -> Any:
    fields: dict[str, _Field] = {}
    for name in cls.__annotations__:
        given = cls.__dict__.get(name, _MISSING)
        if given is _MISSING:
            fields[name] = _PLAIN
            continue
        if type(given).__hash__ is None:
            raise ValueError(f"{cls.__name__}.{name}: a default that can change is shared by all; use default_factory")
        one = given if isinstance(given, _Field) else _Field(given, _MISSING, True, True)
        if one is given:
            # Not to be taken for a value: `Class.name` is the default, if there is one.
            delattr(cls, name)
            if one.default is not _MISSING:
                setattr(cls, name, one.default)
        fields[name] = one
    setattr(cls, _FIELDS, fields)
    for name, value in {"__match_args__": tuple(fields), "__dataclass_fields__": _STANDARD_FIELDS}.items():
        setattr(cls, name, value)
    methods: dict[str, Any] = {"__init__": _first_init, "__repr__": _repr, "__eq__": _eq}
    # Equal by value and changeable: no key of a dictionary.
    methods["__hash__"] = _hash if frozen else None
    if frozen:
        methods.update(__setattr__=_refuse_set, __delattr__=_refuse_del)
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    return cls


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Compile the class's `__init__`, set it, and call it."""
    owner = next(cls for cls in type(self).__mro__ if cls.__dict__.get("__init__") is _first_init)
    init = _compile_init(owner)
    type.__setattr__(owner, "__init__", init)
    init(self, *args, **kwargs)


def _compile_init(cls: type) -> Callable[..., None]:
    fields: Mapping[str, _Field] = getattr(cls, _FIELDS)
    frozen = cls.__dict__.get("__setattr__") is _refuse_set
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": _MISSING}
    parameters, lines = [], ["def __init__(self{}):"]
    for name, one in fields.items():
        value = name
        if one.default_factory is not _MISSING:
            names[f"_make_{name}"] = one.default_factory
            parameters.append(f", {name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        elif one.default is not _MISSING:
            names[f"_default_{name}"] = one.default
            parameters.append(f", {name}=_default_{name}")
        else:
            parameters.append(f", {name}")
        lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    lines.append(" return None")
    exec("\n".join(lines).format("".join(parameters)), names)
    init: Any = names["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init  # type: ignore[no-any-return]


def _compared(instance: Any) -> Any:
    """Return the values that `==` and `hash` compare."""
    cls = type(instance)
    getter = cls.__dict__.get("_ftslurm_compared")
    if getter is None:
        names = [name for name, one in getattr(cls, _FIELDS).items() if one.compare]
        getter = attrgetter(*names) if names else lambda one: ()
        type.__setattr__(cls, "_ftslurm_compared", getter)
    return getter(instance)


def _eq(self: Any, other: Any) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash((_compared(self),))


def _repr(self: Any) -> str:
    shown = [name for name, one in getattr(type(self), _FIELDS).items() if one.shown]
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _refuse_set(self: Any, name: str, value: Any) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_del(self: Any, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


class _StandardFields:
    """The attributes by which the standard library recognises a data class, created on first use."""

    def __get__(self, instance: object, owner: Any) -> Any:
        import dataclasses

        fields = []
        for name, one in getattr(owner, _FIELDS).items():
            default = {} if one.default is _MISSING else {"default": one.default}
            factory = {} if one.default_factory is _MISSING else {"default_factory": one.default_factory}
            about: Any = dataclasses.field(**default, **factory, compare=one.compare, repr=one.shown)
            fields.append((name, owner.__annotations__[name], about))
        standard: Any = dataclasses.make_dataclass(owner.__name__, fields)
        return standard.__dataclass_fields__


_STANDARD_FIELDS = _StandardFields()

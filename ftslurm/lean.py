"""Dataclasses without the weight of the `dataclasses` module, for what the agent is made of.

That module imports inspect, ast and tokenize, and compiles six methods for each class: with the agent's classes 1.8 MB
that each node's agent would hold for as long as the job runs. Here all classes share their methods. Known is what the
agent needs: no options but `frozen`, no inherited fields, no `__post_init__`. A type checker takes them for standard
ones, and the standard module's own functions take them too.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import asdict, dataclass, field, replace
    from typing import Any

__all__ = ["asdict", "dataclass", "field", "replace"]


class _Factory:
    """A default that is made anew for each instance."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _StandardFields:
    """What the functions of `dataclasses` ask a class for; made when the first of them does."""

    def __get__(self, instance: object, owner: Any) -> Any:
        from dataclasses import make_dataclass

        standard: Any = make_dataclass(owner.__name__, owner.__match_args__)
        owner.__dataclass_fields__ = standard.__dataclass_fields__
        return owner.__dataclass_fields__


def _dataclass(cls: type | None = None, /, *, frozen: bool = False) -> Any:
    if cls is None:
        return lambda cls: _equip(cls, frozen)
    return _equip(cls, frozen)


def _equip(cls: Any, frozen: bool) -> Any:
    names = tuple(cls.__annotations__)
    cls.__match_args__ = names  # type: ignore[misc]
    cls._names = frozenset(names)
    cls._defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    for name, default in cls._defaults.items():
        if isinstance(default, _Factory):
            delattr(cls, name)
    # Of no name there is no attrgetter.
    cls._values = attrgetter(*names) if names else type
    cls.__dataclass_fields__ = _StandardFields()
    cls.__init__, cls.__repr__, cls.__eq__ = _init, _repr, _eq
    cls.__hash__ = _hash if frozen else None
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refuse, _refuse
    return cls


def _init(self: Any, /, *values: object, **named: object) -> None:
    names = self.__match_args__
    facts = self.__dict__
    facts.update(zip(names, values, strict=False))
    facts.update(named)
    if len(values) != len(names):
        for name, default in self._defaults.items():
            if name not in facts:
                facts[name] = default.make() if isinstance(default, _Factory) else default
    if len(values) > len(names) or facts.keys() != self._names or not named.keys().isdisjoint(names[: len(values)]):
        found = f"found {len(values)} and {', '.join(named) or 'none by name'}"
        raise TypeError(f"{type(self).__name__}: expected {', '.join(names) or 'no values'}, {found}")


def _repr(self: Any) -> str:
    values = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({', '.join(values)})"


def _eq(self: Any, other: Any) -> bool:
    if type(other) is not type(self):
        return NotImplemented  # type: ignore[no-any-return]
    return bool(self._values(self) == self._values(other))


def _hash(self: Any) -> int:
    return hash(self._values(self))


def _refuse(self: object, name: str, *value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{type(self).__name__}.{name} cannot be set: the class is frozen")


def _field(*, default_factory: Callable[[], Any]) -> Any:
    return _Factory(default_factory)


def _replace(instance: Any, /, **changes: Any) -> Any:
    return type(instance)(**(instance.__dict__ | changes))


def _asdict(value: Any) -> Any:
    # Looked up without asking: see _StandardFields.
    if "__dataclass_fields__" in type(value).__dict__:
        return {name: _asdict(getattr(value, name)) for name in value.__match_args__}
    if isinstance(value, (list, tuple)):
        items = map(_asdict, value)
        return list(items) if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _asdict(item) for key, item in value.items()}
    return value


if not TYPE_CHECKING:
    asdict, dataclass, field, replace = _asdict, _dataclass, _field, _replace

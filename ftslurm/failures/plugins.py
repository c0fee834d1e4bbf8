"""Causes added by a site or a user: entry points of the group ``ftslurm.causes``.

An entry point names a `Cause`, a sequence of them, or a function without arguments that returns one of these::

    [project.entry-points."ftslurm.causes"]
    storage = "our_site.causes:ROWS"

They are tried before ftslurm's own rows. A broken one is named in the report and omitted; it never breaks the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ftslurm.entry_points import find
from ftslurm.failures.catalogue import CASCADE, PRIMARY, RESTARTS, ROWS, Cause

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ftslurm.causes"


def load() -> tuple[tuple[Cause, ...], list[tuple[str, str]]]:
    """Return all rows, added ones first, and the broken entry points, each with the error."""
    try:
        found = find(GROUP)
    except Exception as error:
        return ROWS, [(GROUP, f"the entry points cannot be read: {_error_text(error)}")]
    return load_from(found)


def load_from(found: Iterable[EntryPoint]) -> tuple[tuple[Cause, ...], list[tuple[str, str]]]:
    """Return the result of `load` for these entry points."""
    rows: list[Cause] = []
    problems: list[tuple[str, str]] = []
    for point in found:
        try:
            loaded = point.load()
            if not isinstance(loaded, (Cause, list, tuple)):
                loaded = loaded()
            rows += _checked([loaded] if isinstance(loaded, Cause) else loaded, rows)
        except Exception as error:
            problems.append((f"{GROUP}: {point.name}", f"{point.value}: {_error_text(error)}; its rows are omitted"))
    # The same object where nothing was added: `rows is ROWS` means that only ftslurm's rows are used.
    return (*rows, *ROWS) if rows else ROWS, problems


def _checked(added: Sequence[object], before: Sequence[Cause]) -> list[Cause]:
    known = {row.name for row in (*before, *ROWS)}
    checked: list[Cause] = []
    for row in added:
        if not isinstance(row, Cause):
            raise TypeError(f"expected ftslurm.failures.causes.Cause, found {type(row).__name__}")
        for name, value, allowed in (("role", row.role, (PRIMARY, CASCADE)), ("restart", row.restart, RESTARTS)):
            if value not in allowed:
                raise ValueError(f"{row.name}: {name} is {value!r}, expected one of {', '.join(allowed)}")
        if not all(isinstance(text, str) and text for text in (row.name, row.title)) or not callable(row.matches):
            raise TypeError("a row needs a name, a title and a function that matches")
        if row.name in known:
            raise ValueError(f"a row named {row.name!r} exists already")
        known.add(row.name)
        checked.append(row)
    return checked


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"

"""Checks added by a site or a user: entry points of the group ``ftslurm.health``.

An entry point names a `Check`, a sequence of them, or a function without arguments that returns one of these::

    [project.entry-points."ftslurm.health"]
    licences = "our_site.health:CHECK"

A broken one becomes a check that reports the error: its verdict is UNKNOWN, and the others are unaffected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout

from ftslurm.entry_points import find
from ftslurm.health.check import SETS, Check, Context
from ftslurm.health.verdict import Json, Judgement
from ftslurm.records.health import SEVERITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ftslurm.health"
LONGEST_S = 25.0
"""Longest time-out of a check: a round waits for its nodes' health checks, and so for the slowest one."""


class Broken(Exception):
    """An unusable entry point; the text is the reason."""


def load(known: Iterable[Check]) -> list[Check]:
    """Return the added checks; imports their packages.

    Args:
        known: ftslurm's own checks: their names are taken.
    """
    try:
        found = find(GROUP)
    except Exception as error:
        return [_broken("plugins", f"the entry points of {GROUP} cannot be read: {_error_text(error)}")]
    return load_from(found, known)


def load_from(found: Iterable[EntryPoint], known: Iterable[Check]) -> list[Check]:
    """Return the result of `load` for these entry points."""
    checks: list[Check] = []
    names = {check.name for check in known}
    for point in found:
        try:
            # Output of a module's import must not get into a run's result.
            with redirect_stdout(sys.stderr):
                loaded = point.load()
                if not isinstance(loaded, (Check, list, tuple)):
                    loaded = loaded()
            added = _sound([loaded] if isinstance(loaded, Check) else loaded, names)
        except (Exception, SystemExit) as error:  # a module may even exit while it is imported
            name = f"plugin-{point.name}"
            added = [_broken(name, f"the entry point {point.name} = {point.value} is broken: {_error_text(error)}")]
        names |= {check.name for check in added}
        checks += added
    return checks


def _sound(added: Sequence[object], taken: Iterable[str]) -> list[Check]:
    names = set(taken)
    checks: list[Check] = []
    for check in added:
        if not isinstance(check, Check):
            raise TypeError(f"expected ftslurm.health.check.Check, found {type(check).__name__}")
        if not (isinstance(check.name, str) and check.name and check.name.replace("-", "").isalnum()):
            raise ValueError(f"the name {check.name!r} is not of letters, digits and hyphens")
        if check.name in names:
            raise ValueError(f"a check named {check.name!r} exists already")
        if not check.sets or not set(check.sets) <= set(SETS):
            raise ValueError(f"{check.name}: its sets are {sorted(check.sets)}, expected of {', '.join(SETS)}")
        if not (isinstance(check.limit_s, (int, float)) and 0 < check.limit_s <= LONGEST_S):
            most = f"expected more than 0 s and at most {LONGEST_S:g} s"
            raise ValueError(f"{check.name}: its limit is {check.limit_s!r}, {most}")
        if check.late not in SEVERITY:
            raise ValueError(f"{check.name}: late is {check.late!r}, expected one of {', '.join(SEVERITY)}")
        if not (callable(check.fetch) and callable(check.judge)):
            raise TypeError(f"{check.name}: fetch and judge must be functions")
        names.add(check.name)
        checks.append(check)
    return checks


def _broken(name: str, problem: str) -> Check:
    def fetch(context: Context) -> Json:
        raise Broken(problem)

    def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
        return Judgement(problem)

    return Check(name, "an added check that is broken", frozenset(SETS), 1.0, fetch, judge)


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

"""The arguments of `ftslurm health`: the selected checks, and their context of node and job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ftslurm.terminal import UsageError

if TYPE_CHECKING:
    import argparse

    from ftslurm.health.check import Check, CheckedPath, Context

HEALTHY, UNHEALTHY, USAGE = 0, 1, 2


def choose(options: argparse.Namespace, default: str | None = None) -> list[Check]:
    """Return the selected checks.

    Args:
        options: the arguments.
        default: the set without arguments; None: all checks.

    Raises:
        UsageError: there is no such check.
    """
    from ftslurm.health.catalog import all_checks
    from ftslurm.health.check import QUICK

    known = all_checks()
    skip = [name for text in options.skip for name in text.split(",") if name]
    unknown = [name for name in (*options.names, *skip) if not any(_means(name, check) for check in known)]
    if unknown:
        raise UsageError(f"{unknown[0]}: there is no such check; see ftslurm health --list")
    skip += _listed(os.environ, "FTSLURM_HEALTH_SKIP")
    known = [check for check in known if not any(_means(name, check) for name in skip)]
    if options.names:
        return [check for check in known if any(_means(name, check) for name in options.names)]
    set_ = QUICK if options.quick else None if options.all else default
    return [check for check in known if set_ is None or set_ in check.sets]


def _means(name: str, check: Check) -> bool:
    """A check by its name, or all of a group by the part before the hyphen."""
    return name in (check.name, check.name.partition("-")[0])


def context_of(
    options: argparse.Namespace, node: str, environ: Mapping[str, str], places: Sequence[CheckedPath], busy: bool
) -> Context:
    """Return the context of the checks.

    Args:
        options: the arguments.
        node: this node's name.
        environ: the environment.
        places: paths that are always checked.
        busy: ranks may be running.
    """
    from ftslurm.health.check import CheckedPath, Context

    named = [*options.path, *_listed(environ, "FTSLURM_HEALTH_PATHS")]
    own = environ.get("FTSLURM_HEALTH_COMMAND")
    return Context(
        node,
        dict(environ),
        paths=tuple(dict.fromkeys((*places, *(CheckedPath(os.path.abspath(path), "--path") for path in named)))),
        commands=tuple(dict.fromkeys((*options.command, *([own] if own else [])))),
        busy=busy,
        own_pid=os.getpid(),
    )


def _listed(environ: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in environ.get(name, "").split(",") if part.strip()]

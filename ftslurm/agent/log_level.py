"""How much ftslurm says, of the options and the environment: `--quiet`, `--verbose`, a variable, torchrun's (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftslurm.terminal import DEBUG, ERROR, INFO, LEVELS, WARNING, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE, TORCHRUN = "FTSLURM_LOG_LEVEL", "LOGLEVEL"
"""The variables, by priority; torchrun reads the second one."""
_ALIASES = {"critical": ERROR, "fatal": ERROR, "warn": WARNING, "notset": DEBUG}


def verbosity(given: Collection[str], values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields `quiet`, `verbose` and `level` of the output's options.

    Args:
        given: names of the options on the command line.
        values: of all options.

    Raises:
        UsageError: both are given, or `FTSLURM_LOG_LEVEL` is no level; one line. `LOGLEVEL` is other programs', too:
            what is no level has no effect there.
    """
    # What is typed wins over a site's default of the other one.
    typed = [name for name in ("quiet", "verbose") if name in given]
    quiet, verbose = (name in typed if typed else values[name] for name in ("quiet", "verbose"))
    if quiet and verbose:
        raise UsageError("--quiet and --verbose: only one of them makes sense")
    level = ERROR if quiet else DEBUG if verbose else _level_in(environment)
    return {"quiet": quiet, "verbose": verbose, "level": level}


def _level_in(environment: Mapping[str, str]) -> int:
    text = environment.get(VARIABLE)
    level = parse_level(text or environment.get(TORCHRUN, ""))
    if level is None and text:
        raise UsageError(f"{VARIABLE} (in the environment): expected one of {', '.join(LEVELS)}, found {text!r}")
    return INFO if level is None else level


def parse_level(text: str) -> int | None:
    """Return the level with a name, or number, of Python's `logging`; None: it is none."""
    name = text.strip().lower()
    if name.isascii() and name.isdecimal() and len(name) < 10:
        # As in logging, a line is shown if its level is at least this one; errors always are.
        return next((level for level in sorted(LEVELS.values()) if level >= int(name)), ERROR)
    return LEVELS.get(name, _ALIASES.get(name))

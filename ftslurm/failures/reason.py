"""The judged exception of a recorded chain: the program's reason, not its own exit (pure).

Hydra, and all code that logs an exception and then calls ``sys.exit(1)``, end by a SystemExit that contains only a
number. The recorder stores the whole chain; agent and report both select the judged exception here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

Recorded: TypeAlias = "Mapping[str, Any]"
"""An exception in the error record, see `ftslurm.failures.exceptions.describe`."""

EXIT = "SystemExit"
PARSERS = re.compile(r"/(argparse|optparse)\.py$|/(click|typer|absl)/")
"""Modules that end a program by exit code 2 because they reject its command line."""
_CODE = re.compile(r"-?\d*")


def reason_path(exception: Recorded) -> tuple[str, ...]:
    """Return the path of keys from a recorded exception to the judged one; empty: it is judged itself.

    The cause or context of a SystemExit is judged as if it had not been caught. A context counts only if the function
    that caught it called the exit itself: otherwise the program may have continued without it
    (``except ImportError: train_without_it()``). A rejected command line is a reason by itself.
    """
    keys: list[str] = []
    while exception.get("type") == EXIT and not refuses_arguments(exception):
        key = "cause" if exception.get("cause") else "context"
        inner = exception.get(key)
        if not inner or (key == "context" and not _exits_in_handler(exception, inner)):
            break
        keys.append(key)
        exception = inner
    return tuple(keys)


def reason(exception: Recorded) -> Recorded:
    """Return the exception that is judged, see `reason_path`."""
    for key in reason_path(exception):
        exception = exception[key]
    return exception


def links(exception: Recorded) -> Iterator[Recorded]:
    """Yield the exception with all its causes and contexts, and the members of groups."""
    yield exception
    for inner in (exception.get("cause"), exception.get("context"), *(exception.get("exceptions") or ())):
        if inner:
            yield from links(inner)


def refuses_arguments(exception: Recorded) -> bool:
    """Return whether it is the exit of a command line parser that rejects its arguments."""
    frames: Sequence[Any] = exception.get("frames") or ()
    by_parser = bool(frames) and PARSERS.search(frames[-1]["file"]) is not None
    return by_parser and exception.get("type") == EXIT and exception.get("message") == "2"


def is_bare_exit(exception: Recorded) -> bool:
    """Return whether it is a SystemExit with no more than a number."""
    return exception.get("type") == EXIT and is_code(str(exception.get("message") or ""))


def is_code(message: str) -> bool:
    """Return whether the message of a SystemExit is a number or empty."""
    return _CODE.fullmatch(message) is not None


def _exits_in_handler(exit_: Recorded, handled: Recorded) -> bool:
    caught, exits = handled.get("frames"), exit_.get("frames")
    if not caught or not exits:
        return False
    # The traceback of a caught exception begins with the function that caught it.
    return all(caught[0][name] == exits[-1][name] for name in ("file", "function"))

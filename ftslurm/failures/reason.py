"""Which exception of a recorded chain is judged: what the program ended for, not how it ended itself (pure).

Hydra, and all code that logs an exception and then calls ``sys.exit(1)``, end by a SystemExit that says no more than a
number. The recorder writes the whole chain down; agent and report both ask here which part of it counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

Recorded: TypeAlias = "Mapping[str, Any]"
"""An exception as the error record has it, see `ftslurm.failures.exceptions.describe`."""

EXIT = "SystemExit"
PARSERS = re.compile(r"/(argparse|optparse)\.py$|/(click|typer|absl)/")
"""Files that end a program by exit code 2 because they refuse its command line."""
_CODE = re.compile(r"-?\d*")


def reason_path(exception: Recorded) -> tuple[str, ...]:
    """Return the keys that lead from a recorded exception to the one that is judged; empty: it is judged itself.

    What a SystemExit was raised from, or while handling, is judged as if nobody had caught it. An exception that was
    only handled counts if the function that caught it called the exit itself: further down the program may have gone
    its own way (``except ImportError: train_without_it()``). A refused command line is a reason by itself.
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
    """Give the exception and all that it came from or was raised while handling, the members of groups included."""
    yield exception
    for inner in (exception.get("cause"), exception.get("context"), *(exception.get("exceptions") or ())):
        if inner:
            yield from links(inner)


def refuses_arguments(exception: Recorded) -> bool:
    """Tell whether it is the exit of a parser of command lines that refuses them."""
    frames: Sequence[Any] = exception.get("frames") or ()
    by_parser = bool(frames) and PARSERS.search(frames[-1]["file"]) is not None
    return by_parser and exception.get("type") == EXIT and exception.get("message") == "2"


def is_bare_exit(exception: Recorded) -> bool:
    """Tell whether it is a SystemExit that says no more than a number."""
    return exception.get("type") == EXIT and is_code(str(exception.get("message") or ""))


def is_code(message: str) -> bool:
    """Tell whether the message of a SystemExit is no more than a number, or nothing."""
    return _CODE.fullmatch(message) is not None


def _exits_in_handler(exit_: Recorded, handled: Recorded) -> bool:
    caught, exits = handled.get("frames"), exit_.get("frames")
    if not caught or not exits:
        return False
    # The traceback of a caught exception begins with the function that caught it.
    return all(caught[0][name] == exits[-1][name] for name in ("file", "function"))

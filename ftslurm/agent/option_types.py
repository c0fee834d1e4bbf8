"""Parsers of option values: each takes the name that the option was given by, and the text."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from ftslurm.agent.environment import parse_streams
from ftslurm.monitor.timeouts import parse_seconds, parse_section


class UsageError(ValueError):
    """A wrong option, argument or environment variable; one line with the expected and the found value."""


def text_of(option: str, text: str) -> str:
    """Read any text but an empty one."""
    if not text:
        raise UsageError(f"{option}: expected a value, found an empty one")
    return text


def is_number(text: str) -> bool:
    """Return whether the text is a number of at most nine digits."""
    # isdigit alone is true for a superscript two, which int() refuses; int() also refuses thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= 9


def nodes(option: str, text: str) -> tuple[int, int]:
    """Read a number of nodes, or a smallest and a largest one."""
    low, colon, high = text.partition(":")
    if not is_number(low) or (colon and not is_number(high)):
        raise UsageError(f"{option} {text}: expected a number of nodes, or MIN:MAX")
    smallest, largest = int(low), int(high if colon else low)
    if not 1 <= smallest <= largest:
        raise UsageError(f"{option} {text}: expected 1 <= MIN <= MAX")
    return smallest, largest


def processes(option: str, text: str) -> str:
    """Read a number of workers, or the kind of device to count."""
    if text in ("gpu", "cpu", "auto"):
        return text
    if not is_number(text) or int(text) < 1:
        raise UsageError(f"{option} {text}: expected a number of workers from 1 on, or gpu, cpu, auto")
    return text


def count(least: int) -> Callable[[str, str], int]:
    """Return a reader of whole numbers from `least` on."""

    def read(option: str, text: str) -> int:
        if not is_number(text) or int(text) < least:
            raise UsageError(f"{option} {text}: expected a whole number from {least} on")
        return int(text)

    return read


def seconds(least: float) -> Callable[[str, str], float]:
    """Return a reader of seconds from `least` on."""

    def read(option: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value < 1e9:
            raise UsageError(f"{option} {text}: expected seconds, at least {least:g}")
        return value

    return read


def switch(option: str, text: str) -> bool:
    """Read 0 or 1."""
    if text not in ("0", "1"):
        raise UsageError(f"{option} {text}: expected 0 or 1")
    return text == "1"


def one_of(choices: Sequence[str]) -> Callable[[str, str], str]:
    """Return a reader of one of `choices`."""

    def read(option: str, text: str) -> str:
        if text not in choices:
            raise UsageError(f"{option} {text}: expected one of {', '.join(choices)}")
        return text

    return read


def streams(option: str, text: str) -> int | dict[int, int]:
    """Read a choice of streams, see `parse_streams`."""
    try:
        return parse_streams(option, text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def allowed(option: str, text: str) -> float:
    """Read a time-out in seconds; None: no limit."""
    try:
        return parse_seconds(option, text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def sections(option: str, text: str) -> dict[str, float]:
    """Read the time-outs of sections."""
    try:
        return dict(parse_section(option, part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(str(error)) from None


def modules(option: str, text: str) -> tuple[str, ...]:
    """Read names of modules."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise UsageError(f"{option} {text}: expected names of modules, such as torch,transformers")
    return names


def signal_number(option: str, text: str) -> int:
    """Read the name of a signal."""
    number = getattr(signal, text if text.startswith("SIG") else f"SIG{text}", None)
    if not isinstance(number, signal.Signals):
        raise UsageError(f"{option} {text}: expected the name of a signal, such as SIGKILL")
    return int(number)


def names(option: str, text: str) -> tuple[str, ...]:
    """Read comma-separated names."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(name and name.isprintable() and not name.isspace() for name in found):
        raise UsageError(f"{option} {text}: expected comma-separated names")
    return found

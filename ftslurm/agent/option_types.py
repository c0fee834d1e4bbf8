"""Parsers of option values: each takes the name that the option was given by, and the text."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from ftslurm.agent.environment import parse_streams
from ftslurm.agent.option_groups import OFF, StopWhen
from ftslurm.kernel import FORWARDED
from ftslurm.monitor.timeouts import parse_seconds, parse_section
from ftslurm.terminal import UsageError
from ftslurm.text import duration_s


def text_of(option: str, text: str) -> str:
    """Read any text but a blank one."""
    if not text.strip():
        raise UsageError(f"{option}: expected a value, found {'a blank' if text else 'an empty'} one")
    return text


def command(option: str, text: str) -> tuple[str, ...]:
    """Read a command and its arguments, split as a shell does; no shell runs it."""
    import shlex

    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option} {text}: expected a command as a shell splits it: {str(error).lower()}") from None
    if not words or not words[0] or "\0" in text:
        raise UsageError(f"{option}: expected a command, found {text!r}")
    return words


def interface(option: str, text: str) -> str:
    """Read the name of a network interface, or a network."""
    if "/" in text:
        import ipaddress

        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise UsageError(f"{option} {text}: expected a network such as 10.1.0.0/16") from None
    elif not text.isprintable() or not 0 < len(text) < 16 or " " in text:
        raise UsageError(f"{option} {text}: expected the name of a network interface, or a network such as 10.1.0.0/16")
    return text


def ports(option: str, text: str) -> tuple[int, int]:
    """Read a range of ports."""
    low, dash, high = text.partition("-")
    if not dash or not is_number(low) or not is_number(high) or not 1024 <= int(low) <= int(high) <= 65535:
        raise UsageError(f"{option} {text}: expected LOW-HIGH, ports from 1024 to 65535")
    return int(low), int(high)


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


def notice(option: str, text: str) -> StopWhen:
    """Read a notice: ``drain``, a path (one word with a slash) that is no program, or else a shell command."""
    if not text.strip():
        raise UsageError(f"{option}: expected a file, a command or drain, found a blank value")
    if text == "drain":
        return StopWhen(drain=True)
    is_path = "/" in text and not any(letter.isspace() for letter in text)
    if is_path and (os.path.isdir(text) or not os.access(text, os.X_OK)):
        return StopWhen(file=os.path.abspath(text))
    return StopWhen(command=text)


def processes(option: str, text: str) -> str:
    """Read a number of workers, or the kind of device to count."""
    if text in ("gpu", "cpu", "xpu", "auto"):
        return text
    if not is_number(text) or int(text) < 1:
        raise UsageError(f"{option} {text}: expected a number of workers from 1 on, or gpu, cpu, xpu, auto")
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
        value = duration_s(text)
        if value is None or not least <= value < 1e9:
            raise UsageError(f"{option} {text}: expected seconds, at least {least:g}, or a time such as 90m, 1d")
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


def warm_imports(option: str, text: str) -> tuple[str, ...]:
    """Read names of modules, "auto" or "off"."""
    if text == OFF:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise UsageError(f"{option} {text}: expected auto, off or names of modules, such as torch,transformers")
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


def local_ranks(option: str, text: str) -> tuple[int, ...]:
    """Read comma-separated local ranks."""
    parts = [part.strip() for part in text.split(",")]
    if not all(map(is_number, parts)):
        raise UsageError(f"{option} {text}: expected local ranks, such as 0,1")
    return tuple(sorted({int(part) for part in parts}))


def filters(option: str, text: str) -> tuple[str, ...]:
    """Read comma-separated texts to search for; two commas stand for one of the text."""
    # As torchrun; no text has a NUL.
    parts = tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))
    if not all(parts):
        raise UsageError(f"{option} {text}: expected comma-separated texts (,, stands for a comma)")
    return parts


def handled_signals(option: str, text: str) -> str:
    """Read the names of signals that ftslurm stops the job at, or passes on."""
    wanted = [name.strip() for name in text.split(",")]
    known = [number.name for number in FORWARDED]
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"{option} {unknown[0]}: expected some of {','.join(known)}: no other signal is handled")
    return ",".join(wanted)

"""Formatting of sizes, durations and counts (pure)."""

from __future__ import annotations

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float) -> str:
    """Return a number of bytes: "512 MiB", "3.2 TiB"."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.0f} {_UNITS[power]}" if power == 0 or count >= 100 else f"{count:.3g} {_UNITS[power]}"


def span(seconds: float) -> str:
    """Return a duration: "0.012 s", "42 s", "3 min", "5 h", "12 days"."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def count(number: int, what: str) -> str:
    """Return "1 process", "2 processes"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"


def one_line(text: str, limit: int = 200) -> str:
    r"""Return foreign text as one line that is safe for a terminal: "\x1b" for an escape."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: 2 * limit].strip())
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"

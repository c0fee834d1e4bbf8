"""Text for people: counts, durations, sizes, ranges, and foreign text that is safe for a terminal (pure).

One format in all commands and messages:

========= ==================================================================================
durations ``3.2 ms``, ``470 ms``, ``1.25 s``, ``34 s``, ``3 min 20 s``, ``2 h 5 min``, ``4 d 3 h``
sizes     ``0 bytes``, ``64 KiB``, ``1.5 GiB``
counts    ``1 node``, ``2 nodes``
ranges    ``0-3, 7``; of nodes Slurm's own syntax, see `ftslurm.slurm.nodelist`
========= ==================================================================================

Agents import this module: it compiles its patterns on first use only.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_UNITS_S = {"w": 604_800, "d": 86_400, "h": 3600, "min": 60, "m": 60, "s": 1}
_DURATION_PART = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(min|[wdhms])"
_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
# Escape sequences first, so that their printable remainder is removed too.
_ESCAPES = (
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    # OSC, DCS and the like, up to their terminator
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\\\|\x9c)?"
    "|\x9b[0-?]*[ -/]*[@-~]"
    "|\x1b[ -/]*[0-~]"
)
# C0 and C1 controls, what reorders or hides text, line separators, and halves of surrogate pairs.
_UNSAFE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


def plural(number: int, noun: str) -> str:
    """Count things: ``1 node``, ``2 nodes``, ``3 processes``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def duration(seconds: float | None) -> str:
    """Format a duration in at most two units; ``?`` if it is unknown, and a negative one as none."""
    if seconds is None:
        return "?"
    if seconds < 0.9995:
        milliseconds = seconds * 1000
        if milliseconds < 0.005:
            return "0 s"
        return f"{milliseconds:.2g} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size_s, unit, smaller_s, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size_s:
            rest = whole % size_s // smaller_s
            return f"{whole // size_s} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def duration_s(text: str) -> float | None:
    """Return the seconds of a duration as options take it everywhere: `90`, `1.5h`, `1d12h`; None if it is none.

    Units are w, d, h, m or min, and s; a plain number is seconds.
    """
    if not text.isascii() or "_" in text:
        return None
    if re.fullmatch(f"(?:{_DURATION_PART})+", text):
        return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_DURATION_PART, text))
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if abs(seconds) < float("inf") else None


def size(number: float) -> str:
    """Format a number of bytes with three digits, in binary units."""
    power = 0
    while abs(number) >= 1024 and power < len(_SIZES) - 1:
        number, power = number / 1024, power + 1
    if power == 0:
        return plural(round(number), "byte")
    return f"{number:.0f} {_SIZES[power]}" if number >= 100 else f"{number:.3g} {_SIZES[power]}"


def ranges(numbers: Iterable[int]) -> str:
    """Compress numbers, such as ranks: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def names(values: Collection[str], most: int = 4) -> str:
    """List a few names, made safe, and the number of further ones."""
    shown = ", ".join(safe(value) for value in list(values)[:most])
    rest = len(values) - most
    return f"{shown} and {rest} more" if rest > 0 else shown


def short_host(name: str, width: int = 40) -> str:
    """Return a host's name without its domain if it is longer than ``width`` characters, and then clipped."""
    return name if len(name) <= width else clip(name.partition(".")[0], width)


def clip(text: str, width: int) -> str:
    """Cut to ``width`` characters; three dots mark the cut."""
    return text if len(text) <= width else text[: max(0, width - 3)].rstrip() + "..."


WORD, NUMBER = 16, 48
"""Longest word at a cut that is left out whole, in characters; and one that is cut within a number."""


def cut_middle(text: str, limit: int) -> str:
    """Cut to about ``limit`` characters in the middle: messages begin with a subject and often end with the reason."""
    if len(text) <= limit:
        return text
    if limit >= 1000:
        head = limit // 4
        return f"{text[:head]} ... {len(text) - limit} characters left out ... {text[head - limit :]}"
    head = (limit - 5) // 2
    if head < 4:
        return text[:limit]
    # Not within a word, if one ends near by.
    first = text[:head]
    begin, _, end = first.rpartition(" ")
    in_number = text[head - 1 : head + 1].isdigit()
    longest = min(NUMBER, head - 8) if in_number else min(WORD, head // 2)
    first = begin if 0 < len(end) < longest else first
    last = text[len(text) - (limit - 5 - len(first)) :]
    begin, _, end = last.partition(" ")
    last = end if end and len(begin) < min(WORD, head // 2) else last
    negation = re.search(r"\b(?:not|no|never|cannot|without|\w{1,6}n't)\s+$", text[: len(text) - len(last)])
    if negation is not None and negation.start() > len(first):
        # Without it the end would say the opposite; not at the price of a name.
        shorter = first[: len(first) - len(negation[0])].rpartition(" ")[0]
        if shorter and re.search(r"[._/\d]", first[len(shorter) :]) is None:
            first, last = shorter, f"{negation[0]}{last}"
        else:
            # Rather without what it denies.
            last = last.partition(" ")[2] or last
    return f"{first.rstrip()} ... {last.lstrip()}"


def safe(text: str) -> str:
    """Return one line of foreign text without effects on a terminal.

    Escape sequences are removed; of a line rewritten with carriage returns (a progress bar) the last
    version remains, as on a terminal; other control characters become ``\\xNN`` or ``\\uNNNN``.
    """
    if text.isascii() and text.isprintable():
        return text
    text = re.sub(_ESCAPES, "", text).rstrip("\r\n")
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    return re.sub(_UNSAFE, _visible, text.replace("\n", " ").expandtabs(8))


def safe_lines(text: str) -> list[str]:
    """Split foreign text into safe lines."""
    return [safe(line) for line in text.split("\n")]


def first_line(text: str) -> str:
    """Return the first line that is not blank, made safe."""
    for line in text[: 64 * 1024].split("\n"):
        if line.strip():
            # Of a line without end neither the subject nor the reason is lost.
            return safe(line if len(line) <= 8192 else cut_middle(line, 999)).strip()
    return ""


def one_line(text: str, limit: int = 200) -> str:
    """Return foreign text as one safe line, cut to ``limit`` characters."""
    return clip(safe(text.strip()), limit)


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

"""The lines of a traceback that name its exception, or lead from one exception to the next (pure)."""

from __future__ import annotations

import re

from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord

HEADER = "Traceback (most recent call last)"
LINE_LIMIT = 4000
CAUSE = "The above exception was the direct cause of the following exception"
CONTEXT = "During handling of the above exception, another exception occurred"
_TYPE = pattern(r"([A-Za-z_][\w.]{0,200})(?:: ?(.*))?", re.DOTALL)
ENDINGS = pattern(
    r"(Error|Exception|Exit|Interrupt|Warning|Failed|Failure|Fault|Timeout|Expired|Refused|Stop|Group|NotFound|_Error)$"
)
# As Python shows an exception's arguments: an error number, its text.
_SHOWN = pattern(
    r"((?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception))\((?:(\d{1,4}), )?([\"'])(.{1,1000}?)\3,?\)"
)
_LEVELS = frozenset(("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL", "NOTE", "NOTICE", "TRACE"))
_DIGITS = pattern(r"\d")


def is_relation(line: str) -> bool:
    """Return whether a line says that the exception above it led to the one below."""
    return CAUSE in line or CONTEXT in line


def exception_in(line: str) -> ExceptionRecord | None:
    """Return the exception that a line names by type and text (``OSError: [Errno 28] ...``) anywhere in it, or None.

    A warning is none: where it is raised as an exception, it has a traceback.
    """
    found = re.search(r"(?:^|[\s\"'(\[])((?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{2,80}): (\S.*)", line[:LINE_LIMIT])
    if found is None or ENDINGS.search(found[1]) is None or found[1].endswith("Warning"):
        return None
    module, _, name = found[1].rpartition(".")
    return ExceptionRecord(name, module, found[2].strip())


def typed(text: str) -> ExceptionRecord | None:
    """Return the exception of a traceback's last line, without frames; None: the line is something else."""
    found = _TYPE.fullmatch(text.rstrip())
    if found is None or found[1] in _LEVELS:
        return None
    module, _, name = found[1].rpartition(".")
    if not module and not (name[:1].isupper() or name.startswith("_")):
        return None
    return ExceptionRecord(name, module, (found[2] or "").strip())


def passed_on(line: str) -> ExceptionRecord | None:
    """Return the exception in a line, by its type and text, or as ``repr`` shows it: ``OSError(28, 'No space')``."""
    shown = _SHOWN.fullmatch(line.strip())
    if shown is not None:
        module, _, name = shown[1].rpartition(".")
        return ExceptionRecord(name, module, f"[Errno {shown[2]}] {shown[4]}" if shown[2] else shown[4])
    record = typed(line)
    return record if record is not None and ENDINGS.search(record.type) is not None else None


def own_text(line: str, prefix: str) -> str | None:
    """Return a line without the prefix of its traceback; None: it belongs to something else.

    Digits may differ: loggers put the time into the prefix.
    """
    if not prefix:
        return line
    start = line[: len(prefix)]
    if start == prefix or _DIGITS.sub("0", start) == _DIGITS.sub("0", prefix):
        return line[len(prefix) :]
    return "" if line.rstrip() == prefix.rstrip() else None

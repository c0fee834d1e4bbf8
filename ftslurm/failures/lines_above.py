"""The line above a traceback in a program's output: what led to the exception may have been printed there (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.failures.closing_lines import (
    AFTERMATH,
    GOES_ON,
    OF_LOG,
    is_summary,
    last_line,
    output_lines,
    went_on,
)
from ftslurm.failures.logged_error import RANK_PREFIX
from ftslurm.failures.reason import links
from ftslurm.failures.traceback_text import Traceback, tracebacks
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord

FEW_LINES, COMPILER_LINES, SAME_LINES = 4, 12, 40
TROUBLE = pattern(
    r"\w(?:Error|Exception)\b|\b(?i:error|fail(?:ed|ure)|fatal|denied|refused|rejected|cannot|can't|could not|unable"
    r"|invalid|unsupported|not found|not available|no such|no module|unknown|unreachable|timed out|exceeded|killed"
    r"|crashed)\b"
)
"""Words by which a line reports that something failed."""
NO_TROUBLE = pattern(
    r"(?i)\b(?:errors?|fail\w*|unknown|unsupported|invalid|skipped|nan)\b[^:=\d]{0,20}[:= ] ?"
    r"(?:0\b(?!\.)|none\b|no\b|\d*\.\d|\d+ found\b)|\b(?:0|no) errors?\b"
)
"""A count, or a measure, of such."""
_BOX = pattern(r"^\s*[│┃├└╰╭┌|]+[─━\s]*(?=\w[\w.]*(?:Error|Exception)\b)")
_GIVES_UP = pattern(r"(?i)\b(?:giving|gave) up\b|\bfall(?:ing|s)? ?back\b")
_SKIPS = pattern(r"(?i)\b(?:skip\w*|ignor\w*|drop\w*|retry\w*)\b.*: \S.{8}")
_DIGITS = pattern(r"\d+")
_COMPILER = pattern(r"\S{1,300}:\d{1,7}(?::\d{1,5})?: (?:fatal )?error: \S|nvcc (?:fatal|error) *: \S")
WARNING = pattern(r"(?:\S{1,40} ){0,4}\W?WARN(?:ING)?\b")
_CODE_ONLY = pattern(r"(?i)\b(?:code|status) \(?-?\d+\b")
# Of glog and of absl.
_GLOG_ERROR = pattern(
    r"(?:^|\s)E(?:\d{4} [\d:.]{8,16} +\d+| external/\S{1,300}|) ?\S{1,200}:\d{1,6}\] "
    r"(?P<text>\S.{10,400}?)(?=\.\s+[A-Z]|$)"
)


def has_type(exception: ExceptionRecord, name: str) -> bool:
    """Return whether an exception, one behind it, or one that its message passes on is of that type."""
    return any(each.type == name or f"{name}: " in each.message for each in links(exception))


def _own_traceback(found: Sequence[Traceback], exception: str) -> Traceback | None:
    """Return the last traceback of an exception of that type."""
    return next((each for each in reversed(found) if has_type(each.exception, exception)), None)


def line_before(text: str, exception: str) -> str:
    """Return the last line above the traceback of an exception of that type; empty if it reports no trouble."""
    lines = output_lines(text)
    own = _own_traceback(tracebacks(lines), exception)
    above = lines[: own.first] if own is not None else []
    while above and (is_summary(above[-1]) or not above[-1].strip()):
        above.pop()
    line = last_line("\n".join(above))
    return "" if went_on(line) or AFTERMATH.match(line) else line


def error_before(text: str, exception: str, *, mild: bool = False) -> str:
    """Return the first of the few lines right above such a traceback that are errors by their words; empty: none.

    What a chain of programs prints last is often only the exit code of the one before.

    Args:
        text: the end of an output.
        exception: the type of the exception.
        mild: whether a logger's warning counts, too.
    """
    lines = output_lines(text)
    all_of_them = tracebacks(lines)
    own = _own_traceback(all_of_them, exception)
    if own is None:
        return ""
    # What Python printed and ignored is no reason.
    ignored = {i for each in all_of_them if each.ignored for i in range(each.first - 1, each.end)}
    above = lines[max(0, own.first - COMPILER_LINES) : own.first]
    by_compiler = next((line for line in above if _COMPILER.match(line)), None)
    if by_compiler is not None:
        return by_compiler
    found: list[str] = []
    for i in range(own.first - 1, max(0, own.first - FEW_LINES) - 1, -1):
        # A logger draws a box around what it quotes.
        line = _BOX.sub("", lines[i])
        if i in ignored:
            continue
        aftermath = AFTERMATH.match(RANK_PREFIX.sub("", line))
        if not line.strip() or (not found and aftermath):
            continue
        known = OF_LOG.match(line) and not (mild and WARNING.match(line))
        if not TROUBLE.search(line) or known or GOES_ON.search(line) or aftermath:
            break
        found.insert(0, line)
    own_reason = next((line for line in found if not _CODE_ONLY.search(line)), found[0] if found else "")
    return own_reason or (_given_up(lines[: own.first]) if mild else "")


def _given_up(above: Sequence[str]) -> str:
    """Return the line above a traceback by which the program gave up something, or skipped the same several times."""
    last = next((line for line in reversed(above[-FEW_LINES:]) if line.strip()), "")
    if _GIVES_UP.search(last):
        return last
    form = _DIGITS.sub("#", last)
    alike = sum(_DIGITS.sub("#", line) == form for line in above[-SAME_LINES:])
    return last if alike >= FEW_LINES and _SKIPS.search(last) else ""


def native_error_before(text: str, exception: str) -> str:
    """Return the first sentence of the last error in glog's form above such a traceback; empty: none.

    Native libraries log so what their exception only refers to.

    Args:
        text: the end of an output.
        exception: the type of the exception.
    """
    lines = output_lines(text)
    own = _own_traceback(tracebacks(lines), exception)
    above = lines[max(0, own.first - COMPILER_LINES) : own.first] if own is not None else []
    found = (_GLOG_ERROR.search(line) for line in reversed(above))
    return next((each["text"] for each in found if each is not None), "")

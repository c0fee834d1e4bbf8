"""Why a rank called MPI_Abort, by what its program printed above, and what MPI's launcher states by itself (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.failures.closing_lines import is_summary
from ftslurm.failures.exception_line import HEADER
from ftslurm.failures.foreign_reason import foreign_reason
from ftslurm.failures.logged_error import logged_error
from ftslurm.pattern import pattern
from ftslurm.report.logs.native import Native

ABOVE, NOTICE = 12, 40
"""Lines around an MPI_Abort in which an error may be logged; of a paragraph, a frame, or a notice above or below it."""
TEXT_LIMIT = 400
# Of Open MPI and MPICH.
_CALLED = pattern(
    r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6}) in"
    r"|(?:MPICH Notice \[Rank \d{1,6}\] .{1,120} - )?(?:Abort\(\d{1,10}\).{1,60}: )?"
    r"application called MPI_Abort\(.{1,40}, -?\d{1,10}\) - process (?P<process>\d{1,6})"
)
_RULE = pattern(r"([-=*%#!_+~])\1{9,}\S?")
_LABEL = pattern(r"\[\d{1,6}\] ?(?:PETSC ERROR: ?)?")  # what a program puts before its rank's lines
# A line that only announces the reason below it: GROMACS, OpenFOAM, WRF, PETSc, Paddle.
_ANNOUNCES = pattern(
    r"(?i)[\s>*=-]*(?:(?!no\b|warning)[\w+-]{1,20} ){0,2}(?:fatal (?:\w{1,10} )?error|error message(?: summary)?)"
    r"(?:[\s:*=-]|\([\w.-]{1,40}\))*$|[\s*=-]+FATAL CALLED[\s*=-]*$"
)
_NO_REASON = pattern(
    r"(?i)(?:or )?(?:see|try|look|change|configure|to get more)\b|#\d|https?://|fatal called from"
    r"|(?:petsc|configure) (?:release|options)|signal received$|for more information"
)
_SEVERE = pattern(r"(?i)\W{0,4}(?:fatal|error|abort)")
_WORD = pattern(r"[A-Za-z]{3}")
_APART = pattern(r"\s{3,}")
_BY_PROGRAM = pattern(r"(?P<text>[A-Z]\w{1,30} abort: .{4,300})$")
_FATAL_NOTICE = pattern(
    r"(?:There are not enough slots|(?:PRTE|ORTE|PMIX|Open MPI) has lost communication|mpi(?:run|exec) was unable to)"
)


def abort_called(lines: Sequence[str], i: int) -> Native | None:
    """Return the end of a rank that called MPI_Abort by line ``i``, with the reason above or below; None: it has none.

    A traceback there says more, and is found by itself.
    """
    found = _CALLED.match(lines[i])
    if found is None:
        return None
    at = i
    while at and (_is_rule(lines[at - 1]) or not lines[at - 1].strip()):
        at -= 1
    above = list(lines[max(0, at - NOTICE) : at])
    if any(HEADER in line for line in above):
        return None
    rank = found["rank"] or found["process"]
    text = _announced(above) or _framed(above) or _by_runtime(above) or _logged(above)
    if not text:
        named = re.compile(rf"\b(?:rank|proc|process) {rank}\b")
        text = _logged([line for line in lines[i + 1 : i + ABOVE] if named.search(line)], first=True)
    return Native(text[:TEXT_LIMIT], None, None, int(rank)) if text else None


def notice(lines: Sequence[str]) -> str:
    """Return what MPI's launcher states by a notice between two rules, of which the first of these lines is one.

    Empty: it is none, or one of those that follow from a process's end.
    """
    if not _is_rule(lines[0]) or len(lines) < 3 or _FATAL_NOTICE.match(lines[1]) is None:
        return ""
    end = next((k for k in range(2, min(len(lines), NOTICE)) if _is_rule(lines[k])), len(lines))
    first, *others = "\n".join(lines[1:end]).split("\n\n")
    details = next((text.split("\n") for text in others if re.match(r"  |(?!NOTE)\w[\w ]{2,20}: ", text)), [])
    if any(re.match(r"(?:Node|Executable): ", line) for line in details):
        first = first.partition(", and therefore")[0]
    return " ".join([*first.split(), *(word for line in details for word in line.split())])


def _announced(lines: Sequence[str]) -> str:
    """Return the paragraph below the last line that only announces an error."""
    bare = [_LABEL.sub("", line, count=1) for line in lines]
    at = next((k for k in reversed(range(len(bare))) if _ANNOUNCES.match(bare[k])), None)
    if at is None:
        return ""
    paragraph: list[str] = []
    for line in bare[at + 1 :]:
        text = line.strip(" \t!*")
        if (not text or _is_rule(line) or line.startswith("    ")) and paragraph:
            break
        if text and not _is_rule(line):
            if _NO_REASON.match(text) and paragraph:
                break
            paragraph += [] if _NO_REASON.match(text) else [text]
    return " ".join(paragraph)


def _framed(lines: Sequence[str]) -> str:
    """Return the text of the last frame between two rules, if it is of an error; drawings in it are left out."""
    rules = [k for k, line in enumerate(lines) if _is_rule(line)]
    for begin, end in zip(reversed(rules[:-1]), reversed(rules[1:]), strict=True):
        parts = [part for line in lines[begin + 1 : end] for part in _APART.split(line.strip(" \t*|%#!"))]
        text = " ".join(part for part in parts if _WORD.search(part))
        if _SEVERE.match(text):
            return text
    return ""


def _by_runtime(lines: Sequence[str]) -> str:
    found = foreign_reason(lines)
    return found.text if found is not None else ""


def _logged(lines: Sequence[str], *, first: bool = False) -> str:
    """Return the last error that is logged; ``first``: the first one."""
    errors: list[str] = []
    for line in lines if first else lines[-ABOVE:]:
        bare = _LABEL.sub("", line, count=1)
        by_program = _BY_PROGRAM.match(bare.strip())
        text = by_program["text"] if by_program is not None else logged_error(line)
        if text is None or is_summary(line) or _ANNOUNCES.match(text):
            continue
        if not _NO_REASON.match(_LABEL.sub("", text, count=1)):
            errors.append(text)
    return (errors[0] if first else errors[-1]) if errors else ""


def _is_rule(line: str) -> bool:
    return _RULE.fullmatch(line.strip()) is not None

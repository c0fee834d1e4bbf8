"""Ends of processes that native libraries state: handlers of fatal signals, UCX's assertions, MPI's aborts (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ftslurm.failures.closing_lines import is_summary
from ftslurm.failures.exception_line import HEADER
from ftslurm.failures.logged_error import logged_error
from ftslurm.failures.retryability import OTHER_FAILED
from ftslurm.pattern import pattern
from ftslurm.report.logs.end import signal_name

STACK = 12
"""Lines of MPI's error stack that are read."""
# Of UCX and MXM, Open MPI, glog and abseil.
_CRASH = pattern(
    r"\[(?P<node>[A-Za-z][\w.-]{0,80}):\d+(?: ?:\d+){0,3}\] +Caught signal (?P<number>\d{1,2}) \("
    r"|\[(?P<host>[\w.-]{1,80}):\d+\] Signal: [A-Za-z ]{3,40} \((?P<code>\d{1,2})\)"
    r"|\*\*\* (?P<name>SIG(?:SEGV|ABRT|BUS|FPE|ILL|TERM)) (?:.{0,120}received by PID \d+|received at time=\d+)"
)
_UCX = pattern(
    r"\[(?P<node>[A-Za-z][\w.-]{0,80}):\d+(?: ?:\d+){1,3}\] +(?P<text>\S+\.\w+:\d+ +(?:Assertion `|Fatal: "
    r"|\w[\w ]{3,40} exceeded on ).{1,300})"
)
# Of MPICH and what is built on it.
_MPI = pattern(
    r"(?:MPICH ERROR \[Rank \d+\] .{0,120}\[(?P<node>[\w.-]{1,80})\] - )?Abort\(\d+\)(?: on node \d+)? "
    r"\(rank (?P<rank>\d{1,6}) in comm 0\): (?P<text>Fatal error in .{1,200})"
)
# Of glog, TensorFlow and Ray, which end a process by such a line.
_FATAL = pattern(
    r"(?:(?:.{0,200}\])?(?:\d{4}-\d\d-\d\d [\d:.]{8,20}: F|F\d{4} [\d:.]{8,26} +\d+) \S{1,200}:\d+\] +"
    r"|.{0,80}: Unhandled exception: \S{1,200}\. what\(\): )(?P<text>\S.{1,1000})"
)
# The first line of the stack repeats the call with its arguments.
_MPI_STACK = pattern(r"\w{3,60}\(\d+\)\.*: ?(?! ?MPI_\w+\(.*\) failed$)(?P<text>.*)")
_PLACE = pattern(r"(?<=\()\w+\.c:\d+:\w+:")
# Of Open MPI and MPICH, where a program calls MPI_Abort: its reason is above or below.
_ABORT_CALLED = pattern(
    r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6}) in"
    r"|application called MPI_Abort\(\w+, -?\d+\) - process (?P<process>\d{1,6})"
)
_RULE = pattern(r"-{20,}\s*$")
ABOVE, NOTICE = 12, 40
"""Lines above an MPI_Abort in which its reason is sought; of a notice between two rules."""
_FATAL_NOTICE = pattern(
    r"(?:There are not enough slots|(?:PRTE|ORTE|PMIX|Open MPI) has lost communication|mpi(?:run|exec) was unable to)"
)


class Native(NamedTuple):
    """The end of a process by a native library.

    Attributes:
        text: the reason, in one line.
        signal: its name; None: the library ended the process by an exit code.
        node, rank: as far as stated.
    """

    text: str
    signal: str | None = None
    node: str | None = None
    rank: int | None = None


def native_end(lines: Sequence[str]) -> Native | None:
    """Return the end that the first of these lines states; None: none.

    Args:
        lines: the line, and those after it, of which an error stack is read.
    """
    line = lines[0]
    crash = _CRASH.search(line)
    if crash is not None:
        name = crash["name"] or signal_name(int(crash["number"] or crash["code"]))
        return Native(line[:300], name, crash["node"] or crash["host"])
    ucx = _UCX.search(line)
    if ucx is not None:
        return Native(ucx["text"], "SIGABRT", ucx["node"])
    fatal = _FATAL.match(line)
    if fatal is not None and re.search(OTHER_FAILED, line) is None:
        return Native(fatal["text"], "SIGABRT")
    mpi = _MPI.search(line)
    if mpi is None:
        return None
    stack = [found["text"] for each in lines[1:STACK] if (found := _MPI_STACK.match(each)) is not None]
    inner = next((text for text in reversed(stack) if text.strip()), "")
    text = mpi["text"].partition(", error stack")[0]
    text = f"{text.removesuffix(': Other MPI error')}: {_PLACE.sub('', inner)}"[:400] if inner else text
    return Native(text, None, mpi["node"], int(mpi["rank"]))


def abort_called(lines: Sequence[str], i: int) -> Native | None:
    """Return the end of a rank that called MPI_Abort by line ``i``, with the reason above or below; None: it has none.

    A traceback there says more, and is found by itself.
    """
    found = _ABORT_CALLED.match(lines[i])
    if found is None:
        return None
    at = i
    while at and (_RULE.match(lines[at - 1]) or not lines[at - 1].strip()):
        at -= 1
    above = list(lines[max(0, at - NOTICE) : at])
    if any(HEADER in line for line in above):
        return None
    fatal = next((k for k in reversed(range(len(above))) if above[k].strip() == "Fatal error:"), None)
    if fatal is not None:  # of GROMACS
        text = _paragraph(above[fatal + 1 :])
    else:
        own = (line for line in above[-ABOVE:] if not is_summary(line))
        errors = [error for line in own if (error := logged_error(line)) is not None]
        named = re.compile(rf"\b(?:rank|proc|process) {found['rank'] or found['process']}\b")
        below = (line for line in lines[i + 1 : i + ABOVE] if named.search(line))
        errors = errors[-1:] or [error for line in below if (error := logged_error(line)) is not None]
        text = errors[0] if errors else ""
    return Native(text[:400], None, None, int(found["rank"] or found["process"])) if text else None


def notice(lines: Sequence[str]) -> str:
    """Return what MPI's launcher states by a notice between two rules, of which the first of these lines is one.

    Empty: it is none, or one of those that follow from a process's end.
    """
    if not _RULE.match(lines[0]) or len(lines) < 3 or _FATAL_NOTICE.match(lines[1]) is None:
        return ""
    end = next((k for k in range(2, min(len(lines), NOTICE)) if _RULE.match(lines[k])), len(lines))
    first, second = (*"\n".join(lines[1:end]).split("\n\n"), "")[:2]
    details = second.split("\n") if re.match(r"  |\w[\w ]{2,20}: ", second) else []
    return " ".join([*first.split(), *(word for line in details for word in line.split())])


def _paragraph(lines: Sequence[str]) -> str:
    """Return the lines up to a blank one, joined."""
    end = next((k for k, line in enumerate(lines) if not line.strip()), len(lines))
    return " ".join(line.strip() for line in lines[:end])

"""Ends of processes that native libraries state: handlers of fatal signals, UCX's assertions, MPI's aborts (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ftslurm.failures.retryability import OTHER_FAILED
from ftslurm.report.logs.end import signal_name

STACK = 12
"""Lines of MPI's error stack that are read."""
# Of UCX and MXM, Open MPI, glog and abseil.
_CRASH = re.compile(
    r"\[(?P<node>[A-Za-z][\w.-]{0,80}):\d+(?: ?:\d+){0,3}\] +Caught signal (?P<number>\d{1,2}) \("
    r"|\[(?P<host>[\w.-]{1,80}):\d+\] Signal: [A-Za-z ]{3,40} \((?P<code>\d{1,2})\)"
    r"|\*\*\* (?P<name>SIG(?:SEGV|ABRT|BUS|FPE|ILL|TERM)) .{0,120}received by PID \d+"
)
_UCX = re.compile(
    r"\[(?P<node>[A-Za-z][\w.-]{0,80}):\d+(?: ?:\d+){1,3}\] +(?P<text>\S+\.\w+:\d+ +(?:Assertion `|Fatal: "
    r"|\w[\w ]{3,40} exceeded on ).{1,300})"
)
# Of MPICH and what is built on it.
_MPI = re.compile(
    r"(?:MPICH ERROR \[Rank \d+\] .{0,120}\[(?P<node>[\w.-]{1,80})\] - )?Abort\(\d+\)(?: on node \d+)? "
    r"\(rank (?P<rank>\d{1,6}) in comm 0\): (?P<text>Fatal error in .{1,200})"
)
# Of glog, TensorFlow and Ray, which end a process by such a line.
_FATAL = re.compile(
    r"(?:(?:.{0,200}\])?(?:\d{4}-\d\d-\d\d [\d:.]{8,20}: F|F\d{4} [\d:.]{8,26} +\d+) \S{1,200}:\d+\] +"
    r"|.{0,80}: Unhandled exception: \S{1,200}\. what\(\): )(?P<text>\S.{1,1000})"
)
# The first line of the stack repeats the call with its arguments.
_MPI_STACK = re.compile(r"\w{3,60}\(\d+\)\.*: ?(?! ?MPI_\w+\(.*\) failed$)(?P<text>.*)")
_PLACE = re.compile(r"(?<=\()\w+\.c:\d+:\w+:")


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

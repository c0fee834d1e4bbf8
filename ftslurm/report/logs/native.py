"""Ends of processes that native libraries state: handlers of fatal signals, UCX's assertions, errors of MPI (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ftslurm.failures.retryability import OTHER_FAILED
from ftslurm.pattern import pattern
from ftslurm.report.logs.end import SIGNALS, signal_name

STACK = 12
"""Lines of MPI's error stack that are read."""
# Of UCX and MXM, Open MPI, glog and abseil.
_CRASH = pattern(
    r"\[(?P<node>[A-Za-z][\w.-]{0,80}):\d+(?: ?:\d+){0,3}\] +Caught signal (?P<number>\d{1,2}) \("
    r"|\[(?P<host>[\w.-]{1,80}):\d+\] Signal: [A-Za-z ]{3,40} \((?P<code>\d{1,2})\)"
    r"|\[(?P<rank>\d{1,6})\]PETSC ERROR: Caught signal number (?P<petsc>\d{1,2}) "
    r"|\*\*\* (?P<name>SIG(?:SEGV|ABRT|BUS|FPE|ILL|TERM)) (?:.{0,120}received by PID \d+|received at time=\d+)"
)
_UCX = pattern(
    r"\[(?P<node>[A-Za-z][\w.-]{0,80}):\d+(?: ?:\d+){1,3}\] +(?P<text>\S+\.\w+:\d+ +(?:Assertion `|(?:Fatal|FATAL): "
    r"|\w[\w ]{3,40} exceeded on ).{1,300})"
)
# Of MPICH and what is built on it.
_MPI = pattern(
    r"(?:MPICH ERROR \[Rank \d+\] .{0,120}\[(?P<node>[\w.-]{1,80})\] - )?Abort\(\d+\)(?: on node \d+)? "
    r"\(rank (?P<rank>\d{1,6}) in comm 0\): (?P<text>Fatal error in .{1,200})"
)
# Of Charm++, whose processors are not numbered as MPI's ranks.
_CHARM = pattern(r"-+ Processor (?P<processor>\d{1,9}) Exiting: (?:Caught Signal|Called CmiAbort) -+")
_REASON = pattern(r"Reason: (?P<text>.{1,400})")
_PROCESS = pattern(r"\bcalled MPI_Abort\(.{1,60}\) - process (\d{1,6})")
_STOPS = ("1", "2", "10", "12", "15")
"""Numbers of signals that stop a process from outside: no crashes."""
# Of Julia, above the expression that ran.
_JULIA = pattern(r"(?:\[\d{1,10}\] )?signal \(?(?P<number>\d{1,2})(?:\.\d|\)| \(\d){1,2}\)?: [A-Z][\w ]{3,40}$")
_EXPRESSION = pattern(r"(?:while loading .{1,300}, )?in expression starting (?:at|on) .{1,400}")
# Of programs that print a CUDA call that failed as a list of names and values.
_LISTED = pattern(r"(?P<what>(?:CUDA|HIP|cu\w{3,8}|NCCL) [Ee]rror):\s*$")
_VALUE = pattern(r"\s+(?P<name>[A-Z][\w ]{1,20}?): +(?P<value>\S.{0,300})")
# Of glog, TensorFlow and Ray, which end a process by such a line.
_FATAL = pattern(
    r"(?:(?:.{0,200}\])?(?:\d{4}-\d\d-\d\d [\d:.]{8,20}: F|F\d{4} [\d:.]{8,26} +\d+) \S{1,200}:\d+\] +"
    r"|.{0,80}: Unhandled exception: \S{1,200}\. what\(\): )(?P<text>\S.{1,1000})"
)
# The first line of the stack repeats the call with its arguments.
_MPI_STACK = pattern(r"\w{3,60}\(\d+\)\.*: ?(?! ?MPI_\w+\(.*\) failed$)(?P<text>.*)")
_PLACE = pattern(r"(?<=\()\w+\.c:\d+:\w+:")


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
    if crash is not None and crash["petsc"] not in _STOPS:
        name = crash["name"] or signal_name(int(crash["number"] or crash["code"] or crash["petsc"]))
        return Native(line[:300], name, crash["node"] or crash["host"], int(crash["rank"]) if crash["rank"] else None)
    julia = _JULIA.match(line)
    if julia is not None and julia["number"] not in _STOPS and len(lines) > 1 and _EXPRESSION.match(lines[1]):
        return Native(f"{line} {lines[1]}"[:300], signal_name(int(julia["number"])))
    if (charm := _CHARM.match(line)) is not None and len(lines) > 1 and (why := _REASON.match(lines[1])) is not None:
        return _of_charm(int(charm["processor"]), why["text"], lines)
    if (listed := _LISTED.match(line)) is not None and (text := _of_list(listed["what"], lines[1:])):
        return Native(text)
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


def _of_charm(processor: int, why: str, lines: Sequence[str]) -> Native:
    """Return the end of a processor of Charm++, which its rank of MPI states below."""
    rank = next((int(found[1]) for line in lines if (found := _PROCESS.search(line)) is not None), None)
    return Native(f"Charm++ processor {processor}: {why}", SIGNALS.get(why.strip()), None, rank)


def _of_list(what: str, lines: Sequence[str]) -> str:
    """Return an error whose text, file and line are a list of names and values; empty: it is none."""
    values: dict[str, str] = {}
    for line in lines:
        if (found := _VALUE.match(line)) is None:
            break
        values[found["name"].lower()] = found["value"].strip()
    text = next((value for name, value in values.items() if name.endswith(("text", "message", "reason"))), "")
    return f"{what}: {text} at {values['file']}:{values['line']}" if text and {"file", "line"} <= values.keys() else ""

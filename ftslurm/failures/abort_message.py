"""A runtime's message on stderr before it aborts its process: libstdc++, libc++, the C library, UCX and ROCm (pure).

Any program may print such text; it counts only at a line's start in the last output of a process ended by SIGABRT.
"""

from __future__ import annotations

import re

from ftslurm.failures.nccl import warnings
from ftslurm.pattern import pattern
from ftslurm.text import cut_middle

LIMIT = 200
_TAIL = 16 * 1024
_WHOLE = ("fatal", "clang", "plain", "assertion", "libc", "ucx", "glog", "ray", "hsa")
_NATIVE = pattern(r"\[enforce fail at [^\]\n]{1,300}\] | Is there a distributed collective mismatch in your code\?")
_BELOW, _LINES_BELOW = 8192, 8
_SUMMARY = pattern(r"\n-+\nError Message Summary:\n-+\n(?P<text>\S[^\n]{1,600})")  # of Paddle
_STATES = pattern(r"(?i)\b(?:error|fail(?:ed|ure)?|cannot|invalid|fatal|unable)\b.{2}")
_NO_TEXT = pattern(r"terminate called|\(\S{1,200}:\d+\) |what\(\):")
_TWICE = pattern(r"(.{4,100}?)\1+")
_THROWN = (
    r"^terminate called after throwing an instance of '(?P<type>[^'\n]{1,200})'(?:\n *what\(\): +(?P<what>[^\n]*))?"
    r"|^(?:libc\+\+abi(?:\.dylib)?: )terminating (?:due to|with) uncaught exception of type (?P<clang>[^\n]{1,300})"
    r"|^(?P<fatal>Fatal Python error: (?!Aborted|Segmentation|Bus error|Illegal|Floating)[^\n]{1,200})$"
    r"|^(?P<plain>terminate called (?:without an active exception|recursively))$"
    r"|^(?P<assertion>[^\n:]{1,200}: [^\n]{1,300}: Assertion `[^\n]{1,300}' failed\.)$"
    r"|^(?P<libc>(?:free|malloc|realloc|munmap_chunk|malloc_consolidate|calloc)\(\): [a-z][^\n]{1,100}"
    r"|double free or corruption[^\n]{0,40}|corrupted (?:size vs\. prev_size|double-linked list)[^\n]{0,60}"
    r"|\*\*\* (?:stack smashing|buffer overflow) detected \*\*\*: terminated)$"
    r"|^\[[^\]\n]{1,120}\] +(?P<ucx>\S{1,100}\.\w+:\d+ +(?:Assertion `|(?:Fatal|FATAL): |\w[\w ]{3,40} exceeded on )"
    r"[^\n]{1,300})$"
    r"|^(?:[^\n]{0,200}\])?(?:\d{4}-\d\d-\d\d [\d:.]{8,20}: F|F\d{4} [\d:.]{8,26} +\d+) \S{1,200}:\d+\] +"
    r"(?P<glog>\S[^\n]*)"
    r"|^[^\n]{0,80}: Unhandled exception: \S{1,200}\. what\(\): (?P<ray>\S[^\n]*)"
    r"|^(?P<hsa>(?:Memory access fault|HW Exception) by GPU node[^\n]{1,200})$"
)


def abort_message(tail: str) -> str:
    """Return the runtime's reason for an abort: ``std::runtime_error: boom``; empty if there is none.

    Args:
        tail: the end of its stderr.
    """
    all_of_them = list(re.finditer(_THROWN, tail[-_TAIL:].replace("\r\n", "\n"), re.MULTILINE))
    if not all_of_them:
        return ""
    found = all_of_them[-1]
    if found["type"]:
        # Without the inline namespace, a detail of the library.
        name = found["type"].replace("std::__cxx11::", "std::")
        twice = _TWICE.fullmatch(name)  # of two processes that aborted at once
        name = twice[1] if twice is not None else name
        what = _NATIVE.sub("", (found["what"] or "").strip())
        what = _below(found) if what in ("", "terminate called") or what.startswith("terminate called ") else what
        if "NCCL error in" in what and (own := warnings(tail)):
            return _cut(f"{name}: NCCL error: {own[-1]}")
        return _cut(name if what in ("", name) else f"{name}: {what}")  # std::bad_alloc is its own message
    return _cut(next(text for text in map(found.__getitem__, _WHOLE) if text))


def _below(found: re.Match[str]) -> str:
    """Return the text of an exception of C++ whose message begins with blank lines or a stack; empty: none."""
    below = found.string[found.end() : found.end() + _BELOW]
    summary = _SUMMARY.search(below)
    if summary is not None:
        return summary["text"]
    lines = (line.strip() for line in below.split("\n")[:_LINES_BELOW])
    return next((line for line in lines if _STATES.search(line) and not _NO_TEXT.match(line)), "")


def _cut(text: str) -> str:
    return cut_middle(text, LIMIT)

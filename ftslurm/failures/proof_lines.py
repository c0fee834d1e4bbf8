"""The evidence of a failure as text: short lines, each a fact with its source (pure)."""

from __future__ import annotations

import re

from ftslurm.failures.causes import Cause, Evidence, HostResources, OomKills, Space
from ftslurm.failures.evidence import CAUSE, CONTEXT, HANDLED, MEMBER
from ftslurm.failures.message_line import message_line
from ftslurm.failures.own_code import own_frame
from ftslurm.failures.reason import EXIT
from ftslurm.records.error import IN_LOG
from ftslurm.text import cut_middle, duration, size

_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
_OUT_OF_MEMORY = ("memory-limit", "host-oom-kill", "oom-kill", "address-space", "host-memory")
_MEMORY_ROWS = (*_OUT_OF_MEMORY, "sigkill", "shell-killed", "dataloader-worker", "terminated")
_SPACE_ROWS = ("disk-full", "quota", "shm-full", "shm-space", "bus-error", "dataloader-worker", "write-failed")
_UNKNOWN = "so an out-of-memory kill is neither proved nor excluded"
_GPU_ASSERTION = r"(?m)^\S{1,300}\.cu\w*:\d+: [^\n]{1,400}Assertion `[^\n]{1,300}` failed"
_NOTES, _NOTE_LIMIT, _SECTIONS = 4, 300, 4
_HOW = {CAUSE: "raised from", HANDLED: "raised while handling", CONTEXT: "raised while handling"}


def lines(evidence: Evidence, cause: Cause, found: Evidence) -> list[str]:
    """Return the evidence of the cause, and further observations that help to understand it.

    Args:
        evidence: of the end.
        cause: the row for it.
        found: the link of the exception's chain that matched the row.
    """
    lines = [*_behind(evidence, found), *(f"note: {cut_middle(note, _NOTE_LIMIT)}" for note in evidence.notes[:_NOTES])]
    if evidence.health:
        lines.append(f"health check: {evidence.health}")
    if evidence.scheduler:
        lines.append(f"scheduler: state {evidence.scheduler}")
    if cause.name == "cuda-assert":
        lines += [f"on the GPU: {text}" for text in re.findall(_GPU_ASSERTION, evidence.tail)[-1:]]
    if found.nccl:
        lines += [f"NCCL: {cut_middle(text, _NOTE_LIMIT)}" for text in evidence.nccl_warnings[-_NOTES:]]
    if cause.cascade:
        return lines
    resources = evidence.host_resources
    if resources is not None:
        lines += _resource_lines(evidence, cause, resources)
    elif cause.name in ("sigkill", "shell-killed"):
        lines.append(f"cgroup: no record of its counters, {_UNKNOWN}")
    lines += _section_lines(evidence)
    return lines + (_cuda(evidence) if cause.name.startswith(("cuda", "gpu", "nccl")) else [])


def _behind(evidence: Evidence, found: Evidence) -> list[str]:
    """The exception behind the row, or the one that the script itself gives as the cause; and the root of the chain."""
    exits = evidence.exception == EXIT  # what it was called for may be behind it, handled by another function
    links = [(how, inner) for how, inner in evidence.inner if inner is found or how in (CAUSE, HANDLED) or exits]
    if found is not evidence and all(inner is not found for _, inner in links):
        links = [(CAUSE, found)]  # further down the chain
    lines = [_link(_HOW.get(how, "in its group"), inner) for how, inner in links[:1] if inner.exception is not None]
    root = evidence.root
    if root is not evidence and all(inner is not root for _, inner in links[:1]):
        between = f", {_count(evidence)} exceptions in all" if _count(evidence) > 2 else ""
        lines.append(_link("the root of its chain is", root) + between)
    return lines


def _count(evidence: Evidence) -> int:
    """Return the number of exceptions in a chain of "raise ... from", those that were not recorded included."""
    count, at = 1, evidence
    while cause := next((inner for how, inner in at.inner if how == CAUSE), None):
        count, at = count + 1 + at.left_out, cause
    return count


def _link(how: str, inner: Evidence) -> str:
    text = cut_middle(message_line(inner.message), _NOTE_LIMIT)
    place = f" at {own_frame(inner.frames).place}" if inner.frames else ""
    member = next((member for relation, member in inner.inner if relation == MEMBER), None)
    more = f", with {_link('', member).strip()}" if member is not None and member.exception is not None else ""
    return f"{how} {inner.exception}{f': {text}' if text else ''}{place}{more}"


def _resource_lines(evidence: Evidence, cause: Cause, resources: HostResources) -> list[str]:
    lines: list[str] = []
    if cause.name in _MEMORY_ROWS:
        lines += _memory(evidence, resources)
    if cause.name == "file-size" and resources.file_limit is not None:
        lines.append(f"ulimit: files of at most {size(resources.file_limit)}")
    # That others are not full says nothing on a disk that is.
    shown = cause.name in _SPACE_ROWS and cause.name not in ("disk-full", "quota")
    lines += [_space(space) for space in resources.spaces if space.full or shown]
    if evidence.signal in _CRASHES:
        lines += _core(evidence, resources)
    return lines + [f"unknown: {text}" for text in resources.unread if cause.name in _MEMORY_ROWS + _SPACE_ROWS]


def _memory(evidence: Evidence, resources: HostResources) -> list[str]:
    lines: list[str] = []
    oom = resources.oom
    if oom is not None and oom.source == IN_LOG:
        return []  # the line itself is quoted
    if oom is None:
        lines.append(f"cgroup: no out-of-memory counter could be read, {_UNKNOWN}")
    elif oom.recent:
        kills = f"{oom.recent} out-of-memory kill{'s' if oom.recent != 1 else ''}"
        lines.append(f"cgroup: {kills} in the last {duration(oom.window_s)} before its end ({oom.source})")
    elif oom.in_round:
        lines.append(f"cgroup: {oom.in_round} out-of-memory kills in this round, but none near its end ({oom.source})")
    else:
        lines.append(f"cgroup: no out-of-memory kill was counted ({oom.source})")
    if oom is not None and oom.recent and oom.at_limit:
        lines.append("cgroup: a memory limit was reached in those seconds")
    if oom is not None:
        lines += _limits(oom)
    if resources.own_limit is not None:
        lines.append(f"ulimit: {size(resources.own_limit)} of address space or data")
    if resources.cpu_limit_s is not None:
        lines.append(f"ulimit: {resources.cpu_limit_s} s of CPU time")
    if resources.memory_total and resources.least_available is not None:
        free = f"{size(resources.least_available)} of {size(resources.memory_total)}"
        lines.append(f"host memory: at least {free} available in those seconds (MemAvailable)")
    if resources.node_oom_kills and not evidence.oom_kills:
        lines.append(
            f"node: {resources.node_oom_kills} out-of-memory kills in those seconds, not in this cgroup (/proc/vmstat)"
        )
    return lines


def _limits(oom: OomKills) -> list[str]:
    parts = [f"{name} {size(value)}" for name, value in (("limit", oom.limit), ("peak", oom.peak)) if value is not None]
    if oom.limit_hits:
        parts.append(f"limit hit {oom.limit_hits} time{'s' if oom.limit_hits != 1 else ''} in this round")
    return [f"cgroup memory: {', '.join(parts)}"] if parts else []


def _space(space: Space) -> str:
    text = f"{space.path}: {size(space.least)} of {size(space.total)} free"
    if space.least < space.free:
        text += f" shortly before, {size(space.free)} after its end"
    if space.total_inodes and space.free_inodes is not None and space.free_inodes * 50 <= space.total_inodes:
        text += f", {space.free_inodes} of {space.total_inodes} inodes free"
    return text


def _core(evidence: Evidence, resources: HostResources) -> list[str]:
    if evidence.core_dumped:
        return [f"core: dumped to {resources.core_pattern}" if resources.core_pattern else "core: dumped"]
    if resources.core_limit == 0:
        return ["core: none, the limit is 0 (ulimit -c)"]
    return []


def _section_lines(evidence: Evidence) -> list[str]:
    opened = [f"'{name}' for {duration(seconds)}" for name, seconds in evidence.sections[:_SECTIONS]]
    more = len(evidence.sections) - len(opened)
    return [f"open sections: {', '.join(opened)}{f' and {more} more' if more else ''}"] if opened else []


def _cuda(evidence: Evidence) -> list[str]:
    parts = [f"{name} {size(value)}" for name, value in evidence.cuda]
    return [f"CUDA memory when it failed: {', '.join(parts)}"] if parts else []

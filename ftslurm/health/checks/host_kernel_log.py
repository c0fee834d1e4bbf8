"""The kernel's log: errors of hardware, GPUs, disks and file servers, and hangs, of the last minutes.

Source: the kernel's ABI/testing/dev-kmsg. A read gives one record; records that were overwritten meanwhile give EPIPE.
Many sites hide the log from users (kernel.dmesg_restrict), and containers have none: then the check is absent.
"""

from __future__ import annotations

import errno
import os
import time

from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Absent, Check, Context
from ftslurm.health.kernel_log_patterns import Line, findings, is_relevant, to_json
from ftslurm.health.sysfs import text
from ftslurm.health.verdict import Json, Judgement
from ftslurm.text import duration

WINDOW_S = 600.0
"""Age of the oldest reported lines; since the previous run if that is longer ago."""
KEPT_S = 2 * 3600.0
_RECORD, _KEPT = 1 << 13, 200
_LINE_LIMIT = 300
_READS = 1 << 17
"""A log that grows as fast as it is read must not block the check; the kernel's ring holds fewer records. A limit of
time would lose the newest lines on a busy node."""


def fetch(context: Context) -> Json:
    """Read the present log, without waiting for more."""
    try:
        fd = os.open(f"{context.root}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Absent(f"the kernel's log is not readable here ({error.strerror})") from None
    try:
        lines, count = _read(fd, time.monotonic() - KEPT_S)
    finally:
        os.close(fd)
    return {
        "lines": to_json(lines[-_KEPT:]),
        "count": count,
        "at_s": time.monotonic(),
        "boot": text(f"{context.root}/proc/sys/kernel/random/boot_id"),
    }


def _read(fd: int, since_s: float) -> tuple[list[Line], int]:
    lines: list[Line] = []
    count = 0
    for _ in range(_READS):
        try:
            data = os.read(fd, _RECORD)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:
                continue
            if count == 0:
                raise Absent(f"the kernel's log is not readable here ({error.strerror})") from None
            break
        if not data:
            break
        for record in data.split(b"\n"):
            head, separator, text = record.partition(b";")
            if not separator or record[:1] == b" ":
                continue
            count += 1
            at_s = _time(head)
            # Most are old: the log of a node that has been up for months is read as a whole each time.
            if at_s is not None and at_s >= since_s and is_relevant(text):
                lines.append(Line(at_s, text[:_LINE_LIMIT].decode("utf-8", "replace")))
    return lines, count


def _time(head: bytes) -> float | None:
    """Return a record's time, in seconds since boot; None: it is no complete line of the kernel.

    Args:
        head: its priority, its number, microseconds, flags.
    """
    parts = head.split(b",", 3)
    # Only the kernel's own lines (facility 0): privileged users can write others.
    if len(parts) < 4 or not parts[0].isdigit() or not parts[2].isdigit() or int(parts[0]) >> 3:
        return None
    # A fragment of a line ("c", "+") may begin with anything, such as the name of a user's cgroup.
    if not parts[3].startswith(b"-"):
        return None
    return int(parts[2]) / 1e6


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge the lines of the last minutes."""
    since = facts["at_s"] - WINDOW_S
    if before is not None and before["boot"] == facts["boot"]:
        since = min(since, before["at_s"])
    lines = [Line(one["at_s"], one["text"]) for one in facts["lines"] if one["at_s"] >= since]
    found, limits = findings(lines, facts["at_s"], context.job_since_s)
    summary = "nothing bad" if not found else f"{len(found)} bad"
    summary += f" in the last {duration(facts['at_s'] - since)}"
    if limits:
        summary += f"; {limits} killed for the memory limit of their job"
    return Judgement(summary, tuple(found))


CHECK = Check(
    name="host-kernel-log",
    about="the kernel's log: hardware, GPU, disk and file server errors, hangs",
    sets=frozenset((QUICK, BACKGROUND, THOROUGH)),
    limit_s=3.0,
    fetch=fetch,
    judge=judge,
    lasting=False,
    late="unknown",
    late_text="/dev/kmsg does not answer",
)

"""A synced write, read again and compared, in each of the job's directories, with its time."""

from __future__ import annotations

import errno

from ftslurm.health.check import THOROUGH, Absent, Check, CheckedPath, Context
from ftslurm.health.checks.storage_paths import probe_places
from ftslurm.health.children import REAP_S, SLACK_S
from ftslurm.health.path_judge import judge_path, shown
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import UNKNOWN, WARN
from ftslurm.text import duration, size

LIMIT_S = 8.0
WRITTEN = 1 << 20
SLOW_S = 3.0
"""A mebibyte, synced: a disk needs milliseconds, a busy file server a second."""
_IO_ERRORS = (errno.EILSEQ, errno.EIO)


def fetch(context: Context) -> Json:
    """Write, sync, read and remove a file in each."""
    if context.busy:
        raise Absent("not while ranks are running")
    return probe_places(context, LIMIT_S, "trip", WRITTEN, durable=True)


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge the round trip alone; the rest is left to storage-paths."""
    found: list[Finding] = []
    summary = []
    for one in facts["places"]:
        place = CheckedPath(one["path"], one["what"])
        error = one["error"]
        late = one["hung"] in ("write", "fsync", "close", "read", "unlink")
        if late or (error is not None and (error[0] in ("fsync", "close", "read", "unlink") or error[1] in _IO_ERRORS)):
            found += judge_path(place, one, None, context.busy, facts["gpus"])
        if one["write_s"] is None or one["read_s"] is None:
            continue
        times = f"{duration(one['write_s'])} to write and sync {size(WRITTEN)}, {duration(one['read_s'])} to read it"
        summary.append(f"{shown(place)} {duration(one['write_s'])} and {duration(one['read_s'])}")
        if one["write_s"] > SLOW_S or one["read_s"] > SLOW_S:
            mount = f"{one['mount']['type']} from {one['mount']['source']}"
            found.append(Finding(WARN, shown(place), f"slow: {times} ({mount})", "Look at its server or disk."))
    return Judgement(f"written and read: {', '.join(summary) or 'nowhere'}", tuple(found))


CHECK = Check(
    name="storage-round-trip",
    about="a file written, synced, read and compared in the job's directories, with its time",
    sets=frozenset((THOROUGH,)),
    # The time-out applies to its probes, which do the I/O.
    limit_s=LIMIT_S + SLACK_S + REAP_S + 1.0,
    fetch=fetch,
    judge=judge,
    late=UNKNOWN,
)

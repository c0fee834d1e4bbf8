"""Lustre's own health status, if Lustre is in use.

Source: the Lustre manual, "Lustre health": the file says "healthy", or "NOT HEALTHY" with the devices, or "LBUG" when
Lustre's code has found itself broken; then only a reboot helps.
"""

from __future__ import annotations

import os

from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Absent, Check, Context
from ftslurm.health.sysfs import text
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.sharedfs.mounts import mount_of
from ftslurm.text import one_line

_FILES = ("/sys/fs/lustre/health_check", "/proc/fs/lustre/health_check", "/sys/kernel/debug/lustre/health_check")


def is_loaded(context: Context) -> bool:
    """Return whether this kernel has Lustre."""
    return any(os.path.exists(f"{context.root}{os.path.dirname(file)}") for file in _FILES)


def fetch(context: Context) -> Json:
    """Read the file, and find the job's paths on Lustre."""
    for file in _FILES:
        status_text = text(f"{context.root}{file}")
        if status_text is not None:
            mounts = text(f"{context.root}/proc/self/mountinfo") or ""
            used = [place.path for place in context.paths if mount_of(mounts, place.path).fs_type == "lustre"]
            return {"status_text": status_text[:2000], "used": used}
    raise Absent("no Lustre here")


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge Lustre's status."""
    lines = [one_line(line) for line in facts["status_text"].splitlines() if line.strip()]
    words = " ".join(lines).lower()
    if words == "healthy":
        return Judgement("healthy")
    if not words:
        return Judgement("no health status from Lustre")
    used = f"; {', '.join(facts['used'][:3])} is on it" if facts["used"] else ""
    if "lbug" in words:
        text_ = f"Lustre reports itself broken ({lines[0]}){used}"
        return Judgement(lines[0], (Finding(FAIL, "Lustre", text_, "Have the node rebooted."),))
    status = FAIL if facts["used"] or not context.paths else WARN
    text_ = f"expected healthy, found {', '.join(lines[:3])}{used}"
    return Judgement(lines[0], (Finding(status, "Lustre", text_, "Look at `lctl get_param health_check`."),))


CHECK = Check(
    name="storage-lustre",
    about="Lustre's own health",
    sets=frozenset((QUICK, BACKGROUND, THOROUGH)),
    limit_s=3.0,
    fetch=fetch,
    judge=judge,
    late_text="Lustre's health file does not answer",
    may_hang=is_loaded,
)

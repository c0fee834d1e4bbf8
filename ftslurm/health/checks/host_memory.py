"""Memory: is the job's allocation really free, is the node swapping, is memory reserved in huge pages?

Before a round the job's own limit is compared with the node's memory; while ranks are running they use it, and only
conditions that slow them are reported. Sources: proc(5), the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Check, Context, never
from ftslurm.health.procfs import cgroups, fields, whole
from ftslurm.health.sysfs import text
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import duration, size

LEAST, LEAST_SHARE = 1 << 30, 0.02
"""With less than both of it available the kernel kills processes at once."""
LITTLE, LITTLE_SHARE = 16 << 30, 0.1
PROMISED_SHARE = 0.8
"""Share of the job's memory that should be available."""
BEFORE_SHARE = 0.25
"""Largest share of its limit that the job should use before a round."""
HUGE_SHARE = 0.5
SWAPPING = 4 << 20
"""Bytes per second read from swap: more slows a program down."""
STALLED = 10.0
"""Percentage of time in which all processes waited for memory."""
_PAGE = 4096
_NO_LIMIT = 1 << 60


def fetch(context: Context) -> Json:
    """Read the node's and the job's memory values, in bytes."""
    proc = f"{context.root}/proc"
    node = fields(f"{proc}/meminfo")
    swapped = fields(f"{proc}/vmstat")
    kib = {name: node.get(name, 0) * 1024 for name in ("MemTotal", "MemAvailable", "Shmem", "SwapTotal", "SwapFree")}
    return {
        "total": kib["MemTotal"],
        "available": kib["MemAvailable"],
        "shared": kib["Shmem"],
        "huge": node.get("HugePages_Total", 0) * node.get("Hugepagesize", 0) * 1024,
        "huge_free": node.get("HugePages_Free", 0) * node.get("Hugepagesize", 0) * 1024,
        "swap": kib["SwapTotal"],
        "swap_used": kib["SwapTotal"] - kib["SwapFree"],
        "swapped_in": swapped.get("pswpin", 0) * _PAGE,
        "stalled": _stalled(text(f"{proc}/pressure/memory")),
        "job": _cgroup(context.root),
        "boot": text(f"{proc}/sys/kernel/random/boot_id"),
        "at_s": time.clock_gettime(time.CLOCK_BOOTTIME),
    }


def _stalled(pressure: str | None) -> float | None:
    for line in (pressure or "").splitlines():
        kind, *words = line.split()
        for word in words:
            if kind == "full" and word.startswith("avg60="):
                return float(word[6:])
    return None


_NAMES = {1: ("memory.limit_in_bytes", "total_rss", "total_shmem"), 2: ("memory.max", "anon", "shmem")}


def _cgroup(root: str) -> Json | None:
    """Return the smallest limit of this process, and its use without caches."""
    found: Json | None = None
    for directory, version in cgroups(root, "memory"):
        file, *used = _NAMES[version]
        limit = whole(text(f"{directory}/{file}"))
        if limit is not None and limit < _NO_LIMIT and (found is None or limit < found["limit"]):
            counted = fields(f"{directory}/memory.stat")
            found = {"limit": limit, "used": sum(counted.get(name, 0) for name in used)}
    return found


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Compare the available memory with the job's allocation."""
    total, available = facts["total"], facts["available"]
    found: list[Finding] = []
    if not total:
        return Judgement("the kernel does not say")
    if not context.busy:
        found += _room(facts, context)
    found += _slow(facts, before)
    limit = _promised(facts, context.environ)
    summary = f"{size(available)} of {size(total)} available"
    if limit is not None:
        summary += f", the job may use {size(limit)}"
    if facts["swap_used"] > LEAST:
        summary += f", {size(facts['swap_used'])} of {size(facts['swap'])} swap used"
    return Judgement(summary, tuple(found))


def _promised(facts: Json, environ: Mapping[str, str]) -> int | None:
    """The job's memory here: by its cgroup, else by Slurm's variables in MiB."""
    if facts["job"] is not None:
        return min(int(facts["job"]["limit"]), int(facts["total"]))
    per_node = whole(environ.get("SLURM_MEM_PER_NODE"))
    each, cpus = whole(environ.get("SLURM_MEM_PER_CPU")), whole(environ.get("SLURM_CPUS_ON_NODE"))
    if per_node is None and each is not None and cpus is not None:
        per_node = each * cpus
    return min(per_node << 20, int(facts["total"])) if per_node else None


def _room(facts: Json, context: Context) -> list[Finding]:
    total, available = facts["total"], facts["available"]
    held = []
    if facts["shared"] > total * 0.05:
        held.append(f"{size(facts['shared'])} shared memory (/dev/shm and other tmpfs)")
    if facts["huge"] > total * 0.05:
        held.append(f"{size(facts['huge'])} huge pages")
    of_it = f", taken are {' and '.join(held)}" if held else ""
    look = "Look for leftover processes, and for files in /dev/shm."
    if available < LEAST and available < LEAST_SHARE * total:
        return [Finding(FAIL, "memory", f"only {size(available)} of {size(total)} are available{of_it}", look)]
    found: list[Finding] = []
    limit, used = _promised(facts, context.environ), facts["job"]["used"] if facts["job"] is not None else 0
    if limit is not None and available < PROMISED_SHARE * (limit - used):
        text_ = f"the job may use {size(limit - used)} more, but only {size(available)} are available{of_it}"
        found.append(Finding(WARN, "memory", text_, look))
    elif available < LITTLE and available < LITTLE_SHARE * total:
        text_ = f"only {size(available)} of {size(total)} are available{of_it}"
        found.append(Finding(WARN, "memory", text_, look))
    if context.own_pid is not None and facts["job"] is not None and used > BEFORE_SHARE * facts["job"]["limit"]:
        text_ = f"before the round the job's processes and files in memory already take {size(used)} of its limit of"
        advice = "Look for leftover processes of the job, and for its files in /dev/shm."
        found.append(Finding(WARN, "the job's memory", f"{text_} {size(facts['job']['limit'])}", advice))
    if facts["huge_free"] > HUGE_SHARE * total:
        text_ = f"{size(facts['huge_free'])} of {size(total)} are reserved as unused huge pages"
        found.append(
            Finding(WARN, "memory", text_, "Look at vm.nr_hugepages: only programs that request them can use these.")
        )
    return found


def _slow(facts: Json, before: Json | None) -> list[Finding]:
    found: list[Finding] = []
    if before is not None and before["boot"] == facts["boot"] and facts["at_s"] > before["at_s"]:
        seconds = facts["at_s"] - before["at_s"]
        read = facts["swapped_in"] - before["swapped_in"]
        if read > SWAPPING * max(seconds, 10.0):
            text_ = f"{size(read)} were read back from swap in {duration(seconds)}, {size(read / seconds)} a second"
            found.append(
                Finding(WARN, "swap", text_, "More memory is in use than there is; find the processes that use it.")
            )
    if facts["stalled"] is not None and facts["stalled"] > STALLED:
        text_ = f"all processes waited for memory {facts['stalled']:.0f} % of the last minute"
        found.append(
            Finding(WARN, "memory", text_, "More memory is in use than there is; find the processes that use it.")
        )
    return found


CHECK = Check(
    name="host-memory",
    about="memory: available, the job's limit, huge pages, swap",
    sets=frozenset((QUICK, BACKGROUND, THOROUGH)),
    limit_s=2.0,
    fetch=fetch,
    judge=judge,
    may_hang=never,
)

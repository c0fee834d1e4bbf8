"""Limits that the ranks inherit: files, locked memory, processes, sizes; and the use of the node's own limits.

Sources: getrlimit(2), proc(5); NCCL and gloo for a rank's descriptors: gloo connects every rank with every other.
"""

from __future__ import annotations

import os
import resource

from ftslurm.health.check import QUICK, THOROUGH, Check, Context, never
from ftslurm.health.procfs import cgroups, has_gpus, recent_processes, whole
from ftslurm.health.sysfs import names, text
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import size

FILES = 1024
"""Linux' own default of open files; enough for a few ranks."""
FILES_PER_RANK = 2
"""Connections of a rank with each other one."""
LOCKED, LOCKED_LITTLE = 1 << 30, 64 << 20
USED_UP = 0.8
SHORT_STACK = 1 << 20
_CAP_IPC_LOCK, _CAP_SYS_RESOURCE, _CAP_SYS_ADMIN = 14, 24, 21
_LIMITS = {
    "files": resource.RLIMIT_NOFILE,
    "locked": resource.RLIMIT_MEMLOCK,
    "core": resource.RLIMIT_CORE,
    "processes": resource.RLIMIT_NPROC,
    "space": resource.RLIMIT_AS,
    "cpu": resource.RLIMIT_CPU,
    "file_size": resource.RLIMIT_FSIZE,
    "stack": resource.RLIMIT_STACK,
}


def fetch(context: Context) -> Json:
    """Read the limits of this process; None is no limit."""
    root = context.root
    limits = {name: resource.getrlimit(number) for name, number in _LIMITS.items()}
    none = resource.RLIM_INFINITY
    table = recent_processes(root)
    uid = os.geteuid()
    allocated = (text(f"{root}/proc/sys/fs/file-nr") or "").split()
    capable = [line.split()[1] for line in (text(f"{root}/proc/self/status") or "").splitlines() if "CapEff" in line]
    return {
        "soft": {name: None if soft == none else soft for name, (soft, _) in limits.items()},
        "hard": {name: None if hard == none else hard for name, (_, hard) in limits.items()},
        "capabilities": int(capable[0], 16) if capable else 0,
        "rdma": _rdma(root),
        "gpus": has_gpus(root),
        "own_threads": sum(one.threads for one in table.values() if one.uid == uid),
        "threads": whole((text(f"{root}/proc/loadavg") or "").partition("/")[2].partition(" ")[0]),
        "pid_max": whole(text(f"{root}/proc/sys/kernel/pid_max")),
        "open": [whole(word) for word in (allocated[0], allocated[2])] if len(allocated) == 3 else None,
        "pids": _pids(root),
        "core_pattern": (text(f"{root}/proc/sys/kernel/core_pattern") or "")[:100],
    }


def _rdma(root: str) -> dict[str, str]:
    """Return the RDMA devices, each with the link layer of its first port."""
    devices = names(f"{root}/sys/class/infiniband")
    return {one: text(f"{root}/sys/class/infiniband/{one}/ports/1/link_layer") or "" for one in devices[:64]}


def _pids(root: str) -> list[int] | None:
    """Return the number of threads in the nearest cgroup with a limit, and the limit."""
    for directory, _ in cgroups(root, "pids"):
        limit, now = whole(text(f"{directory}/pids.max")), whole(text(f"{directory}/pids.current"))
        if limit is not None and now is not None:
            return [now, limit]
    return None


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Compare the limits with a rank's needs."""
    soft = facts["soft"]
    found = [*_files(facts, context), *_locked(facts, context), *_processes(facts), *_sizes(facts)]
    shown = {name: "any number of" if soft[name] is None else str(soft[name]) for name in ("files", "processes")}
    locked = "unlimited" if soft["locked"] is None else size(soft["locked"])
    return Judgement(
        f"{shown['files']} open files, {shown['processes']} processes, locked memory {locked}, {_core(facts)}",
        tuple(found),
    )


def _core(facts: Json) -> str:
    limit, pattern = facts["soft"]["core"], facts["core_pattern"]
    if pattern.startswith("|"):
        return f"core dumps to {os.path.basename(pattern[1:].split()[0])}" if pattern[1:].split() else "no core dumps"
    if limit == 0:
        return "no core files"
    return f"core files {'of any size' if limit is None else f'up to {size(limit)}'}"


def _ranks(context: Context) -> int:
    environ = context.environ
    nodes = whole(environ.get("SLURM_JOB_NUM_NODES")) or 1
    return nodes * max(1, whole(environ.get("SLURM_GPUS_ON_NODE")) or 1)


def _files(facts: Json, context: Context) -> list[Finding]:
    soft, hard, ranks = facts["soft"]["files"], facts["hard"]["files"], _ranks(context)
    need = FILES if ranks * FILES_PER_RANK <= FILES // 2 else FILES // 2 + FILES_PER_RANK * ranks
    found: list[Finding] = []
    if soft is not None and soft < need:
        text_ = f"a process may open {soft} files, expected at least {need}"
        if need > FILES:
            text_ += f" for {ranks} ranks: each connects with each"
        higher = "Raise it in the job script: `ulimit -n {}`.".format("hard" if hard is None else min(hard, 65536))
        stuck = "Have it raised: LimitNOFILE of slurmd, /etc/security/limits.conf."
        found.append(Finding(WARN, "open files", text_, higher if hard is None or hard >= need else stuck))
    if facts["open"] is not None and None not in facts["open"] and facts["open"][0] > USED_UP * facts["open"][1]:
        now, most = facts["open"]
        text_ = f"{now} of the node's {most} file handles are in use"
        found.append(Finding(WARN, "open files", text_, "Find the processes that hold them, or raise fs.file-max."))
    return found


def _locked(facts: Json, context: Context) -> list[Finding]:
    limit = facts["soft"]["locked"]
    if not facts["rdma"] or limit is None or limit >= LOCKED or _may(facts, _CAP_IPC_LOCK):
        return []
    used = "InfiniBand" in facts["rdma"].values() and context.environ.get("NCCL_IB_DISABLE", "0") in ("", "0")
    text_ = f"{size(limit)} may be locked, expected unlimited: InfiniBand needs its buffers locked"
    advice = "Have slurmd started with LimitMEMLOCK=infinity; it must not come from a login shell."
    return [Finding(FAIL if used and limit < LOCKED_LITTLE else WARN, "locked memory", text_, advice)]


def _processes(facts: Json) -> list[Finding]:
    found: list[Finding] = []
    limit, own = facts["soft"]["processes"], facts["own_threads"]
    free = _may(facts, _CAP_SYS_RESOURCE) or _may(facts, _CAP_SYS_ADMIN)
    if limit is not None and not free and own > USED_UP * limit:
        text_ = f"this user has {own} threads here, and may have {limit}"
        found.append(Finding(WARN, "processes", text_, "Look for leftover processes, or raise `ulimit -u`."))
    if facts["pids"] is not None and facts["pids"][0] > USED_UP * facts["pids"][1]:
        text_ = f"the job has {facts['pids'][0]} threads in its cgroup, and may have {facts['pids'][1]}"
        found.append(Finding(WARN, "processes", text_, "Look for leftover processes, or have pids.max raised."))
    if facts["threads"] and facts["pid_max"] and facts["threads"] > USED_UP * facts["pid_max"]:
        text_ = f"{facts['threads']} threads on the node, and there can be {facts['pid_max']}"
        found.append(Finding(WARN, "processes", text_, "Find their owners, or raise kernel.pid_max."))
    return found


def _sizes(facts: Json) -> list[Finding]:
    soft = facts["soft"]
    found: list[Finding] = []
    if soft["space"] is not None and facts["gpus"]:
        text_ = f"a process may have {size(soft['space'])} of addresses: GPUs' drivers need far more than the memory"
        found.append(Finding(WARN, "address space", text_, "Take the limit away: `ulimit -v unlimited`."))
    if soft["cpu"] is not None:
        text_ = f"a process is killed after {soft['cpu']} s of CPU time"
        found.append(Finding(WARN, "CPU time", text_, "Take the limit away: `ulimit -t unlimited`."))
    if soft["file_size"] is not None:
        text_ = f"a file may have {size(soft['file_size'])}: a larger checkpoint is not written"
        found.append(Finding(WARN, "file size", text_, "Take the limit away: `ulimit -f unlimited`."))
    if soft["stack"] is not None and soft["stack"] < SHORT_STACK:
        text_ = f"a stack may have {size(soft['stack'])}, 8 MiB are usual"
        found.append(Finding(WARN, "stack", text_, "Raise it: `ulimit -s 8192`."))
    return found


def _may(facts: Json, capability: int) -> bool:
    return bool(facts["capabilities"] >> capability & 1)


CHECK = Check(
    name="host-limits",
    about="limits: open files, locked memory for InfiniBand, processes, sizes",
    sets=frozenset((QUICK, THOROUGH)),
    limit_s=2.0,
    fetch=fetch,
    judge=judge,
    may_hang=never,
)

"""Other processes on this job's GPUs: leftovers of an earlier job, other users' programs.

NVML identifies processes by their pid outside of any container. Within one they cannot be distinguished, and then only
used memory is judged, before a round. With MIG, and where GPUs are shared on purpose, others are expected. Another
step of the same job is only reported.
"""

from __future__ import annotations

import os

from ftslurm.health import nvml, procfs
from ftslurm.health.check import QUICK, THOROUGH, Context
from ftslurm.health.slurm_steps import job_environ, of_this_job
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import plural

MUCH = 0.1
"""The share of a GPU's memory whose use is reported."""
LITTLE_BYTES = 1 << 30
"""Less than this, without a process, belongs to the driver or is being freed."""
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's proc_ns.h
_TOLERATED = ("nvidia-cuda-mps", "nv-hostengine", "dcgm")
_END = "End it, or ask its owner; `nvidia-smi` shows it."
_MOVE = "Give the job's steps GPUs of their own, or end it."


def fetch(context: Context) -> Json:
    """List the programs on each GPU, with those that are this job's marked."""
    facts = nvml.each(context.environ, lambda gpu: _facts(gpu, context))
    try:
        facts["visible"] = os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        facts["visible"] = False
    return facts


def _facts(gpu: nvml.Gpu, context: Context) -> Json:
    mig = gpu.query("mig", "MigMode")
    memory = gpu.query("memory", "MemoryInfo", getattr(gpu.pynvml, "nvmlMemory_v2", None)) or gpu.query(
        "memory", "MemoryInfo"
    )
    processes = gpu.query("processes", "ComputeRunningProcesses ComputeRunningProcesses_v2") or []
    return {
        "uuid": nvml.text(gpu.query("uuid", "UUID")),
        "mig": bool(mig and mig[0]),
        "total": memory.total if memory else None,
        "used": memory.used if memory else None,
        "processes": [
            {"pid": int(one.pid), "bytes": one.usedGpuMemory, **_owner_of(context, int(one.pid))} for one in processes
        ],
    }


def _owner_of(context: Context, pid: int) -> Json:
    process = procfs.process(context.root, pid)
    return {
        "name": process.name if process else None,
        "uid": process.uid if process else None,
        "step": of_this_job(job_environ(context.root, pid), context.environ),
        "own": context.own_pid is not None and _below(context.root, process, context.own_pid),
    }


def _below(root: str, process: procfs.Process | None, ancestor: int) -> bool:
    while process is not None and process.pid != ancestor:
        process = procfs.process(root, process.parent)
    return process is not None


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Before a round the job's GPUs are empty; during one only the job is on them."""
    own = nvml.own(context.environ, facts["gpus"])
    shared = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in context.environ or "SLURM_SHARDS_ON_NODE" in context.environ
    findings: list[Finding] = []
    for gpu in facts["gpus"]:
        if gpu.get("mig") or shared or gpu.get("processes") is None or (own is not None and gpu["gpu"] not in own):
            continue
        # Without GPU allocation (a workstation, no gres), sharing is normal.
        certain = own is not None and nvml.given(context.environ) is not None
        findings += _judge(gpu, facts["visible"], certain, context)
    number = sum(len(gpu.get("processes") or ()) for gpu in facts["gpus"])
    programs = plural(number, "program") if number else "no programs"
    return Judgement(f"{plural(len(facts['gpus']), 'GPU')}, {programs}", (*findings, *nvml.unread(facts)))


def _judge(gpu: Json, visible: bool, certain: bool, context: Context) -> list[Finding]:
    subject, at, total = nvml.subject(gpu), nvml.where(gpu), gpu["total"] or 0
    findings = []
    known = visible and (context.own_pid is not None or not context.busy)
    for process in gpu["processes"] if known else ():
        if process["own"] or (process["name"] or "").startswith(_TOLERATED):
            continue
        held = process["bytes"] or 0
        text = f"pid {process['pid']} ({_name(process)}) is on it and holds {_size(held, total)}{at}"
        much = total and held >= MUCH * total
        others = process["step"] is None
        status = FAIL if much and certain and others and not context.busy else WARN
        findings.append(Finding(status, subject, text, _END if others else _MOVE))
    used = gpu["used"] or 0
    if not context.busy and not gpu["processes"] and used > max(LITTLE_BYTES, MUCH * total):
        text = f"{_size(used, total)} of memory is in use, by no process that can be seen{at}"
        findings.append(Finding(WARN, subject, text, "Look with `nvidia-smi` outside of the container, as root."))
    return findings


def _name(process: Json) -> str:
    if process["name"] is None:
        return "it has ended or is hidden"
    step = f", {process['step']}" if process["step"] else ""
    return f"{process['name']}, user {process['uid']}{step}"


def _size(held: int, total: int) -> str:
    return f"{held / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB" if total else f"{held / (1 << 30):.1f} GiB"


CHECK = nvml.check(
    "gpu-processes", "foreign programs and leftovers on this job's GPUs", (QUICK, THOROUGH), fetch, judge
)

"""Slurm job and step of each process, and which of these have ended on this node (pure judgement).

A running step has a slurmstepd with its name in the title; a process whose step has none is a leftover. Where Slurm's
daemons are invisible (a container, /proc mounted with hidepid, a login node) no process counts as a leftover: a login
shell, a tmux, another running job of the same user on a shared node must never be reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ftslurm.health.procfs import Process, above, whole
from ftslurm.health.sysfs import text
from ftslurm.health.verdict import Json

_TITLE = re.compile(r"slurmstepd: \[(\d+)\.(\w+)")
_CGROUP = re.compile(r"/job_(\d+)(?:/step_(\w+))?(?:/|$)", re.MULTILINE)
_SPECIAL = 1 << 31
"""Step numbers from here on are Slurm's own: batch script, external, interactive step."""


def live_steps(root: str, table: Mapping[int, Process]) -> list[str]:
    """Return the steps that run on this node: "123.0", "123.batch"."""
    titles = (text(f"{root}/proc/{one.pid}/cmdline") for one in table.values() if one.name == "slurmstepd")
    found = (_TITLE.search((title or "").replace("\0", " ")) for title in titles)
    return sorted({f"{match[1]}.{match[2]}" for match in found if match})


def belonging(root: str, one: Process, table: Mapping[int, Process]) -> Json | None:
    """Return a process's job and run by its environment; None: it belongs to none."""
    environ = job_environ(root, one.pid)
    in_cgroup = _CGROUP.search(text(f"{root}/proc/{one.pid}/cgroup") or "")
    job = in_cgroup[1] if in_cgroup else environ.get("SLURM_JOB_ID")
    step = in_cgroup[2] if in_cgroup else environ.get("SLURM_STEP_ID")
    run = environ.get("FTSLURM_RUN_ID") if "FTSLURM_RECORD_DIR" in environ else None
    if job is None and run is None:
        return None
    return {
        "job": job,
        "step": None if (whole(step) or 0) >= _SPECIAL else step,
        "restarts": whole(environ.get("SLURM_RESTART_COUNT")) or 0 if environ else None,
        "run": run,
        "rank": environ.get("RANK"),
        "agent": any(_is_agent(root, pid) for pid in above(dict(table), one.pid)),
    }


def job_environ(root: str, pid: int) -> dict[str, str]:
    """Return Slurm's and ftslurm's variables of a process's initial environment; empty if unreadable."""
    # Large environments are cut; the relevant variables are usually among the first, and at worst missed.
    entries = (text(f"{root}/proc/{pid}/environ") or "").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if entry.startswith(("SLURM_", "FTSLURM_", "RANK=")))


def of_this_job(of_process: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Return as text which step of the checking job a process belongs to; None: of another job, or unknown.

    A process from before the job's requeue belongs to another one: it is a leftover.

    Args:
        of_process: the process's environment.
        environ: of the checking job.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None or of_process.get("SLURM_JOB_ID") != job or _restarts(of_process) < _restarts(environ):
        return None
    step = whole(of_process.get("SLURM_STEP_ID"))
    return "this job" if step is None or step >= _SPECIAL else f"step {step} of this job"


def _is_agent(root: str, pid: int) -> bool:
    return "ftslurm" in (text(f"{root}/proc/{pid}/cmdline") or "")


def leftover_reason(owner: Json, live: Iterable[str], slurmd: bool, environ: Mapping[str, str]) -> str | None:
    """Return as text the origin of a leftover process; None if it may belong here (pure).

    Args:
        owner: see `belonging`.
        live: steps running here.
        slurmd: whether Slurm's daemon of this node is visible.
        environ: of the checking job; without a job it is Slurm's own health check, or a manual run.
    """
    job, step, live = owner["job"], owner["step"], set(live)
    jobs = {one.partition(".")[0] for one in live}
    own = environ.get("SLURM_JOB_ID")
    if job is not None and (own in jobs if own is not None else slurmd):
        if job not in jobs:
            return f"job {job}, which is over on this node"
        if job == own and owner["restarts"] is not None and owner["restarts"] < _restarts(environ):
            return f"this job, from before it was requeued (start {owner['restarts'] + 1} of {_restarts(environ) + 1})"
        if step is not None and f"{job}.{step}" not in live:
            return f"step {job}.{step}, which is over"
    elif owner["run"] is not None and not owner["agent"] and (job is None or job == own):
        return f"the run {owner['run']}, whose agent is gone"
    return None


def _restarts(environ: Mapping[str, str]) -> int:
    return whole(environ.get("SLURM_RESTART_COUNT")) or 0

"""Processes: leftovers of earlier steps, those that hang in the kernel, zombies, and the load.

Leftovers hold GPUs, ports and memory. A process that hangs in the kernel (state D, without having run between two
observations) indicates a driver or a filesystem that does not answer; so does a zombie that still has threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Check, Context
from ftslurm.health.procfs import Process, above, below, fields, process, processes, whole
from ftslurm.health.slurm_steps import belonging, leftover_reason, live_steps
from ftslurm.health.sysfs import names, text
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import WARN
from ftslurm.text import duration, one_line, plural, size

PAUSES_S = (0.05, 0.45, 1.5)
"""Interval between observations of a process that seems to hang; most have continued by the second one."""
HELD_S = 2.0
"""Least time of a hang: a process that syncs a file to a busy disk hangs for a second."""
ZOMBIES = 200
LOAD, LOAD_PER_CPU = 64, 8
SHOWN = 5
_KEPT = 50
_TICKS = os.sysconf("SC_CLK_TCK")


def fetch(context: Context, sleep: Callable[[float], None] = time.sleep) -> Json:
    """Read all processes."""
    root = context.root
    table = processes(root)
    boot_s = float((text(f"{root}/proc/uptime") or "0").split()[0])
    checking = below(table, os.getppid()) | set(above(table, os.getpid()))
    own = set() if context.own_pid is None else below(table, context.own_pid)
    ours = checking | own
    zombies = [one for one in table.values() if one.state == "Z" and one.threads <= 1 and one.pid not in ours]
    load = (text(f"{root}/proc/loadavg") or "").split()
    return {
        "processes": len(table),
        "others": _others(context, table, ours, boot_s),
        "steps": live_steps(root, table),
        "slurmd": any(one.name == "slurmd" for one in table.values()),
        "hanging": _hanging(context, table, ours, sleep),
        "zombies": len(zombies),
        "parents": _parents(zombies, table),
        "load": [float(word) for word in load[:2]],
        "cpus": _cpus(root),
        "boot": text(f"{root}/proc/sys/kernel/random/boot_id"),
        "at_s": boot_s,
    }


def _others(context: Context, table: dict[int, Process], ours: set[int], boot_s: float) -> list[Json]:
    """Return this user's processes (any user's for root) that belong to a job or run by their environment."""
    uid = os.geteuid()
    found: list[Json] = []
    for one in table.values():
        if one.pid in ours or one.state == "Z" or one.name == "slurmstepd" or uid not in (0, one.uid):
            continue
        owner = belonging(context.root, one, table)
        if owner is None or len(found) >= _KEPT:
            continue
        memory = fields(f"{context.root}/proc/{one.pid}/status").get("VmRSS", 0) * 1024
        age = max(0.0, boot_s - one.started / _TICKS)
        found.append({"pid": one.pid, "name": one_line(one.name), "age_s": age, "memory": memory, **owner})
    return found


def _hanging(context: Context, table: dict[int, Process], ours: set[int], sleep: Callable[[float], None]) -> list[Json]:
    root = context.root
    # While ranks are running, one that writes a checkpoint may wait for its disk; the watchdog monitors ranks.
    held = {
        (one.pid, thread): _ran(root, one.pid, thread)
        for one in table.values()
        if one.pid not in ours or not context.busy
        for thread in _sleeping(root, one)
    }
    waited = 0.0
    # The next run is soon, and a run must be short while ranks are running; it finds what has not run since.
    for pause_s in PAUSES_S[: 1 if context.hurry else 2 if context.busy else None]:
        if held:
            sleep(pause_s)
            waited += pause_s
        held = {at: ran for at, ran in held.items() if ran is not None and _still(root, *at, ran)}
    found: list[Json] = []
    for (pid, thread), ran in list(held.items())[:_KEPT]:
        one = table[pid]
        found.append(
            {
                "pid": pid,
                "thread": thread,
                "started": one.started,
                "ran": ran,
                "name": one_line(one.name),
                "mine": one.uid == os.geteuid(),
                "held_s": waited,
                "ended": one.state == "Z",
                "where": text(f"{root}/proc/{pid}/task/{thread}/wchan") or "",
            }
        )
    return found


def _still(root: str, pid: int, thread: int, ran: int) -> bool:
    now = process(root, pid, thread)
    return now is not None and now.state == "D" and _ran(root, pid, thread) == ran


def _sleeping(root: str, one: Process) -> list[int]:
    if one.state == "D":
        return [one.pid]
    if one.state == "Z" and one.threads > 1:
        threads = [int(name) for name in names(f"{root}/proc/{one.pid}/task") if name.isdigit()]
        states = {thread: process(root, one.pid, thread) for thread in threads}
        return [thread for thread, state in states.items() if state is not None and state.state == "D"]
    return []


def _ran(root: str, pid: int, thread: int) -> int | None:
    """Return a thread's number of context switches; unchanged: it has not run."""
    counted = fields(f"{root}/proc/{pid}/task/{thread}/status")
    switches = [counted.get(f"{kind}_ctxt_switches") for kind in ("voluntary", "nonvoluntary")]
    return None if None in switches else sum(number or 0 for number in switches)


def _parents(zombies: list[Process], table: dict[int, Process]) -> Json:
    parents: dict[int, int] = {}
    for one in zombies:
        parents[one.parent] = parents.get(one.parent, 0) + 1
    most = max(parents, key=lambda pid: parents[pid], default=0)
    return {"pid": most, "name": one_line(table[most].name) if most in table else "", "count": parents.get(most, 0)}


def _cpus(root: str) -> int:
    listed = text(f"{root}/sys/devices/system/cpu/online") or ""
    return len(cpu_numbers(listed)) or os.cpu_count() or 1


def cpu_numbers(listed: str) -> set[int]:
    """Return the numbers of a kernel list: "0-3,8"."""
    found: set[int] = set()
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        low, high = whole(first), whole(last or first)
        if low is not None and high is not None:
            found.update(range(low, high + 1))
    return found


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Find leftovers, hanging processes and zombies."""
    left = [(one, why) for one in facts["others"] if (why := _left(one, facts, context)) is not None]
    hanging = [(one, _held_s(one, facts, before)) for one in facts["hanging"]]
    summary = f"{plural(facts['processes'], 'process')}, load {facts['load'][0] if facts['load'] else 'unknown'}"
    summary += f", {plural(len(left), 'leftover')}" if left else ", no leftovers"
    if hanging:
        summary += f", {len(hanging)} in uninterruptible sleep"
    if facts["zombies"]:
        summary += f", {plural(facts['zombies'], 'zombie')}"
    found = [*_leftovers(left), *_hung(hanging), *_zombies(facts), *_load(facts, context)]
    return Judgement(summary, tuple(found))


def _left(one: Json, facts: Json, context: Context) -> str | None:
    return leftover_reason(one, facts["steps"], facts["slurmd"], context.environ)


def _leftovers(left: list[tuple[Json, str]]) -> list[Finding]:
    found: list[Finding] = []
    for one, why in left[:SHOWN]:
        rank = f", rank {one['rank']}" if one["rank"] else ""
        text_ = f"left over from {why}{rank}; {duration(one['age_s'])} old, {size(one['memory'])}"
        advice = f"Look at it there, and end it: `kill -9 {one['pid']}`."
        found.append(Finding(WARN, f"process {one['pid']} ({one['name']})", text_, advice))
    if len(left) > SHOWN:
        pids = " ".join(str(one["pid"]) for one, _ in left[SHOWN : 4 * SHOWN])
        more = f"{len(left) - SHOWN} more processes are left over: {pids}"
        found.append(Finding(WARN, "processes", more, "Look at them there, and end them."))
    return found


def _held_s(one: Json, facts: Json, before: Json | None) -> float:
    """Return the time for which it has certainly not run."""
    if before is not None and before["boot"] == facts["boot"]:
        for then in before["hanging"]:
            if all(then[key] == one[key] for key in ("pid", "thread", "started", "ran")):
                return float(facts["at_s"] - before["at_s"])
    # For another user's process only a longer time distinguishes a hang.
    return float(one["held_s"]) if one["mine"] else 0.0


def _hung(hanging: list[tuple[Json, float]]) -> list[Finding]:
    owner = [(one, held) for one, held in hanging if held >= HELD_S]
    found: list[Finding] = []
    for one, held in owner[:SHOWN]:
        where = f" in {one['where']}" if one["where"] not in ("", "0") else ""
        what = "has been killed and cannot end: a thread of it hangs" if one["ended"] else "hangs"
        text_ = f"{what} in the kernel{where} (state D), for {duration(held)} at least"
        advice = "A driver or filesystem does not answer; only its return or a reboot ends that."
        found.append(Finding(WARN, f"process {one['pid']} ({one['name']})", text_, advice))
    if len(owner) > SHOWN:
        text_ = f"{len(owner) - SHOWN} more hang in the kernel (state D)"
        found.append(Finding(WARN, "processes", text_, "Look at the kernel's log: `dmesg`."))
    return found


def _zombies(facts: Json) -> list[Finding]:
    if facts["zombies"] < ZOMBIES:
        return []
    parent = facts["parents"]
    text_ = f"{facts['zombies']} processes have ended and are not collected, {parent['count']} of them by"
    text_ += f" process {parent['pid']} ({parent['name']})"
    return [Finding(WARN, "zombies", text_, "Each takes a process number; restart their parent.")]


def _load(facts: Json, context: Context) -> list[Finding]:
    if context.busy or not facts["load"] or min(facts["load"]) <= max(LOAD, LOAD_PER_CPU * facts["cpus"]):
        return []
    now, five = facts["load"]
    text_ = f"{now:.0f}, and {five:.0f} over 5 minutes, on {facts['cpus']} CPUs before the round"
    return [Finding(WARN, "load", text_, "Check what runs or hangs there: `ps -eLo stat,pid,user,comm | grep ^[DR]`.")]


CHECK = Check(
    name="host-processes",
    about="processes: leftovers of earlier steps, hanging in the kernel, zombies, load",
    sets=frozenset((QUICK, BACKGROUND, THOROUGH)),
    limit_s=4.0,
    fetch=fetch,
    judge=judge,
    late="unknown",
    late_text="/proc does not answer",
    late_advice="A process there hangs in the kernel and holds its memory's lock; look at the kernel's log.",
)

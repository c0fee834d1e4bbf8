"""The clock: a plausible date, synchronised where a time daemon informs the kernel, not set meanwhile, fast to read.

The kernel's state depends on the daemon: chronyd without `rtcsync` and hosts of virtual machines keep good time without
informing it. So an unconfirmed clock is shown in the summary, and is no finding. Sources: adjtimex(2),
systemd-timesyncd.service(8), chrony.conf(5), the kernel's admin-guide/kernel-parameters (clocksource).
"""

from __future__ import annotations

import os
import struct
import time

from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Check, Context, never
from ftslurm.health.procfs import recent_processes
from ftslurm.health.sysfs import text
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import duration

OLDEST, NEWEST = 1735689600, 4102444800
"""Seconds of 2025-01-01 and 2100-01-01, the plausible range of dates."""
ERROR_S = 0.1
STEP_S = 1.0
SETTLED_S = 900.0
"""Time that daemons need after a boot."""
DAEMONS = {"ntpd": "ntpd", "systemd-timesyn": "systemd-timesyncd", "chronyd": "chronyd", "ptp4l": "ptp4l"}
SLOW_SOURCES = frozenset(("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies"))
_UNSYNCHRONISED = 0x40
_TIMEX = struct.Struct("@Illlli")
_ROOM = 512


def fetch(context: Context) -> Json:
    """Query the kernel, and search for a time daemon."""
    root = context.root
    source = text(f"{root}/sys/devices/system/clocksource/clocksource0/current_clocksource")
    running = {DAEMONS[one.name] for one in recent_processes(root).values() if one.name in DAEMONS}
    return {
        "now_s": time.time(),
        "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        "boot": text(f"{root}/proc/sys/kernel/random/boot_id"),
        "kernel": _adjtimex(),
        "daemons": sorted(running),
        "timesync": os.path.exists(f"{root}/run/systemd/timesync/synchronized"),
        "source": source,
        # Virtual machines cannot do better.
        "virtual": source in SLOW_SOURCES and "hypervisor" in (text(f"{root}/proc/cpuinfo") or ""),
    }


def _adjtimex() -> Json | None:
    """Return the kernel's clock state, errors in seconds; None without permission."""
    import ctypes

    buffer = ctypes.create_string_buffer(_ROOM)
    if ctypes.CDLL(None).adjtimex(buffer) < 0:
        return None
    _, _, _, largest, estimated, status = _TIMEX.unpack_from(buffer.raw)
    synchronised = not status & _UNSYNCHRONISED
    return {"synchronised": synchronised, "estimated_s": estimated / 1e6, "largest_s": largest / 1e6}


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Find a clock that is wrong, unsynchronised despite a daemon, or that was set."""
    found: list[Finding] = []
    if not OLDEST < facts["now_s"] < NEWEST:
        date = time.strftime("%Y-%m-%d %H:%M", time.gmtime(facts["now_s"]))
        text_ = f"its date is {date}: certificates, tickets and file times are invalid"
        found.append(Finding(FAIL, "clock", text_, "Set it, and look at NTP there: `chronyc tracking`."))
    found += _kept(facts)
    if before is not None and before["boot"] == facts["boot"]:
        step = (facts["now_s"] - facts["boot_s"]) - (before["now_s"] - before["boot_s"])
        if abs(step) > STEP_S:
            ago = duration(facts["boot_s"] - before["boot_s"])
            text_ = f"it was set {'forward' if step > 0 else 'back'} by {duration(abs(step))} in the last {ago}"
            found.append(Finding(WARN, "clock", text_, "Times in logs before and after do not compare; look at NTP."))
    if facts["source"] in SLOW_SOURCES and not facts["virtual"]:
        text_ = f"time is read from {facts['source']}, expected tsc: each reading costs a microsecond or more"
        found.append(Finding(WARN, "clock source", text_, "Look for 'tsc' in the kernel's log; a reboot may help."))
    return Judgement(_summary(facts), tuple(found))


def _kept(facts: Json) -> list[Finding]:
    state, daemons = facts["kernel"], facts["daemons"]
    if state is None:
        return []
    if state["synchronised"]:
        if state["estimated_s"] <= ERROR_S:
            return []
        off, most = duration(state["estimated_s"]), duration(ERROR_S)
        text_ = f"it is off by {off} by the kernel's estimate, expected less than {most}"
        return [Finding(WARN, "clock", text_, "Look at NTP there: `chronyc tracking`, `timedatectl`.")]
    # These two always inform the kernel when synchronised.
    silent = "ntpd" in daemons or ("systemd-timesyncd" in daemons and not facts["timesync"])
    if not silent or facts["boot_s"] < SETTLED_S:
        return []
    text_ = f"{' and '.join(daemons)} runs, but the clock is not synchronised"
    return [Finding(WARN, "clock", text_, "Look whether it reaches its servers: `ntpq -p`, `timedatectl`.")]


def _summary(facts: Json) -> str:
    state = facts["kernel"]
    if state is None:
        return "the kernel may not be asked about its clock here"
    if state["synchronised"]:
        return f"synchronised, estimated error {duration(state['estimated_s'])}"
    daemons = facts["daemons"]
    return f"the kernel does not know whether it is synchronised ({', '.join(daemons) or 'no time daemon'} here)"


CHECK = Check(
    name="host-clock",
    about="the clock: date, synchronised, set meanwhile, its source",
    sets=frozenset((QUICK, BACKGROUND, THOROUGH)),
    limit_s=2.0,
    fetch=fetch,
    judge=judge,
    may_hang=never,
)

"""CPU frequency: a governor or a limit that slows the CPUs, thermal throttling, offline CPUs.

"powersave" by itself is no fault: with intel_pstate, and amd-pstate in its active mode, it is the default, and permits
the highest frequency. Sources: the kernel's admin-guide/pm/{cpufreq,intel_pstate,amd-pstate}.
"""

from __future__ import annotations

from ftslurm.health.check import QUICK, THOROUGH, Absent, Check, Context
from ftslurm.health.checks.host_processes import cpu_numbers
from ftslurm.health.sysfs import names, number, text
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import WARN
from ftslurm.text import duration, plural

OWN_GOVERNORS = frozenset(("amd-pstate-epp", "amd_pstate_epp", "intel_pstate"))
"""Drivers whose "powersave" means "as fast as needed"."""
HELD_BACK = 0.8
"""Share of its highest frequency that a CPU should be allowed."""
THROTTLED_MS = 1000
_CPU = "/sys/devices/system/cpu"


def fetch(context: Context) -> Json:
    """Read the settings by policy (group of CPUs), and the throttling counters."""
    directory = f"{context.root}{_CPU}"
    cpus = [name for name in names(directory) if name.startswith("cpu") and name[3:].isdigit()]
    if not cpus:
        raise Absent("the kernel does not show its CPUs here")
    policies: dict[str, Json] = {}
    for name in (name for name in names(f"{directory}/cpufreq") if name.startswith("policy")):
        policy = f"{directory}/cpufreq/{name}"
        settings: Json = {key: text(f"{policy}/{key}") for key in ("scaling_driver", "scaling_governor")}
        settings |= {key: number(f"{policy}/{key}") for key in ("scaling_max_freq", "cpuinfo_max_freq", "bios_limit")}
        # Hundreds of CPUs mostly have equal settings.
        key = repr(settings)
        policies.setdefault(key, {**settings, "cpus": 0, "first": name})["cpus"] += 1
    throttle = [f"{directory}/{cpu}/thermal_throttle/package_throttle" for cpu in cpus]
    return {
        "policies": list(policies.values()),
        "highest_pct": number(f"{directory}/intel_pstate/max_perf_pct"),
        "throttled": max((number(f"{at}_count") or 0 for at in throttle), default=0),
        "throttled_ms": max((number(f"{at}_total_time_ms") or 0 for at in throttle), default=0),
        "boot": text(f"{context.root}/proc/sys/kernel/random/boot_id"),
        "off": _off(directory),
    }


def _off(directory: str) -> list[int]:
    """Return the offline CPUs, except hyperthreads, which are switched off on purpose."""
    if text(f"{directory}/smt/active") == "0" or text(f"{directory}/smt/control") in ("off", "forceoff"):
        return []
    present, online = text(f"{directory}/present"), text(f"{directory}/online")
    return sorted(cpu_numbers(present) - cpu_numbers(online)) if present and online else []


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Find limits of the CPUs."""
    found: list[Finding] = []
    for policy in facts["policies"]:
        found += _policy(policy)
    if (highest := facts["highest_pct"]) is not None and highest < 100 * HELD_BACK:
        text_ = f"intel_pstate allows {highest} % of the highest performance"
        found.append(Finding(WARN, "CPUs", text_, "Write 100 to intel_pstate/max_perf_pct, or find out what set it."))
    if before is not None and before["boot"] == facts["boot"]:
        times, ms = (facts[key] - before[key] for key in ("throttled", "throttled_ms"))
        if ms > THROTTLED_MS or (times > 0 and not facts["throttled_ms"]):
            long = f", {duration(ms / 1000)} in all" if ms else ""
            text_ = f"they were throttled for heat {times} times since the last check{long}"
            found.append(Finding(WARN, "CPUs", text_, "Look at fans, heat sinks and the room's temperature."))
    if facts["off"]:
        text_ = f"{plural(len(facts['off']), 'CPU')} of the node are switched off, the first is CPU {facts['off'][0]}"
        found.append(Finding(WARN, "CPUs", text_, "Look for machine checks in the kernel's log."))
    if not facts["policies"]:
        return Judgement("the kernel does not set the frequency here", tuple(found))
    shown = sorted({f"{one['scaling_driver']} {one['scaling_governor']}" for one in facts["policies"]})
    return Judgement(", ".join(shown), tuple(found))


def _policy(policy: Json) -> list[Finding]:
    found: list[Finding] = []
    subject = plural(policy["cpus"], "CPU") + f" from {policy['first']} on"
    if policy["scaling_governor"] == "powersave" and policy["scaling_driver"] not in OWN_GOVERNORS:
        text_ = f"the governor powersave with {policy['scaling_driver']} holds them at their lowest frequency"
        found.append(Finding(WARN, subject, text_, "Set it: `cpupower frequency-set -g performance`."))
    highest = policy["cpuinfo_max_freq"]
    for key, limiter in (("scaling_max_freq", "a setting"), ("bios_limit", "the firmware")):
        if highest and policy[key] is not None and policy[key] < HELD_BACK * highest:
            text_ = f"{limiter} allows {policy[key] / 1e6:.1f} GHz, they could run at {highest / 1e6:.1f} GHz"
            advice = {
                "a setting": "Set it: `cpupower frequency-set -u`.",
                "the firmware": "Look at power supply, power cap and cooling of the node.",
            }
            found.append(Finding(WARN, subject, text_, advice[limiter]))
    return found


CHECK = Check(
    name="host-frequency",
    about="CPU frequency: governor, limits, throttled for heat, CPUs off",
    sets=frozenset((QUICK, THOROUGH)),
    limit_s=2.0,
    fetch=fetch,
    judge=judge,
    late="unknown",
    late_text="/sys does not answer",
)

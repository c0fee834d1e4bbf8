"""Are all AMD GPUs of Slurm's allocation available to this job?

The compute driver lists the usable devices in /sys/class/kfd/kfd/topology/nodes; those hidden by a cgroup are
unreadable there.
"""

from __future__ import annotations

from ftslurm.health import nvml, sysfs
from ftslurm.health.check import Absent, Context
from ftslurm.health.checks.amd_ras import VENDOR, amd_check
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, UNKNOWN, WARN
from ftslurm.text import plural

_RESTART = "Have the node drained and restarted; look at the kernel log for amdgpu's lines."


def fetch(context: Context) -> Json:
    """Count compute devices, and GPUs on the PCI bus."""
    pci = nvml.pci_gpus(context.root, VENDOR)
    directory, buses = f"{context.root}/sys/class/kfd/kfd/topology/nodes", []
    for node in sysfs.names(directory):
        lines = nvml.read_text(f"{directory}/{node}/properties").splitlines()
        facts = dict(line.split(None, 1) for line in lines if " " in line)
        if int(facts.get("simd_count", 0)):
            location, domain = int(facts.get("location_id", 0)), int(facts.get("domain", 0))
            buses.append(f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}")
    if not pci and not buses:
        raise Absent("no AMD GPU here")
    return {
        "buses": sorted(buses),
        "pci": sorted(bus for bus, driver in pci.items() if driver == "amdgpu"),
        "undriven": sorted(bus for bus, driver in pci.items() if not driver),
        "kfd": bool(sysfs.names(directory)),
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Compare with Slurm's allocation, and with the previous run."""
    given, number = nvml.given(context.environ), len(facts["buses"])
    summary = plural(number, "AMD GPU") + (f" of {given}" if given and given != number else "")
    lost = sorted(set((before or facts)["buses"]) - set(facts["buses"]))
    if lost:
        text = f"{plural(len(lost), 'AMD GPU')} gone since the last check: {', '.join(lost)}"
        return Judgement(summary, (Finding(FAIL, "", text, _RESTART),))
    if given and not facts["kfd"]:
        if facts["undriven"] and not facts["pci"]:
            text = f"the driver amdgpu is not loaded, {plural(len(facts['undriven']), 'AMD GPU')} on the PCI bus"
            return Judgement(summary, (Finding(FAIL, "", text, "Look why: `dmesg`, `modprobe amdgpu`."),))
        text = "AMD's compute driver (kfd) cannot be seen from here"
        return Judgement(summary, (Finding(UNKNOWN, "", text, "In a container, let it have /dev/kfd."),))
    if given and number < given:
        text = f"{number} of the {plural(given, 'GPU')} that Slurm gave can be used"
        missing = [bus for bus in facts["pci"] if bus not in facts["buses"]]
        if len(missing) == given - number:
            text += f"; on the PCI bus, but not usable: {', '.join(missing)}"
        return Judgement(summary, (Finding(FAIL, "", text, _RESTART),))
    visible = (context.environ.get("ROCR_VISIBLE_DEVICES") or context.environ.get("HIP_VISIBLE_DEVICES") or "").split(
        ","
    )
    beyond = [name for name in visible if name.strip().isdigit() and int(name) >= number]
    if beyond and number:
        text = f"the job's variables name GPU {', '.join(beyond)}, there are {number}"
        advice = "Do not set ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES by hand under Slurm."
        return Judgement(summary, (Finding(WARN, "", text, advice),))
    return Judgement(summary)


CHECK = amd_check("amd-count", "each AMD GPU allocated by Slurm exists", fetch, judge)

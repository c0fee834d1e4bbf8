"""Are all GPUs of Slurm's allocation available to this job, and do they respond?

A broken GPU often just vanishes: the next round then dies with "invalid device ordinal", or runs with one rank less.
That resembles a cgroup that hides the GPU; the difference is whether its device file can be opened.
"""

from __future__ import annotations

import os

from ftslurm.health import nvml
from ftslurm.health.check import SETS, Absent, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, UNKNOWN, WARN
from ftslurm.text import plural

_RESTART = "Have the node drained and restarted; look for Xid 79 in the kernel log."


def fetch(context: Context) -> Json:
    """Access every GPU, and search the PCI bus for those that NVML does not list."""
    try:
        all_gpus = nvml.started().gpus()
    except nvml.Problem as problem:
        raise Absent(f"NVML does not start ({nvml.WORDS.get(str(problem), str(problem))}): see gpu-driver") from None
    except Absent:
        if not nvml.given(context.environ) or nvml.pci_gpus(context.root, "0x1002"):
            raise
        return {"nvml": False, "gpus": [], "hidden": 0, "missing": []}
    found = [_touch(gpu) for gpu in all_gpus if gpu.errors.get("handle") not in nvml.HIDDEN]
    known = {gpu["bus"] for gpu in found}
    pci = nvml.pci_gpus(context.root)
    missing = [bus for bus, driver in pci.items() if driver == "nvidia" and bus not in known]
    missing = [bus for bus in missing if _allowed(context.root, bus)] if None not in known else []
    return {"nvml": True, "gpus": found, "hidden": len(all_gpus) - len(found), "missing": missing}


def _touch(gpu: nvml.Gpu) -> Json:
    mig = gpu.query("mig", "MigMode")
    return gpu.facts(
        uuid=nvml.text(gpu.query("uuid", "UUID")),
        name=nvml.text(gpu.query("name", "Name")),
        celsius=gpu.query("temperature", "Temperature", 0),
        memory=getattr(gpu.query("memory", "MemoryInfo"), "total", None),
        mig=_mig_devices(gpu) if mig and mig[0] else None,
    )


def _mig_devices(gpu: nvml.Gpu) -> list[str]:
    found = []
    for index in range(gpu.query("mig", "MaxMigDeviceCount") or 0):
        handle = gpu.query("mig", "MigDeviceHandleByIndex", index)
        if handle is not None:
            uuid = nvml.text(nvml.Gpu(gpu.pynvml, gpu.number, handle).query("uuid", "UUID"))
            found.append(uuid or f"MIG {gpu.number}:{index}")
    return found


def _allowed(root: str, bus: str) -> bool:
    """Return whether this process may use the GPU at that address: cgroups and containers hide other jobs' GPUs."""
    information = nvml.read_text(f"{root}/proc/driver/nvidia/gpus/{bus}/information")
    minor = [line.split(":")[1].strip() for line in information.splitlines() if line.startswith("Device Minor:")]
    if not minor:
        return False
    try:
        os.close(os.open(f"{root}/dev/nvidia{minor[0]}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except (PermissionError, FileNotFoundError):
        return False
    except OSError:
        pass  # the driver itself refuses: it lists the GPU, but cannot use it
    return True


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Compare with Slurm's allocation, the job's variables, and the PCI bus."""
    given = nvml.given(context.environ)
    if not facts["nvml"]:
        text = f"Slurm gave {plural(given or 0, 'GPU')}, none can be seen from here"
        return Judgement(text, (Finding(UNKNOWN, "", text, "In a container, let it have the GPUs and NVML."),))
    gpus = facts["gpus"]
    broken = [gpu for gpu in gpus if nvml.LOST & set(gpu["errors"].values())]
    units = sum(1 if gpu["mig"] is None else len(gpu["mig"]) for gpu in gpus if "mig" in gpu and gpu not in broken)
    migs = any(gpu.get("mig") is not None for gpu in gpus)
    noun = "GPU or MIG device" if migs else "GPU"
    own = nvml.own(context.environ, gpus)
    findings = [
        _unreachable(gpu, gpu in broken and (own is None or gpu["gpu"] in own)) for gpu in gpus if gpu["errors"]
    ]
    if given and not gpus and not facts["missing"]:
        # A step without GPUs (srun --gres=none) inherits the number of its job's.
        text = f"Slurm gave {plural(given, 'GPU')} to the job, NVML shows none of them here"
        findings.append(Finding(UNKNOWN, "", text, "Look at how the step was started: `srun --gpus-per-node=…`."))
    elif given is not None and units < given:
        text = f"{units} of the {plural(given, noun)} that Slurm gave can be used"
        findings.append(Finding(FAIL, "", text + _named(facts["missing"]), _RESTART))
    elif facts["missing"] and given is None:
        text = f"{plural(units, noun)} can be used, {len(facts['missing'])} more should be there"
        findings.append(Finding(FAIL, "", text + _named(facts["missing"]), _RESTART))
    findings += _visible(context.environ.get("CUDA_VISIBLE_DEVICES"), facts)
    summary = plural(units, noun) + (f" of {given}" if given is not None and given != units else "")
    if migs:
        summary += f" on {plural(len(gpus), 'GPU')} with MIG"
    return Judgement(summary, tuple(findings))


def _unreachable(gpu: Json, broken: bool) -> Finding:
    text = f"cannot be used: {nvml.error_words(gpu['errors'])}{nvml.where(gpu)}"
    if broken:
        return Finding(FAIL, nvml.subject(gpu), text, _RESTART)
    text = f"answers with an error: {nvml.error_words(gpu['errors'])}{nvml.where(gpu)}"
    return Finding(WARN, nvml.subject(gpu), text, "Look at `nvidia-smi -q`.")


def _named(missing: list[str]) -> str:
    return f"; on the PCI bus, but not usable: {', '.join(missing)}" if missing else ""


def _visible(value: str | None, facts: Json) -> list[Finding]:
    """Judge CUDA_VISIBLE_DEVICES: indices, or (the beginnings of) UUIDs of GPUs and MIG devices."""
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    if not names or names[0] in ("-1", "NoDevFiles"):
        return []
    uuids = [gpu.get("uuid") for gpu in facts["gpus"]]
    migs = [uuid for gpu in facts["gpus"] for uuid in gpu.get("mig") or ()]
    known = [uuid for uuid in [*uuids, *migs] if uuid]
    number, findings = len(facts["gpus"]), []
    for name in names:
        if name.isdigit():
            # Whether an index counts all GPUs or this job's only depends on the site's cgroups: no ground to fail.
            if int(name) >= max(number + facts["hidden"], len(migs)):
                text = f"CUDA_VISIBLE_DEVICES={value} names GPU {name}, NVML shows {plural(number, 'GPU')}"
                findings.append(Finding(WARN, "", text, "Do not set CUDA_VISIBLE_DEVICES by hand under Slurm."))
        elif name.startswith("MIG-GPU-"):
            continue  # the old name of a MIG device, which NVML no longer provides
        elif None not in uuids and not any(uuid.startswith(name) for uuid in known):
            text = f"CUDA_VISIBLE_DEVICES names {name}, which is not there"
            findings.append(Finding(FAIL, name, text, _RESTART))
    return findings


CHECK = nvml.check("gpu-count", "each GPU allocated by Slurm exists and responds", SETS, fetch, judge, late=FAIL)

"""Does NVIDIA's driver work: is it loaded, does its library match, does it answer."""

from __future__ import annotations

import os

from ftslurm.health import nvml
from ftslurm.health.check import QUICK, THOROUGH, Absent, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, UNKNOWN, WARN
from ftslurm.text import plural

_ADVICE = {
    "LIB_RM_VERSION_MISMATCH": "The driver was updated: reload its kernel modules or restart the node.",
    "DRIVER_NOT_LOADED": "Look why the kernel module nvidia is not loaded: `dmesg`, `modprobe nvidia`.",
    "NO_PERMISSION": "Look at the rights of /dev/nvidiactl.",
}


def fetch(context: Context) -> Json:
    """Start NVML; if that fails, search for the expected parts."""
    root = context.root
    here = {
        "pci": [bus for bus, driver in nvml.pci_gpus(root).items() if driver in ("", "nvidia")],
        "device": os.path.exists(f"{root}/dev/nvidiactl"),
        "module": nvml.read_text(f"{root}/sys/module/nvidia/version") or None,
    }
    try:
        driver = nvml.started()
        count, version = driver.call("nvmlDeviceGetCount"), nvml.text(driver.call("nvmlSystemGetDriverVersion"))
        return {**here, "error": None, "count": count, "driver": version}
    except nvml.Problem as problem:
        return {**here, "error": str(problem), "library": _library()}
    except Absent:
        # The library is missing, mostly in a container: relevant only for a job with allocated GPUs.
        if here["device"] and here["pci"] and nvml.given(context.environ):
            return {**here, "error": "LIBRARY_NOT_FOUND"}
        raise


def _library() -> str | None:
    """Return the version of NVML's library, from the name of the file that was loaded."""
    for line in nvml.read_text("/proc/self/maps").splitlines():
        name = os.path.basename(line)
        if name.startswith("libnvidia-ml.so.") and name.count(".") > 2:
            return name.removeprefix("libnvidia-ml.so.")
    return None


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Is NVML expected to work here, and does it?"""
    error = facts["error"]
    if error is None:
        return Judgement(f"driver {facts['driver']}, {plural(facts['count'], 'GPU')}")
    given, pci = nvml.given(context.environ), facts["pci"]
    if error == "DRIVER_NOT_LOADED" and not given and not facts["device"]:
        # Irrelevant for a CPU job.
        return Judgement("no NVIDIA driver is loaded, and this job was given no GPU")
    if error in ("LIBRARY_NOT_FOUND", "NO_PERMISSION"):
        text = (
            "there are NVIDIA GPUs, but not NVML's library (libnvidia-ml.so.1)"
            if error == "LIBRARY_NOT_FOUND"
            else "no permission to talk to the NVIDIA driver"
        )
        advice = _ADVICE.get(error, "In a container, let it have the driver's libraries.")
        return Judgement(text, (Finding(UNKNOWN, "", text, advice),))
    text = f"NVML does not start: {nvml.WORDS.get(error, error.lower().replace('_', ' '))}"
    if error == "LIB_RM_VERSION_MISMATCH":
        versions = (f"kernel module {facts['module']}", f"library {facts.get('library')}")
        text += f" ({', '.join(version for version in versions if not version.endswith('None'))})"
    elif pci:
        text += f"; {plural(len(pci), 'NVIDIA GPU')} on the PCI bus ({pci[0]}{', …' if len(pci) > 1 else ''})"
    advice = _ADVICE.get(error, nvml.LATE_ADVICE)
    status = FAIL if given else WARN
    return Judgement(text.replace(" ()", ""), (Finding(status, "", text.replace(" ()", ""), advice),))


CHECK = nvml.check(
    "gpu-driver",
    "NVIDIA's driver is loaded, matches its library, and answers",
    (QUICK, THOROUGH),
    fetch,
    judge,
    late=FAIL,
)

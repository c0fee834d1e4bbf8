"""The recovery action that the driver requests for a GPU (driver R565 and newer).

Source: NVIDIA's "GPU Memory Error Management", and nvmlDeviceGpuRecoveryAction_t. To drain means to start nothing
new on the GPU: NVIDIA's own device plugin and resiliency extension also stop using such a GPU.
"""

from __future__ import annotations

from ftslurm.health import nvml
from ftslurm.health.check import SETS, Absent, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import plural

_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_RESET = "End all programs on the GPU and reset it: `nvidia-smi -r`."
_REBOOT = "Have the node drained and restarted."
_ACTIONS = {
    1: (FAIL, "the driver requests a GPU reset", _RESET),
    2: (FAIL, "the driver requests a restart of the node", _REBOOT),
    3: (FAIL, "the driver requests the end of programs with peer-to-peer access", "End all programs on the GPU once."),
    4: (FAIL, "the driver requests no new programs on the GPU, and then a reset", _RESET),
    5: (
        WARN,
        "the driver requests recovery of the IMEX domain",
        "Look at the nvidia-imex service on the domain's nodes.",
    ),
    6: (FAIL, "the driver requests a reset of the GPU's PCIe bus", _REBOOT),
    7: (FAIL, "the driver requests a restart of the system", _REBOOT),
}


def fetch(context: Context) -> Json:
    """Read the recovery action of each GPU."""
    facts = nvml.each(context.environ, lambda gpu: {"action": gpu.fields(_FIELD)[0]})
    if all(gpu.get("action") is None and not gpu["errors"] for gpu in facts["gpus"]):
        raise Absent("this driver has no recovery action")
    return facts


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge by the driver's request."""
    findings = []
    for gpu in facts["gpus"]:
        if action := gpu.get("action"):
            unknown = (
                WARN,
                f"the driver requests an unknown action (recovery action {action})",
                "Look at `nvidia-smi -q`.",
            )
            status, text, advice = _ACTIONS.get(action, unknown)
            findings.append(Finding(status, nvml.subject(gpu), text + nvml.where(gpu), advice))
    summary = f"{plural(len(facts['gpus']), 'GPU')}, " + (findings[0].text if findings else "nothing to recover")
    return Judgement(summary, (*findings, *nvml.unread(facts)))


CHECK = nvml.check("gpu-recovery", "the driver's recovery action for a GPU: reset, restart", SETS, fetch, judge)

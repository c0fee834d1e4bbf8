"""Uncorrected memory errors of the GPUs.

Volatile counters count since the driver was loaded or the GPU was reset, aggregate ones over the GPU's life. After an
uncorrected error the driver reports, since R565, whether the GPU may be used again (the recovery action); with an
older driver a GPU with such an error is assumed to need a reset.
"""

from __future__ import annotations

from ftslurm.health import nvml
from ftslurm.health.check import SETS, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNCORRECTED, _CORRECTED = 1, 0
_VOLATILE, _AGGREGATE = 0, 1
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_RESET = "Reset the GPU, or have the node drained."
_REPLACE = "Have the GPU replaced."


def fetch(context: Context) -> Json:
    """Read the counters of each GPU; those of a MIG device are its GPU's."""
    return nvml.each(context.environ, _facts)


def _facts(gpu: nvml.Gpu) -> Json:
    mode = gpu.query("ecc mode", "EccMode")
    return {
        "mode": mode[0] if mode else None,
        "pending": mode[1] if mode else None,
        "volatile": gpu.query("ecc", "TotalEccErrors", _UNCORRECTED, _VOLATILE),
        "aggregate": gpu.query("ecc", "TotalEccErrors", _UNCORRECTED, _AGGREGATE),
        "corrected": gpu.query("ecc", "TotalEccErrors", _CORRECTED, _VOLATILE),
        "sram_exceeded": _sram_exceeded(gpu),
        "recovery": gpu.fields(_RECOVERY_ACTION)[0],
    }


def _sram_exceeded(gpu: nvml.Gpu) -> bool | None:
    import ctypes

    make: Any = getattr(gpu.pynvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    if make is None:
        return None
    status = make()
    if gpu.query("sram", "SramEccErrorStatus", ctypes.byref(status)) is None:
        return None
    return bool(status.bThresholdExceeded)


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Errors since the last reset count; earlier ones are shown."""
    gpus = facts["gpus"]
    findings = [finding for gpu in gpus for finding in _judge(gpu, nvml.earlier(gpu, before))]
    with_ecc = [gpu for gpu in gpus if gpu.get("mode")]
    for gpu in gpus:
        if gpu.get("mode") == 0 and with_ecc:
            text = f"ECC is off, on {plural(len(with_ecc), 'other GPU')} of this node it is on{nvml.where(gpu)}"
            findings.append(Finding(WARN, nvml.subject(gpu), text, "Switch ECC on: `nvidia-smi -e 1`, then a reset."))
    bad = sum(gpu.get("volatile") or 0 for gpu in gpus)
    lifetime = sum(gpu.get("aggregate") or 0 for gpu in gpus)
    errors = plural(bad, "uncorrected ECC error") if bad else "no uncorrected ECC errors"
    summary = f"{plural(len(gpus), 'GPU')}, {errors}"
    if not any(gpu.get("volatile") is not None for gpu in gpus):
        summary = f"{plural(len(gpus), 'GPU')} without ECC"
    elif lifetime > bad:
        summary += f", {lifetime} over their lives"
    return Judgement(summary, (*findings, *nvml.unread(facts)))


def _judge(gpu: Json, earlier: Json | None) -> list[Finding]:
    findings = []
    errors = gpu.get("volatile") or 0
    if errors:
        new = nvml.growth(errors, (earlier or {}).get("volatile"))
        text = f"{plural(errors, 'uncorrected ECC error')} since the last reset"
        text += f", {new} of them new" if new else ""
        text += f" ({gpu['aggregate']} over its life)" if (gpu.get("aggregate") or 0) > errors else ""
        usable = gpu.get("recovery") == 0
        text += "; the driver permits its use" if usable else ""
        findings.append(Finding(WARN if usable else FAIL, nvml.subject(gpu), text + nvml.where(gpu), _RESET))
    if gpu.get("sram_exceeded"):
        text = f"uncorrected SRAM errors exceed NVIDIA's threshold for a replacement{nvml.where(gpu)}"
        findings.append(Finding(FAIL, nvml.subject(gpu), text, _REPLACE))
    if gpu.get("mode") is not None and gpu.get("mode") != gpu.get("pending"):
        state = "on" if gpu["pending"] else "off"
        text = f"ECC will be {state} after the next reset, now it is not{nvml.where(gpu)}"
        findings.append(Finding(WARN, nvml.subject(gpu), text, "Reset the GPU when convenient."))
    return findings


CHECK = nvml.check("gpu-ecc", "uncorrected memory errors of the GPUs", SETS, fetch, judge)

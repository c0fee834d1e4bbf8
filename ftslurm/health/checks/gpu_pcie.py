"""The GPUs' PCIe links: width and generation against what GPU and slot can do together, and repeated packets.

A link that is not used drops to a lower generation to save power; its width stays. So the generation is judged only of
a GPU that is not idle.
"""

from __future__ import annotations

import time

from ftslurm.health import nvml
from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Check, Context
from ftslurm.health.verdict import FAIL, WARN, Finding, Json, Judgement

REPLAYS_PER_MINUTE = 8.0
"""More are worth a warning; DCGM's health watch has the same bound."""
_IDLE = 0x1
_FATAL = 180  # NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR
_SEAT = "Have the GPU, its riser and its slot looked at."


def fetch(context: Context) -> Json:
    """Read the state of each GPU's link."""
    facts = nvml.each(context.environ, _facts)
    facts["monotonic_s"] = time.monotonic()
    return facts


def _facts(gpu: nvml.Gpu) -> Json:
    return {
        "width": gpu.ask("width", "CurrPcieLinkWidth"),
        "max_width": gpu.ask("width", "MaxPcieLinkWidth"),
        "generation": gpu.ask("generation", "CurrPcieLinkGeneration"),
        "max_generation": gpu.ask("generation", "MaxPcieLinkGeneration"),
        "performance": gpu.ask("performance", "PerformanceState PowerState"),
        "reasons": gpu.ask("clocks", "CurrentClocksEventReasons CurrentClocksThrottleReasons"),
        "replays": gpu.ask("replays", "PcieReplayCounter"),
        "fatal": gpu.fields(_FATAL)[0],
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Compare with the maximum, and with the look before."""
    minutes = max(1.0, facts["monotonic_s"] - (before or facts)["monotonic_s"]) / 60
    findings = [finding for gpu in facts["gpus"] for finding in _judge(gpu, nvml.earlier(gpu, before), minutes)]
    widths = sorted({f"x{gpu['width']}" for gpu in facts["gpus"] if gpu.get("width")})
    summary = nvml.counted(len(facts["gpus"]), "GPU") + (f", PCIe {' and '.join(widths)}" if widths else "")
    return Judgement(summary, (*findings, *nvml.unread(facts)))


def _judge(gpu: Json, earlier: Json | None, minutes: float) -> list[Finding]:
    who, at, findings = nvml.subject(gpu), nvml.where(gpu), []
    width, widest = gpu.get("width"), gpu.get("max_width")
    if width and widest and width < widest:
        text = f"PCIe link x{width}, x{widest} is possible{at}"
        findings.append(Finding(FAIL if width * 4 <= widest else WARN, who, text, _SEAT))
    generation, newest = gpu.get("generation"), gpu.get("max_generation")
    # Without knowing whether it is idle, a low generation says nothing.
    performance, reasons = gpu.get("performance"), gpu.get("reasons")
    working = performance is not None and performance <= 2 and reasons is not None and not reasons & _IDLE
    if generation and newest and generation < newest and working:
        text = f"PCIe generation {generation} at work, {newest} is possible{at}"
        findings.append(Finding(WARN, who, text, _SEAT))
    replays = nvml.growth(gpu.get("replays"), (earlier or {}).get("replays"))
    if replays > REPLAYS_PER_MINUTE * minutes and replays > REPLAYS_PER_MINUTE:
        text = f"{replays} PCIe packets repeated since the look before, {replays / minutes:.0f} a minute{at}"
        findings.append(Finding(WARN, who, text, _SEAT))
    if fatal := nvml.growth(gpu.get("fatal"), (earlier or {}).get("fatal")):
        text = f"{nvml.counted(fatal, 'fatal PCIe error')} since the look before{at}"
        findings.append(Finding(WARN, who, text, _SEAT))
    return findings


CHECK = Check(
    "gpu-pcie",
    "width, generation and errors of the GPUs' PCIe links",
    frozenset((QUICK, BACKGROUND, THOROUGH)),
    nvml.LIMIT_S,
    fetch,
    judge,
    late=WARN,
    late_text=nvml.LATE_TEXT,
    late_advice=nvml.LATE_ADVICE,
)

"""The GPUs' PCIe links: width and generation against what GPU and slot can do together, and repeated packets.

To save power an idle link drops to a lower generation, and may drop lanes too: by nvidia-smi both "may be reduced when
the GPU is not in use". So both are judged for a busy GPU. The width of an idle one is only compared with those of the
node's other GPUs, and never sufficient to leave the node out.
"""

from __future__ import annotations

import time

from ftslurm.health import nvml
from ftslurm.health.check import SETS, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import plural

REPLAYS_PER_MINUTE = 8.0
"""More cause a warning; DCGM's health watch has the same bound."""
FEW = 4
"""A busy GPU with this fraction of its lanes (1/N), or fewer, is not to be used: its transfers take four times as long,
and all other ranks wait for it. Half of the lanes cost little, if anything."""
_IDLE = 0x1
_FATAL = 180  # NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR
_SEAT = "Have the GPU, its riser and its slot inspected."


def fetch(context: Context) -> Json:
    """Read the state of each GPU's link."""
    facts = nvml.each(context.environ, _facts)
    facts["monotonic_s"] = time.monotonic()
    return facts


def _facts(gpu: nvml.Gpu) -> Json:
    return {
        "width": gpu.query("width", "CurrPcieLinkWidth"),
        "max_width": gpu.query("width", "MaxPcieLinkWidth"),
        "generation": gpu.query("generation", "CurrPcieLinkGeneration"),
        "max_generation": gpu.query("generation", "MaxPcieLinkGeneration"),
        "performance": gpu.query("performance", "PerformanceState PowerState"),
        "reasons": gpu.query("clocks", "CurrentClocksEventReasons CurrentClocksThrottleReasons"),
        "used_percent": getattr(gpu.query("utilization", "UtilizationRates"), "gpu", None),
        "replays": gpu.query("replays", "PcieReplayCounter"),
        "fatal": gpu.fields(_FATAL)[0],
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Compare with the maximum, and with the previous run."""
    minutes = max(1.0, facts["monotonic_s"] - (before or facts)["monotonic_s"]) / 60
    gpus = facts["gpus"]
    findings = [finding for gpu in gpus for finding in _judge(gpu, gpus, nvml.earlier(gpu, before), minutes)]
    widths = sorted({f"x{gpu['width']}" for gpu in gpus if gpu.get("width")})
    summary = plural(len(gpus), "GPU") + (f", PCIe {' and '.join(widths)}" if widths else "")
    return Judgement(summary, (*findings, *nvml.unread(facts)))


def _judge(gpu: Json, gpus: list[Json], earlier: Json | None, minutes: float) -> list[Finding]:
    subject, at = nvml.subject(gpu), nvml.where(gpu)
    findings = [] if (narrow := _narrow(gpu, gpus)) is None else [narrow]
    generation, newest = gpu.get("generation"), gpu.get("max_generation")
    if generation and newest and generation < newest and _working(gpu):
        text = f"PCIe generation {generation} at work, {newest} is possible{at}"
        findings.append(Finding(WARN, subject, text, _SEAT))
    replays = nvml.growth(gpu.get("replays"), (earlier or {}).get("replays"))
    if replays > REPLAYS_PER_MINUTE * minutes and replays > REPLAYS_PER_MINUTE:
        text = f"{replays} PCIe packets repeated since the last check, {replays / minutes:.0f} a minute{at}"
        findings.append(Finding(WARN, subject, text, _SEAT))
    if fatal := nvml.growth(gpu.get("fatal"), (earlier or {}).get("fatal")):
        text = f"{plural(fatal, 'fatal PCIe error')} since the last check{at}"
        findings.append(Finding(WARN, subject, text, _SEAT))
    return findings


def _working(gpu: Json) -> bool:
    """Return whether the GPU is certainly in use now; a raised clock because of allocated memory does not count."""
    performance, reasons = gpu.get("performance"), gpu.get("reasons")
    if performance is None or performance > 2:
        return False
    return not reasons & _IDLE if reasons is not None else (gpu.get("used_percent") or 0) > 0


def _narrow(gpu: Json, gpus: list[Json]) -> Finding | None:
    width, widest = gpu.get("width"), gpu.get("max_width")
    if not width or not widest or width >= widest:
        return None
    subject, at = nvml.subject(gpu), nvml.where(gpu)
    if _working(gpu):
        text = f"PCIe link x{width} at work, x{widest} is possible{at}"
        return Finding(FAIL if width * FEW <= widest else WARN, subject, text, _SEAT)
    same = [one["width"] for one in gpus if one is not gpu and one.get("width") and _as_idle(one, gpu)]
    full = sum(other >= widest for other in same)
    if full * 2 <= len(same):
        return None
    text = f"PCIe link x{width} while idle, x{widest} on {full} of the {len(same)} others just as idle{at}"
    return Finding(WARN, subject, text, _SEAT)


def _as_idle(one: Json, other: Json) -> bool:
    return not _working(one) and (one.get("performance") or 0) >= (other.get("performance") or 0)


CHECK = nvml.check("gpu-pcie", "width, generation and errors of the GPUs' PCIe links", SETS, fetch, judge)

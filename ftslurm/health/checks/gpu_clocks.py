"""Is a GPU slowed down by its hardware: heat, the power supply's brake, a power limit below the others'.

A software power cap is normal for a GPU at full load, and an idle one is slow by design: neither is a finding.
"""

from __future__ import annotations

from ftslurm.health import nvml
from ftslurm.health.check import SETS, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import plural

IDLE, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x8, 0x20, 0x40, 0x80
_SHUTDOWN, _SLOWDOWN = 0, 1  # NVML_TEMPERATURE_THRESHOLD_*
_COOL = "Look at the node's cooling, and whether its neighbours are as hot."
_POWER = "Have the node's power supply and power cables inspected."


def fetch(context: Context) -> Json:
    """Read the reasons for reduced clocks, and the temperatures."""
    return nvml.each(context.environ, _facts)


def _facts(gpu: nvml.Gpu) -> Json:
    return {
        "reasons": gpu.query("clocks", "CurrentClocksEventReasons CurrentClocksThrottleReasons"),
        "celsius": gpu.query("temperature", "Temperature", 0),
        "slowdown_celsius": gpu.query("thresholds", "TemperatureThreshold", _SLOWDOWN),
        "shutdown_celsius": gpu.query("thresholds", "TemperatureThreshold", _SHUTDOWN),
        "margin_celsius": gpu.query("margin", "MarginTemperature"),
        "limit_mw": gpu.query("power", "PowerManagementLimit"),
        "default_limit_mw": gpu.query("power", "PowerManagementDefaultLimit"),
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """A slowdown in two consecutive runs is no short peak."""
    gpus = facts["gpus"]
    findings = [finding for gpu in gpus for finding in _judge(gpu, nvml.earlier(gpu, before) or {})]
    limits = sorted(gpu["limit_mw"] for gpu in gpus if gpu.get("limit_mw"))
    usual = limits[len(limits) // 2] if limits else 0
    for gpu in gpus:
        if usual and 0 < (gpu.get("limit_mw") or 0) < 0.9 * usual:
            watts = f"{gpu['limit_mw'] / 1000:.0f} W, most GPUs of this node have {usual / 1000:.0f} W"
            text = f"power limit {watts}{nvml.where(gpu)}"
            advice = "Set it as on the others: `nvidia-smi -pl`."
            findings.append(Finding(WARN, nvml.subject(gpu), text, advice))
    celsius = [gpu["celsius"] for gpu in gpus if gpu.get("celsius") is not None]
    summary = plural(len(gpus), "GPU") + (f", at most {max(celsius)} °C" if celsius else "")
    return Judgement(summary, (*findings, *nvml.unread(facts)))


def slowed_by(reasons: int | None) -> str | None:
    """Return the reason of a GPU's slowdown as text; None: none that matters."""
    if not reasons or reasons & IDLE:
        return None
    if reasons & HW_THERMAL:
        return "heat (hardware slowdown)"
    if reasons & POWER_BRAKE:
        return "the power supply (power brake)"
    if reasons & HW_SLOWDOWN:
        return "its hardware (heat or power)"
    return "heat (software slowdown)" if reasons & SW_THERMAL else None


def _judge(gpu: Json, earlier: Json) -> list[Finding]:
    subject, at, findings = nvml.subject(gpu), nvml.where(gpu), []
    celsius, slowdown, margin = gpu.get("celsius"), gpu.get("slowdown_celsius"), gpu.get("margin_celsius")
    degrees = f" at {celsius} °C" if celsius is not None else ""
    cause = slowed_by(gpu.get("reasons"))
    if cause:
        again = slowed_by(earlier.get("reasons")) == cause and "software" not in cause
        text = f"slowed down by {cause}{degrees}{', as at the last check' if again else ''}{at}"
        advice = _POWER if "power" in cause else _COOL
        findings.append(Finding(FAIL if again else WARN, subject, text, advice))
    if celsius is None:
        return findings
    if (shutdown := gpu.get("shutdown_celsius")) and celsius >= shutdown:
        text = f"{celsius} °C: it switches itself off at {shutdown} °C{at}"
        findings.append(Finding(FAIL, subject, text, _COOL))
    elif slowdown and celsius >= slowdown and margin is None:
        findings.append(Finding(WARN, subject, f"{celsius} °C: it slows down from {slowdown} °C{at}", _COOL))
    elif margin is not None and margin <= 0:
        findings.append(Finding(WARN, subject, f"{celsius} °C: it slows down from {celsius + margin} °C{at}", _COOL))
    return findings


CHECK = nvml.check("gpu-clocks", "GPUs slowed down by heat, power or their limits", SETS, fetch, judge)

"""NVLink: links that are up on the other GPUs of the node and down on one, errors that grow, the fabric's state.

The expected links are unknown: on some nodes only pairs of GPUs are bridged. So a GPU is compared with the others of
its kind, and with the previous run. With MIG the links are off on purpose.
"""

from __future__ import annotations

from collections import Counter

from ftslurm.health import nvml
from ftslurm.health.check import SETS, Absent, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ERRORS = 100
"""Repaired errors between two runs that cause a warning; a single recovery does."""
_MOST_LINKS = 36
_TOTALS = {38: "crc", 45: "crc", 52: "replays", 59: "recoveries"}  # over all links; up to Ampere
_PER_LINK = {161: "replays", 162: "recoveries", 163: "crc"}  # Hopper
_WORDS = {"crc": "NVLink CRC errors", "replays": "NVLink packets repeated", "recoveries": "NVLink recoveries"}
_FABRIC = {1: "not started", 2: "in progress"}
_LOOK = "Look at `nvidia-smi nvlink -s` and, with NVSwitches, at the fabric manager's log."


def fetch(context: Context) -> Json:
    """Read links, error counters and the fabric's state of each GPU."""
    facts = nvml.each(context.environ, _facts)
    if not any(gpu.get("links") or gpu.get("fabric") for gpu in facts["gpus"]):
        raise Absent("no NVLink here")
    return facts


def _facts(gpu: nvml.Gpu) -> Json:
    mig = gpu.query("mig", "MigMode")
    if mig and mig[0]:
        return {"links": [], "counters": {}, "fabric": None, "name": None}
    links: list[int] = []
    for link in range(_MOST_LINKS):
        state = gpu.query("links", "NvLinkState", link)
        if state is None:
            break
        links.append(int(state))
    return {
        "name": nvml.text(gpu.query("name", "Name")),
        "links": links,
        "counters": _counters(gpu, links),
        "fabric": _fabric(gpu),
    }


def _counters(gpu: nvml.Gpu, links: list[int]) -> dict[str, int]:
    if not links:
        return {}
    wanted: list[int | tuple[int, int]] = list(_TOTALS)
    names = list(_TOTALS.values())
    for link, up in enumerate(links):
        if up:
            wanted += [(field, link) for field in _PER_LINK]
            names += _PER_LINK.values()
    found: Counter[str] = Counter()
    for name, value in zip(names, gpu.fields(*wanted), strict=True):
        if value is not None:
            found[name] += value
    return dict(found)


def _fabric(gpu: nvml.Gpu) -> Json | None:
    import ctypes

    make: Any = getattr(gpu.pynvml, "c_nvmlGpuFabricInfo_v2_t", None)
    if make is None:
        return None
    information = make()
    if gpu.query("fabric", "GpuFabricInfoV", ctypes.byref(information)) is None or information.state == 0:
        return None
    return {"state": int(information.state), "status": int(information.status)}


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Compare each GPU with the others, and with the previous run."""
    gpus = facts["gpus"]
    findings = [finding for gpu in gpus for finding in _judge(gpu, nvml.earlier(gpu, before), gpus)]
    up = sorted({sum(gpu["links"]) for gpu in gpus if gpu.get("links")})
    links = f"{' or '.join(str(number) for number in up)} NVLinks up on each" if up else "no NVLinks"
    return Judgement(f"{plural(len(gpus), 'GPU')}, {links}", (*findings, *nvml.unread(facts)))


def _judge(gpu: Json, earlier: Json | None, gpus: list[Json]) -> list[Finding]:
    subject, at, findings = nvml.subject(gpu), nvml.where(gpu), []
    links = gpu.get("links") or []
    was = (earlier or {}).get("links") or []
    down = [link for link, (now, then) in enumerate(zip(links, was, strict=False)) if then and not now]
    if down:
        text = f"NVLink {_numbers(down)} went down since the last check, {sum(links)} of {len(links)} are up{at}"
        findings.append(Finding(FAIL, subject, text, _LOOK))
    elif finding := _less_than_others(gpu, gpus):
        findings.append(finding)
    counters, then = gpu.get("counters") or {}, (earlier or {}).get("counters") or {}
    for name, counted in _WORDS.items():
        grown = nvml.growth(counters.get(name), then.get(name))
        if grown > (0 if name == "recoveries" else ERRORS):
            text = f"{counted}: {grown} since the last check{at}"
            findings.append(Finding(WARN, subject, text, "Look at `nvidia-smi nvlink -e`."))
    if fabric := gpu.get("fabric"):
        if fabric["state"] in _FABRIC:
            text = f"the NVLink fabric is not ready: {_FABRIC[fabric['state']]}{at}"
            findings.append(
                Finding(WARN, subject, text, "Look at the fabric manager: `systemctl status nvidia-fabricmanager`.")
            )
        elif fabric["status"]:
            text = f"the NVLink fabric could not be set up (NVML error {fabric['status']}){at}"
            findings.append(Finding(FAIL, subject, text, _LOOK))
    return findings


def _less_than_others(gpu: Json, gpus: list[Json]) -> Finding | None:
    """Judge the number of links that are up against the others of the same kind."""
    links = gpu.get("links") or []
    others = [sum(other["links"]) for other in gpus if other is not gpu and other.get("name") == gpu.get("name")]
    if not links or not others:
        return None
    here, (usual, agreeing) = sum(links), Counter(others).most_common(1)[0]
    if here >= usual or (here == 0 and agreeing < max(3, len(others))):
        return None  # a GPU without a bridge, beside some with one
    down = [link for link, up in enumerate(links) if not up]
    text = f"{here} of {len(links)} NVLinks are up, {usual} on {agreeing} of the {len(others)} others"
    text += f" (down: {_numbers(down)}){nvml.where(gpu)}"
    return Finding(FAIL if agreeing >= 3 else WARN, nvml.subject(gpu), text, _LOOK)


def _numbers(links: list[int]) -> str:
    shown = ", ".join(str(link) for link in links[:4])
    return shown + (f" and {len(links) - 4} more" if len(links) > 4 else "")


CHECK = nvml.check("gpu-nvlink", "NVLinks that are down, their errors, and the fabric's state", SETS, fetch, judge)

"""Memory and other hardware errors of AMD's GPUs, by the kernel's own counters.

Source: "AMDGPU RAS Support" in the kernel's documentation: /sys/class/drm/card*/device/ras/<block>_err_count holds
"ue: N" (uncorrectable) and "ce: N" (corrected) since the driver was loaded; gpu_vram_bad_pages lists retired pages as
"address : size : flag", with flag R (retired), P (to be retired) or F (could not be retired).
"""

from __future__ import annotations

import os

from ftslurm.health import nvml, sysfs
from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Absent, Check, Context, Fetch, Judge
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import plural

VENDOR = "0x1002"
CORRECTED = 1000
"""Corrected errors between two runs that cause a warning."""
_SUFFIX = "_err_count"


def is_driven(context: Context) -> bool:
    """Return whether AMD's driver is loaded."""
    return any(os.path.exists(f"{context.root}{path}") for path in ("/sys/module/amdgpu", "/sys/class/kfd"))


def amd_check(name: str, about: str, fetch: Fetch, judge: Judge) -> Check:
    """Return a check of AMD's GPUs, whose driver may hang."""
    return Check(
        name,
        about,
        frozenset((QUICK, BACKGROUND, THOROUGH)),
        nvml.LIMIT_S,
        fetch,
        judge,
        late_text="the AMD driver hangs",
        late_advice="Look at the kernel log for amdgpu's lines.",
        may_hang=is_driven,
    )


def fetch(context: Context) -> Json:
    """Read the counters of all blocks of all cards."""
    directory = f"{context.root}/sys/class/drm"
    found: list[Json] = []
    for card in sysfs.names(directory):
        device = f"{directory}/{card}/device"
        if not card.removeprefix("card").isdigit() or nvml.read_text(f"{device}/vendor") != VENDOR:
            continue
        blocks = {}
        for name in sysfs.names(f"{device}/ras"):
            if name.endswith(_SUFFIX) and (counts := _counts(nvml.read_text(f"{device}/ras/{name}"))):
                blocks[name.removesuffix(_SUFFIX)] = counts
        flags = [
            line.rpartition(":")[2].strip() for line in nvml.read_text(f"{device}/ras/gpu_vram_bad_pages").split("\n")
        ]
        if blocks:
            pages = {flag: flags.count(flag) for flag in ("R", "P", "F")}
            found.append({"gpu": len(found), "card": card, "bus": _bus(device), "blocks": blocks, "pages": pages})
    if not found:
        raise Absent("no AMD GPU with error counters here")
    return {"gpus": found}


def _counts(text: str) -> dict[str, int]:
    pairs = (line.split(":") for line in text.splitlines() if line.count(":") == 1)
    return {name.strip(): int(value) for name, value in pairs if value.strip().isdigit()}


def _bus(device: str) -> str | None:
    for line in nvml.read_text(f"{device}/uevent").splitlines():
        if line.startswith("PCI_SLOT_NAME="):
            return line.partition("=")[2]
    return None


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Uncorrectable errors since the driver was loaded require a reset; corrected ones count by their growth."""
    findings = [finding for gpu in facts["gpus"] for finding in _judge(gpu, nvml.earlier(gpu, before))]
    bad = sum(block.get("ue", 0) for gpu in facts["gpus"] for block in gpu["blocks"].values())
    errors = plural(bad, "uncorrectable error") if bad else "no uncorrectable errors"
    return Judgement(f"{plural(len(facts['gpus']), 'AMD GPU')}, {errors}", tuple(findings))


def _judge(gpu: Json, earlier: Json | None) -> list[Finding]:
    subject, at, findings = f"GPU {gpu['gpu']}", f" ({gpu['card']}{', ' + gpu['bus'] if gpu['bus'] else ''})", []
    then = (earlier or {}).get("blocks", {})
    for name, block in gpu["blocks"].items():
        if bad := block.get("ue", 0):
            new = nvml.growth(bad, then.get(name, {}).get("ue"))
            text = f"{plural(bad, 'uncorrectable error')} in {_block(name)}"
            text += f", {new} of them new{at}" if new else at
            findings.append(Finding(FAIL, subject, text, "Reset the GPU, or have the node drained."))
        grown = nvml.growth(block.get("ce"), then.get(name, {}).get("ce"))
        if grown > CORRECTED:
            text = f"{grown} corrected errors in {_block(name)} since the last check{at}"
            findings.append(Finding(WARN, subject, text, "Have the GPU inspected."))
    pages = gpu["pages"]
    if pages["F"]:
        text = f"{plural(pages['F'], 'bad memory page')} could not be retired{at}"
        findings.append(Finding(FAIL, subject, text, "Have the GPU replaced."))
    if pages["P"]:
        text = f"{plural(pages['P'], 'bad memory page')} to be retired{at}"
        findings.append(Finding(WARN, subject, text, "Reset the GPU when convenient."))
    return findings


def _block(name: str) -> str:
    return "its memory (umc)" if name == "umc" else name


CHECK = amd_check("amd-ras", "hardware errors counted by AMD's driver", fetch, judge)

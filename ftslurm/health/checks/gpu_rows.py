"""Retired memory of the GPUs: remapped rows (Ampere and newer), retired pages (older).

Source: NVIDIA's "GPU Memory Error Management" and "Dynamic Page Retirement". A pending remapping does no harm until the
next reset; one that failed means that a bank has no spare rows left: the GPU is to be replaced.
"""

from __future__ import annotations

from ftslurm.health import nvml
from ftslurm.health.check import QUICK, THOROUGH, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import plural

PAGES = 60
"""Retired pages for which NVIDIA replaces a GPU; 64 can be retired."""
_RESET = "Reset the GPU when convenient, to bring it into effect."
_REPLACE = "Have the GPU replaced."


def fetch(context: Context) -> Json:
    """Read each GPU's remapped rows and retired pages."""
    return nvml.each(context.environ, _facts)


def _facts(gpu: nvml.Gpu) -> Json:
    rows = gpu.query("rows", "RemappedRows")
    names = ("corrected", "uncorrected", "pending", "failed")
    pages = [gpu.query("pages", "RetiredPages", cause) for cause in (0, 1)] if rows is None else [None, None]
    return {
        "rows": dict(zip(names, map(int, rows), strict=True)) if rows else None,
        "pages": None if pages[0] is None else len(pages[0]) + len(pages[1] or ()),
        "pages_pending": gpu.query("pages", "RetiredPagesPendingStatus") if rows is None else None,
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Failed: to be replaced. Pending: to be reset some time."""
    findings = []
    for gpu in facts["gpus"]:
        subject, at = nvml.subject(gpu), nvml.where(gpu)
        rows, pages = gpu.get("rows") or {}, gpu.get("pages") or 0
        done = rows.get("corrected", 0) + rows.get("uncorrected", 0)
        if rows.get("failed"):
            text = f"a memory row could not be remapped: no spare row is left ({done} remapped){at}"
            findings.append(Finding(FAIL, subject, text, _REPLACE))
        if rows.get("pending"):
            text = f"a memory row is to be remapped at the next reset ({done} remapped){at}"
            findings.append(Finding(WARN, subject, text, _RESET))
        if gpu.get("pages_pending"):
            text = f"memory pages are to be retired at the next reset ({pages} retired){at}"
            findings.append(Finding(WARN, subject, text, _RESET))
        if pages >= PAGES:
            text = f"{pages} memory pages are retired, NVIDIA replaces a GPU at {PAGES}{at}"
            findings.append(Finding(FAIL, subject, text, _REPLACE))
    rows_in_all = sum(
        (gpu.get("rows") or {}).get(key, 0) for gpu in facts["gpus"] for key in ("corrected", "uncorrected")
    )
    pages_in_all = sum(gpu.get("pages") or 0 for gpu in facts["gpus"])
    summary = plural(len(facts["gpus"]), "GPU")
    if rows_in_all or pages_in_all:
        summary += f", {plural(rows_in_all or pages_in_all, 'remapped row' if rows_in_all else 'retired page')}"
    else:
        summary += ", no remapped rows"
    return Judgement(summary, (*findings, *nvml.unread(facts)))


CHECK = nvml.check("gpu-rows", "remapped memory rows and retired pages of the GPUs", (QUICK, THOROUGH), fetch, judge)

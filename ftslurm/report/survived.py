"""What a job survived, and what fails again and again, in the first lines of the report (pure)."""

from __future__ import annotations

from ftslurm.failures.causes import CASCADE
from ftslurm.report.answer import SOURCE
from ftslurm.report.layout import Style, shortened
from ftslurm.report.wording import Json, cost_of, place, step_of, verdict
from ftslurm.text import clip, first_line, plural, ranges, safe

SURVIVED_SHOWN = 3
REPEATS_SHOWN = 2


def survived(report: Json, style: Style) -> list[str]:
    """The rounds that the job survived; those with the same end are one entry, shown by the newest."""
    by_end: dict[str, list[Json]] = {}
    for entry in report["rounds"]:
        if entry["cost"] is not None:
            failure = entry["first_failure"]
            by_end.setdefault(failure["signature"] if failure else f"| {entry['reason']}", []).append(entry)
    groups = sorted(by_end.values(), key=lambda group: int(group[-1]["round"]))
    lines: list[str] = []
    for group in groups[-SURVIVED_SHOWN:]:
        lines += _survived_group(group, style)
    rest = len(groups) - SURVIVED_SHOWN
    return lines + ([f"  and {plural(rest, 'other kind')}, earlier"] if rest > 0 else [])


def _survived_group(group: list[Json], style: Style) -> list[str]:
    entry = group[-1]
    failure, several = entry["first_failure"], len(group) > 1
    title = f"round {entry['round']}"
    if several:
        title = f"{len(group)} rounds ({clip(ranges(e['round'] for e in group), 16)}), the last"
    if failure is None:
        why = entry["scheduler"] or first_line(entry["reason"] or "") or "why is not recorded"
        lines = [style.line(f"{title}: {safe(entry['outcome'])}: {why}")]
        parts = [f"at {step_of(entry)}"] if step_of(entry) else []
    else:
        lines = [style.line(f"{title}: {verdict(failure)}")]
        parts = [f"at {place(failure)}"] if place(failure) else []
        parts += [step_of(entry)] if failure["step"] is None and entry["optimizer_steps"] is not None else []
        parts += [] if failure["step"] is None else [f"step {failure['step']}"]
    texts = [", ".join(parts), cost_of(entry["cost"])]
    return lines + [clip(f"    {text}", style.width) for text in texts if text]


def repeated_failures(report: Json, style: Style) -> list[str]:
    """The repeated failures of a node or rank; a repeated signature is shown with the failure itself."""
    hints = [each for each in report["repeats"] if each["kind"] != "signature"]
    return [line for each in hints[:REPEATS_SHOWN] for line in style.wrapped(each["text"])]


def failed_otherwise(report: Json, cause: Json, style: Style) -> list[str]:
    """Return how the round or attempt before the last one failed, if otherwise: that may be what has to be mended."""
    before = [entry for entry in report["rounds"] if entry["round"] < cause["round"]]
    earlier = before[-1]["first_failure"] if before else None
    if earlier is None or earlier["signature"] == cause["signature"] or earlier["role"] == CASCADE:
        return []
    what = "attempt" if report["source"] != SOURCE else "round"
    where = f" at {place(earlier)}" if place(earlier) else ""
    text = shortened(verdict(earlier), 2 * style.width - len(where) - 40)
    return style.wrapped(f"{what} {earlier['round']} failed otherwise: {text}{where}")

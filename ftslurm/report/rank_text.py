"""The text about one rank of a round, and about all failed ranks (pure)."""

from __future__ import annotations

from ftslurm.report import sections
from ftslurm.report.style import Json, Style
from ftslurm.report.wording import count, duration, place, safe, safe_lines, verdict

LINES_SHOWN = 200


def rank_page(report: Json, style: Style) -> list[list[str]]:
    """Return blocks of lines about ``report["rank"]``: how it ended, then its record, stacks and output."""
    rank = report["rank"]
    failure = rank["failure"]
    entry = {"first_failure": failure, "round": rank["round"]}
    blocks = [_title(report, style)]
    if failure is not None:
        blocks += [sections.evidence(entry, style), sections.traceback(entry, style)]
    elif rank["message"]:
        record = safe_lines(rank["message"])
        blocks.append([style.section("its error record"), *style.quoted(record[:LINES_SHOWN], "  ")])
    blocks.append(_stacks(rank, style))
    directory = safe(report["run"]["directory"]).rstrip("/") + "/"
    for log in rank["logs"]:
        lines = [safe(line).rstrip() for line in log["lines"]]
        name = f"{safe(log['path']).removeprefix(directory)}, {log['size']} bytes"
        title = f"{'the end of ' if log['cut'] else ''}its {log['stream']} ({name})"
        blocks.append([style.section(title), *(style.quoted(lines, "  | ") if any(lines) else ["  (empty)"])])
    if not rank["logs"]:
        blocks.append(["  it has no output files"])
    return blocks


def failed(report: Json, style: Style) -> list[list[str]]:
    """Return a few blocks for each rank in ``report["failed"]`` but the first failure, which is shown above in full."""
    found = report["failed"] or []
    focus = next((r for r in report["rounds"] if r["round"] == report["focus"]), None)
    first = focus["first_failure"]["rank"] if focus is not None and focus["first_failure"] is not None else None
    blocks: list[list[str]] = []
    for failure in found:
        if failure["rank"] == first:
            continue
        entry = {"first_failure": failure, "round": failure["round"]}
        where = place(failure)
        head = [style.section(style.line(verdict(failure)).strip())]
        head += style.wrapped(f"at {where}") if where else []
        head += [style.line(f"{failure['title']} ({failure['role']})")]
        blocks += [head, sections.evidence(entry, style), sections.traceback(entry, style)]
        blocks.append(sections.log(entry, report, style))
    return blocks


def _title(report: Json, style: Style) -> list[str]:
    rank = report["rank"]
    failure, progress = rank["failure"], rank["progress"]
    subject = f"rank {rank['rank']}" + (f" on {safe(rank['node'])}" if rank["node"] else "")
    head = f"{subject}, round {rank['round']} of {safe(report['run']['id'])}"
    lines = style.title(head, f": {safe(rank['end'])}", "red" if failure is not None else "green")
    if failure is not None:
        where = place(failure)
        lines += style.wrapped(verdict(failure)) + (style.wrapped(f"at {where}") if where else [])
        lines += style.wrapped(f"cause: {failure['title']} ({failure['role']})")
    facts = [f"local rank {rank['local_rank']}"] if rank["local_rank"] is not None else []
    facts += [f"pid {rank['pid']}"] if rank["pid"] is not None else []
    facts += [f"host {safe(rank['host'])}"] if rank["host"] and rank["host"] != rank["node"] else []
    if rank["started_ns"] is not None:
        facts.append(f"started {style.date(rank['started_ns'])}")
    if rank["ended_ns"] is not None:
        facts.append(f"ended {style.date(rank['ended_ns'])}, after {duration(rank['took_s'])}")
    lines += style.wrapped(", ".join(facts))
    if rank["stop_reason"]:
        lines += style.wrapped(f"stopped because: {safe(rank['stop_reason'])}")
    if progress is None:
        return [*lines, "  it reported no step"]
    steps = f"steps {progress['first_step']} to {progress['last_step']}"
    if progress["last_ns"] is not None:
        steps += f", the last at {style.date(progress['last_ns'])}"
    return lines + style.wrapped(steps)


def _stacks(rank: Json, style: Style) -> list[str]:
    stacks = rank["stacks"]
    if stacks is None:
        return []
    lines = [style.section("its stacks")]
    if stacks["problem"]:
        lines.append(style.line(safe(stacks["problem"])))
    lines += [style.line(f"{safe(key)}: {safe(value)}") for key, value in stacks["facts"].items()]
    shown = safe_lines(stacks["text"].rstrip("\n"))
    lines += style.quoted(shown[:LINES_SHOWN], "  ")
    left_out = len(shown) - LINES_SHOWN
    return lines + ([f"  ... {count(left_out, 'more line')} (see --json)"] if left_out > 0 else [])


__all__ = ["failed", "rank_page"]

"""The first lines of a text report: what failed, where, and the consequences (pure)."""

from __future__ import annotations

from ftslurm.failures.causes import CASCADE, OTHER_NODE, POINTLESS
from ftslurm.report.finding import finding
from ftslurm.report.style import Json, Style
from ftslurm.report.wording import (
    after,
    clip,
    count,
    duration,
    first_line,
    moment,
    place,
    ranges,
    safe,
    stopped_by,
    subject,
    verdict,
    what,
)

SURVIVED_SHOWN = SAME_TIME_SHOWN = 3
REPEATS_SHOWN = 2
RESTARTS = {OTHER_NODE: "A restart makes sense without that node.", POINTLESS: "A restart alone is pointless."}
UNTOLD = ("exception", "system-exit", "exit", "signal", "missing-file", "permission", "interrupt", "import-error")
"""Causes whose titles repeat the message."""
TIMED_OUT = ("collective-timeout", "nccl-timeout")


def headline(report: Json, style: Style) -> list[str]:
    """Return the headline: the answer in three lines, then details."""
    form = {"succeeded": _succeeded, "failed": _failed, "stopped": _stopped, "running": _running}
    return form.get(report["status"], _unfinished)(report, style)


def cost_of(cost: Json) -> str:
    """``next round 1.1s later, 20 steps repeated``; empty if nothing is known."""
    parts = []
    if cost["until_next_round_s"] is not None:
        queue = ", requeued" if cost["requeued"] else ""
        parts.append(f"next round {duration(cost['until_next_round_s'])} later{queue}")
    if cost["steps_repeated"] is not None:
        parts.append(f"{count(cost['steps_repeated'], 'step')} repeated")
    return ", ".join(parts)


def _succeeded(report: Json, style: Style) -> list[str]:
    rounds = report["rounds"]
    survived = after(report)
    parts = [count(len(rounds), "round")]
    parts += [_world(rounds[-1])] if rounds else []
    parts += [] if report["duration_s"] is None else [duration(report["duration_s"])]
    parts += [] if survived else ["no failure"]
    lines = style.title(f"{_id(report)} succeeded{survived}", f": {', '.join(parts)}", "green")
    lines += _survived(report, style) + _repeated_failures(report, style) + _extent(report, style)
    code = report["exit_code"]
    return lines + ([f"  but the exit code is {code}"] if code else [])


def _failed(report: Json, style: Style) -> list[str]:
    cause, title = report["cause"], f"{_id(report)} FAILED"
    if cause is None:
        reason = first_line(report["reason"] or "") or "why is not recorded"
        return [*style.title(title, f": {reason}", "red"), f"  {_exit(report)}", *_extent(report, style)]
    text = _short_verdict(cause, style.width - len(title) - 2, style.width)
    lines = [*style.title(title, f": {text}", "red"), *_place(cause, style)]
    lines += _doubts(report, cause, style) + style.wrapped(_ending(report, cause))
    return lines + _repeated_failures(report, style) + _hints(cause, style)


def _short_verdict(cause: Json, limit: int, width: int) -> str:
    """Return the verdict within a width; a long message must not displace the cause's title."""
    text = verdict(cause)
    if cause["role"] == CASCADE:
        # One line, so that the uncertainty is in line three.
        return text if len(text) <= limit else clip(f"{subject(cause)}: {cause['title']}", limit)
    fits = len(text) <= limit + width - 8  # of the second line, for its indent and word wrapping
    if fits or cause["rank"] is None or cause["hang"] is not None or cause["cause"] in UNTOLD:
        return text
    shown = text[: limit + width]
    return text if cause["title"].lower() in shown.lower() else f"{subject(cause)}: {cause['title']} ({what(cause)})"


def _ending(report: Json, cause: Json) -> str:
    entry = _entry(report, cause)
    reason = first_line(report["reason"] or "")
    if entry is not None and entry["reason"]:
        # The recorded reason repeats the failure, which is described above.
        reason = reason.removeprefix(first_line(entry["reason"])).lstrip("; ")
    return f"{reason}; {_exit(report)}" if reason else _exit(report)


def _stopped(report: Json, style: Style) -> list[str]:
    reason = stopped_by(report)
    rounds = report["rounds"]
    parts = [f"in round {rounds[-1]['round']}"] if rounds else []
    parts += [] if report["last_step"] is None else [f"step {report['last_step']}"]
    parts += [] if report["duration_s"] is None else [f"after {duration(report['duration_s'])}"]
    where = ", ".join(parts)
    lines = style.title(f"{_id(report)} was stopped", f": {reason}", "yellow")
    lines += style.wrapped("; ".join(p for p in (where, _exit(report), "no rank is to blame") if p))
    lines += _hints(report["cause"], style) if report["cause"] is not None else []
    return lines + _slurm(report, style) + _survived(report, style)


def _running(report: Json, style: Style) -> list[str]:
    rounds, cause = report["rounds"], report["cause"]
    now = ": no round has formed yet"
    if rounds:
        last = rounds[-1]
        now = f": round {last['round']}, {_world(last)}"
        if last["started_ns"] is not None:
            now += f", for {duration((report['made_ns'] - last['started_ns']) / 1e9)}"
        now += _step(last)
    lines = style.title(f"{_id(report)} is still running", now, "green")
    if cause is not None:
        lines += [style.line(f"newest failure: {verdict(cause)}"), *_place(cause, style)]
        lines += _doubts(report, cause, style)
    return [*lines, f"  {_activity(report, style)}", *_survived(report, style), *_repeated_failures(report, style)]


def _unfinished(report: Json, style: Style) -> list[str]:
    rounds, cause = report["rounds"], report["cause"]
    if report["job"] is not None:
        return _without_run(report["job"], _id(report), style)
    if report["source"] != "ftslurm":
        text = f": no failure found in these {safe(report['source'])}"
        return [*style.title(_id(report), text, "yellow"), *_survived(report, style)]
    lines = style.title(f"{_id(report)}: no end was recorded", f"; {_activity(report, style)}", "yellow")
    if cause is not None:
        lines += [style.line(verdict(cause)), *_place(cause, style)]
        lines += _doubts(report, cause, style) + _repeated_failures(report, style) + _hints(cause, style)
    elif rounds:
        last = rounds[-1]
        outcome = f", which had {last['outcome']}" if last["outcome"] in ("succeeded", "failed") else ""
        lines.append(style.line(f"it was in round {last['round']}{outcome}, {_world(last)}{_step(last)}"))
    else:
        lines.append("  no round is recorded")
    step = report["step"]
    why = style.wrapped(step["line"]) if step is not None else []
    why += _slurm(report, style) or ([] if step is not None else style.wrapped(_query_hint(report)))
    return [*lines, *why, *_survived(report, style)]


def _without_run(job: Json, name: str, style: Style) -> list[str]:
    lines = [*style.title(name, f": {first_line(job['note'])}", "yellow"), *style.wrapped(job["line"])]
    if job["output"]:
        lines.append(f"  its output: {safe(job['output'])}{', which ends' if job['last_lines'] else ''}")
    return [*lines, *(f"    {safe(text)}" for text in job["last_lines"])]


def _query_hint(report: Json) -> str:
    attempts = report["run"]["attempts"]
    job = safe(attempts[-1]).split(".")[0] if attempts else ""
    query = f": see sacct -j {job}" if job.isdigit() else ""
    return f"all processes were killed at once, or the shared directory became unavailable{query}"


def _slurm(report: Json, style: Style) -> list[str]:
    scheduler = report["scheduler"]
    return style.wrapped(scheduler["line"]) if scheduler is not None else []


def _activity(report: Json, style: Style) -> str:
    alive = report["alive"]
    if alive is None:
        return "no activity is recorded"
    when = f"{safe(alive['node'])}, {style.date(alive['time_ns'])}"
    return f"last activity {duration(alive['age_s'])} ago ({when})"


def _place(failure: Json, style: Style) -> list[str]:
    where = place(failure) if failure["hang"] is None else ""
    line = f"at {where}, {moment(failure).removeprefix('in ')}" if where else moment(failure)
    raised = failure["raised_in"]
    if failure["rank"] is None and failure["ranks"]:
        line += f"; it had ranks {failure['ranks']}"
    elif failure["hang"] is not None:
        hang = failure["hang"]
        line = f"{moment(failure)}; rank {hang['rank']} on {safe(hang['node'])}: {first_line(hang['message'])}"
    elif raised is not None:
        line += f" (raised in {safe(raised['shown']).rsplit('/', 1)[-1]}:{raised['line']})"
    return style.wrapped(line)


def _doubts(report: Json, failure: Json, style: Style) -> list[str]:
    """Qualifications of the lines above: simultaneous failures, cascades without a cause."""
    entry = _entry(report, failure)
    lines: list[str] = []
    if entry is None or failure["kind"] == "health-check":
        return lines
    same = entry["same_time"]
    for other in same[:SAME_TIME_SHOWN]:
        lines += style.wrapped(_qualifications(other))
    if len(same) > SAME_TIME_SHOWN:
        lines += style.wrapped(f"and {count(len(same) - SAME_TIME_SHOWN, 'more node')}")
    if failure["role"] == CASCADE and entry["finished"] is not None:
        finished = entry["finished"]
        ranks = f"rank{'s' if finished['count'] > 1 else ''} {clip(finished['ranks'], 20)}"
        lines += style.wrapped(f"this follows from another rank's end: {ranks} had finished with exit code 0")
    elif failure["cause"] in TIMED_OUT and (late := _late(entry)):
        lines += style.wrapped(f"{late} did not fail: the others may have waited for it")
    elif failure["role"] == CASCADE:
        lines += style.wrapped("this follows from another rank's end, of which no failure is recorded")
    if failure["role"] == CASCADE or failure["hang"] is not None:
        lines += _unwell(report, failure, style)
    return lines


def _unwell(report: Json, failure: Json, style: Style) -> list[str]:
    """Name a node whose device failed a check, where only waiting ranks are known."""
    if failure["round"] != report["focus"]:
        return []
    devices = ("gpu-", "amd-", "nic-")
    found = [each for each in report["health"]["findings"] if each["status"] == "fail"]
    found = [each for each in found if each["check"].startswith(devices) and not each["of_failure"]]
    return style.wrapped(f"possible reason: {finding(found[0], style)}") if found else []


def _late(entry: Json) -> str:
    """Name the few ranks without a time-out where most others had one; empty if there are many."""
    stopped, failed = entry["stopped"], 1 + sum(group["count"] for group in entry["groups"])
    if stopped is None or entry["silent"] is not None or stopped["count"] * 2 > failed:
        return ""
    return f"rank{'s' if stopped['count'] > 1 else ''} {clip(stopped['ranks'], 20)}"


def _qualifications(other: Json) -> str:
    seconds = other["uncertainty_s"]
    span = f"±{max(1, round(seconds * 1e3))} ms" if seconds < 1 else f"±{duration(seconds)}"
    if other["clock"] == "measured":
        return f"at the same time ({span}): {verdict(other)}"
    return f"at about the same time: {verdict(other)} ({span}, clocks not measured)"


def _repeated_failures(report: Json, style: Style) -> list[str]:
    """The repeated failures of a node or rank; a repeated signature is shown with the failure itself."""
    hints = [each for each in report["repeats"] if each["kind"] != "signature"]
    return [line for each in hints[:REPEATS_SHOWN] for line in style.wrapped(each["text"])]


def _hints(failure: Json, style: Style) -> list[str]:
    lines: list[str] = []
    same = failure["same_as_rounds"]
    if same:
        lines += style.wrapped(f"the same failure as in round{'s' if len(same) > 1 else ''} {ranges(same)}")
    # That a lost node is not to be used is obvious.
    restart = RESTARTS.get(failure["restart"], "") if failure["rank"] is not None else ""
    hint = " ".join(part for part in (failure["advice"], restart) if part)
    return lines + (style.wrapped(f"hint: {hint}") if hint else [])


def _survived(report: Json, style: Style) -> list[str]:
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
    return lines + ([f"  and {count(rest, 'other kind')}, earlier"] if rest > 0 else [])


def _survived_group(group: list[Json], style: Style) -> list[str]:
    entry = group[-1]
    failure, several = entry["first_failure"], len(group) > 1
    title = f"round {entry['round']}"
    if several:
        title = f"{len(group)} rounds ({clip(ranges(e['round'] for e in group), 16)}), the last"
    if failure is None:
        why = entry["scheduler"] or first_line(entry["reason"] or "") or "why is not recorded"
        lines = [style.line(f"{title}: {safe(entry['outcome'])}: {why}")]
        parts = [] if entry["last_step"] is None else [f"at step {entry['last_step']}"]
    else:
        lines = [style.line(f"{title}: {verdict(failure)}")]
        parts = [f"at {place(failure)}"] if place(failure) else []
        parts += [] if failure["step"] is None else [f"step {failure['step']}"]
    texts = [", ".join(parts), cost_of(entry["cost"])]
    return lines + [clip(f"    {text}", style.width) for text in texts if text]


def _extent(report: Json, style: Style) -> list[str]:
    parts = []
    if report["started_ns"] is not None:
        parts.append(f"started {style.date(report['started_ns'], '%Y-%m-%d %H:%M:%S')}")
    if report["last_step"] is not None:
        parts.append(f"last step {report['last_step']}")
    return [f"  {', '.join(parts)}"] if parts else []


def _entry(report: Json, failure: Json) -> Json | None:
    return next((r for r in report["rounds"] if r["round"] == failure["round"]), None)


def _world(entry: Json) -> str:
    ranks = "" if entry["world_size"] is None else f", {count(entry['world_size'], 'rank')}"
    return count(len(entry["nodes"]), "node") + ranks


def _step(entry: Json) -> str:
    return "" if entry["last_step"] is None else f", step {entry['last_step']}"


def _exit(report: Json) -> str:
    code = report["exit_code"]
    return "no exit code recorded" if code is None else f"exit code {code}"


def _id(report: Json) -> str:
    return clip(safe(report["run"]["id"]), 40)

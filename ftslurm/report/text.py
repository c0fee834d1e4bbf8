"""The report as text: the result in the first three lines, then the evidence, then the rest (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ftslurm.failures.causes import OLDER_CHECKPOINT, OTHER_NODE, POINTLESS
from ftslurm.rendezvous.checkpoints import bad_checkpoint
from ftslurm.report.answer import (
    ANSWER_LINES,
    SOURCE,
    answer,
    doubt_lines,
    failed_otherwise,
    of_rank,
    place_lines,
    repeated_failures,
    round_of,
    survived,
)
from ftslurm.report.layout import WIDTH, Style
from ftslurm.report.lineage import requeue_line
from ftslurm.report.lost_nodes import NO_AGENT
from ftslurm.report.sections import (
    defects,
    evidence,
    failed,
    files,
    health,
    log,
    missing,
    others,
    problems,
    rank_page,
    slow,
    timeline,
    traceback,
)
from ftslurm.report.stopped import blames_a_rank, is_interrupted, stop_hint
from ftslurm.report.wording import (
    STANDING,
    Json,
    after,
    crashes,
    standstill_of,
    step_of,
    still_lines,
    stopped_by,
    verdict,
)
from ftslurm.text import clip, duration, first_line, plural, ranges, safe

RESTARTS = {
    OTHER_NODE: "A restart makes sense without that node.",
    OLDER_CHECKPOINT: "A restart makes sense from an older checkpoint.",
    POINTLESS: "A restart alone is pointless.",
}
_HINT_ON_SILENCE = (
    "hint: It may have hung long before: look at what its last lines waited for. More time helps only a program"
    " that prints nothing while it works."
)


def render(
    report: Json, *, colour: bool = False, width: int = WIDTH, zone: Callable[[float], Any] = time.localtime
) -> str:
    """Render a report for a terminal or a job's output file.

    Args:
        report: what `ftslurm.report.analysis.analyse` returned.
        colour: whether to add ANSI colours.
        width: columns; only quoted lines (tracebacks, output, paths) may be longer.
        zone: turns seconds since the epoch into a `time.struct_time` of the reader's time zone.

    Returns:
        Lines, each ended by a newline. Nothing from a file can reach the terminal as a control sequence.
    """
    style = Style(colour, max(40, width), zone)
    blocks = _whole(report, style) if report["rank"] is None else rank_page(report, style)
    shown = [block for block in blocks if block]
    # The usual, short report is one block.
    glue = [""] if len(shown) > 1 else []
    lines = shown[0]
    for block in shown[1:]:
        lines = [*lines, "", *block]
    return "\n".join([*lines, *glue, *files(report)]) + "\n"


def first_lines(
    report: Json, *, colour: bool = False, width: int = WIDTH, zone: Callable[[float], Any] = time.localtime
) -> str:
    """Return the answer alone: the result, the place and time, the exit code; see `render`."""
    lines = headline(report, Style(colour, max(40, width), zone))
    return "\n".join(lines[: ANSWER_LINES + 1]) + "\n"


def _whole(report: Json, style: Style) -> list[list[str]]:
    blocks = [headline(report, style), defects(report, style)]
    focus = next((r for r in report["rounds"] if r["round"] == report["focus"]), None)
    if focus is not None:
        blocks += [evidence(focus, style), traceback(focus, style), *hang_blocks(focus, style)]
        blocks += [log(focus, report, style), *failed(report, style), others(focus, report, style)]
    elif standstill_of(report) is not None:
        blocks += hang_blocks(report["rounds"][-1], style)
    blocks += [health(report, style), slow(report, style)]
    if (focus is not None and report["source"] == SOURCE) or len(report["rounds"]) > 1:
        blocks.append(timeline(report, style))
    return [*blocks, [] if report["missing"] == [NO_AGENT] else missing(report, style), problems(report, style)]


def hang_blocks(entry: Json, style: Style) -> list[list[str]]:
    """Return the parts about a hang: the ranks' collectives, locations and stacks; empty if none were collected."""
    blocks = []
    if entry["collectives"] is not None:
        from ftslurm.report.collectives import collectives_text

        blocks.append(collectives_text(entry, style))
    if entry["whereabouts"] is not None:
        from ftslurm.report.hang_text import stacks_text, whereabouts_text

        blocks += [whereabouts_text(entry, style), stacks_text(entry, style)]
    return [block for block in blocks if block]


def headline(report: Json, style: Style) -> list[str]:
    """Return the headline: the answer in three lines, then details."""
    form = {"succeeded": _succeeded, "failed": _failed, "stopped": _stopped, "running": _running}
    lines = form.get(report["status"], _unfinished)(report, style)
    requeued = requeue_line(report)
    lines = [*lines, *(style.wrapped(requeued) if requeued else [])]
    return [*lines, *(f"  {bad_checkpoint(path)}" for path in report["bad_checkpoints"])]


def _succeeded(report: Json, style: Style) -> list[str]:
    rounds = report["rounds"]
    failures = after(report)
    parts = [plural(len(rounds), "round")]
    parts += [_world(rounds[-1])] if rounds else []
    parts += [] if report["duration_s"] is None else [duration(report["duration_s"])]
    parts += [] if failures or report["notes"] else ["no failure"]
    lines = style.title(f"{_id(report)} succeeded{failures}", f": {', '.join(parts)}", "green")
    lines += _notes(report, style)
    lines += survived(report, style) + repeated_failures(report, style) + _extent(report, style)
    code = report["exit_code"]
    return lines + ([f"  but the exit code is {code}"] if code else [])


def _failed(report: Json, style: Style) -> list[str]:
    cause, title = report["cause"], f"{_id(report)} FAILED"
    if cause is None:
        reason = first_line(report["reason"] or "") or "why is not recorded"
        return [*style.title(title, f": {reason}", "red"), f"  {_exit(report)}", *_extent(report, style)]
    lines = answer(report, cause, title, style, style.wrapped(_ending(report, cause)))
    lines += failed_otherwise(report, cause, style) + _notes(report, style)
    return lines + repeated_failures(report, style) + _hints(cause, style)


def _notes(report: Json, style: Style) -> list[str]:
    return [line for note in report["notes"] for line in style.wrapped(safe(note))]


def _ending(report: Json, cause: Json) -> str:
    entry = round_of(report, cause)
    reason = first_line(report["reason"] or "")
    if entry is not None and entry["reason"]:
        # The recorded reason repeats the failure, which is described above.
        reason = reason.removeprefix(first_line(entry["reason"])).lstrip("; ")
    if report["source"] != SOURCE and report["exit_code"] is None:
        return reason
    return f"{reason}; {_exit(report)}" if reason else _exit(report)


def _stopped(report: Json, style: Style) -> list[str]:
    reason = stopped_by(report)
    rounds = report["rounds"]
    parts = [f"in round {rounds[-1]['round']}"] if rounds else []
    # The step of an orderly stop is in the first line.
    interrupted = is_interrupted(report)
    step = f"step {report['last_step']}" if report["last_step"] is not None else step_of(rounds[-1]) if rounds else ""
    parts += [step] if step and not interrupted else []
    parts += [] if report["duration_s"] is None else [f"after {duration(report['duration_s'])}"]
    where = ", ".join(parts)
    if report["source"] != SOURCE and len(rounds) < 2:
        where = ""
    title = f"{_id(report)} was {'interrupted' if interrupted else 'stopped'}"
    # Of a stop, the outcome of the saves comes last, and there is no place to name below.
    lines = style.title(title, f": {reason}", "yellow", most=3)
    code = _exit(report) if report["source"] == SOURCE or report["exit_code"] is not None else ""
    still = standstill_of(report)
    silent = any(each in reason for each in STANDING)  # of a log
    blame = "" if still is not None or silent or blames_a_rank(report) else "no rank is to blame"
    lines += style.wrapped("; ".join(p for p in (where, code, blame) if p))
    lines += [line for text in still_lines(still) for line in style.wrapped(text)]
    lines += style.wrapped(stop_hint(report)) if stop_hint(report) and still is None else []
    lines += style.wrapped(_HINT_ON_SILENCE) if silent else []
    # More time would not help ranks that do not move.
    lines += _hints(report["cause"], style) if report["cause"] is not None and still is None and not silent else []
    return lines + _slurm(report, style) + survived(report, style)


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
        lines += [style.line(f"newest failure: {verdict(cause)}"), *place_lines(cause, style)]
        lines += [line for each in doubt_lines(report, cause, style) for line in each]
    lines += _slurm(report, style)
    return [*lines, f"  {_activity(report, style)}", *survived(report, style), *repeated_failures(report, style)]


def _unfinished(report: Json, style: Style) -> list[str]:
    rounds, cause = report["rounds"], report["cause"]
    if report["job"] is not None:
        return _without_run(report["job"], _id(report), style)
    if report["source"] != "ftslurm":
        text = f": no failure found in these {safe(report['source'])}"
        return [*style.title(_id(report), text, "yellow"), *_notes(report, style), *survived(report, style)]
    crashed = crashes(report)
    if crashed:
        lines = style.title(_id(report), f": {crashed[0]}", "red")
        lines += [line for text in crashed[1:] for line in style.wrapped(text)]
        return [*lines, f"  no end was recorded; {_activity(report, style)}", *_slurm(report, style)]
    if report["missing"] == [NO_AGENT]:
        made_ns = report["run"]["created_ns"]
        since = f" since it was made {duration((report['made_ns'] - made_ns) / 1e9)} ago" if made_ns else ""
        return [*style.title(f"{_id(report)}: no agent has started", since, "yellow"), *_slurm(report, style)]
    lines = style.title(f"{_id(report)}: no end was recorded", f"; {_activity(report, style)}", "yellow")
    if cause is not None:
        lines += [style.line(verdict(cause)), *place_lines(cause, style)]
        lines += [line for each in doubt_lines(report, cause, style) for line in each]
        lines += repeated_failures(report, style) + _hints(cause, style)
    elif rounds:
        last = rounds[-1]
        outcome = f", which had {last['outcome']}" if last["outcome"] in ("succeeded", "failed") else ""
        lines.append(style.line(f"it was in round {last['round']}{outcome}, {_world(last)}{_step(last)}"))
    else:
        lines.append("  no round is recorded")
    step = report["step"]
    why = style.wrapped(step["line"]) if step is not None else []
    why += _slurm(report, style) or ([] if step is not None else style.wrapped(_query_hint(report)))
    return [*lines, *why, *survived(report, style)]


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


def _hints(failure: Json, style: Style) -> list[str]:
    lines: list[str] = []
    same = failure["same_as_rounds"]
    if same:
        lines += style.wrapped(f"the same failure as in round{'s' if len(same) > 1 else ''} {ranges(same)}")
    # That a lost node is not to be used is obvious.
    restart = RESTARTS.get(failure["restart"], "") if of_rank(failure) else ""
    if failure["restart"] == OTHER_NODE and failure["alike"] is not None and len(failure["alike"]["nodes"]) > 1:
        restart = ""  # it failed so on several nodes
    hint = " ".join(part for part in (failure["advice"], restart) if part)
    return lines + (style.wrapped(f"hint: {hint}") if hint else [])


def _extent(report: Json, style: Style) -> list[str]:
    parts = []
    if report["started_ns"] is not None:
        parts.append(f"started {style.date(report['started_ns'], '%Y-%m-%d %H:%M:%S')}")
    if report["last_step"] is not None:
        parts.append(f"last step {report['last_step']}")
    elif report["last_optimizer_step"] is not None:
        parts.append(f"last step of the optimizer {report['last_optimizer_step']}")
    return [f"  {', '.join(parts)}"] if parts else []


def _world(entry: Json) -> str:
    ranks = "" if entry["world_size"] is None else f", {plural(entry['world_size'], 'rank')}"
    return plural(len(entry["nodes"]), "node") + ranks


def _step(entry: Json) -> str:
    return f", {step_of(entry)}" if step_of(entry) else ""


def _exit(report: Json) -> str:
    code = report["exit_code"]
    return "no exit code recorded" if code is None else f"job exit code {code}"


def _id(report: Json) -> str:
    return clip(safe(report["run"]["id"]), 40)

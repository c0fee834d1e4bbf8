"""The report as text: the result in the first three lines, then the evidence, then the rest (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ftslurm.failures.causes import CASCADE, OLDER_CHECKPOINT, OTHER_NODE, POINTLESS
from ftslurm.rendezvous.checkpoints import bad_checkpoint
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
    SILENT,
    WIDTH,
    WORKER_KINDS,
    Json,
    Style,
    after,
    by_sentences,
    cost_of,
    crashes,
    finding,
    first_of,
    follows,
    moment,
    place,
    shortened,
    standstill_of,
    step_of,
    still_lines,
    stopped_by,
    subject,
    those_ranks,
    verdict,
    what,
    with_short_paths,
)
from ftslurm.text import clip, cut_middle, duration, first_line, plural, ranges, safe

SOURCE = "ftslurm"
SURVIVED_SHOWN = SAME_TIME_SHOWN = 3
REPEATS_SHOWN = 2
RESTARTS = {
    OTHER_NODE: "A restart makes sense without that node.",
    OLDER_CHECKPOINT: "A restart makes sense from an older checkpoint.",
    POINTLESS: "A restart alone is pointless.",
}
UNTOLD = ("exception", "system-exit", "exit", "signal", "missing-file", "permission", "interrupt", "import-error")
"""Causes whose titles repeat the message."""
ANSWER_LINES = 3
_HINT_ON_SILENCE = (
    "hint: It may have hung long before: look at what its last lines waited for. More time helps only a program"
    " that prints"
    " nothing while it works."
)
"""Lines before that of the exit code."""


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
        from ftslurm.report.hang import stacks_text, whereabouts_text

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
    survived = after(report)
    parts = [plural(len(rounds), "round")]
    parts += [_world(rounds[-1])] if rounds else []
    parts += [] if report["duration_s"] is None else [duration(report["duration_s"])]
    parts += [] if survived or report["notes"] else ["no failure"]
    lines = style.title(f"{_id(report)} succeeded{survived}", f": {', '.join(parts)}", "green")
    lines += _notes(report, style)
    lines += _survived(report, style) + _repeated_failures(report, style) + _extent(report, style)
    code = report["exit_code"]
    return lines + ([f"  but the exit code is {code}"] if code else [])


def _failed(report: Json, style: Style) -> list[str]:
    cause, title = report["cause"], f"{_id(report)} FAILED"
    if cause is None:
        reason = first_line(report["reason"] or "") or "why is not recorded"
        return [*style.title(title, f": {reason}", "red"), f"  {_exit(report)}", *_extent(report, style)]
    lines = _answer(report, cause, title, style, style.wrapped(_ending(report, cause)))
    return lines + _notes(report, style) + _repeated_failures(report, style) + _hints(cause, style)


def _answer(report: Json, cause: Json, title: str, style: Style, ending: list[str]) -> list[str]:
    """The title, place and time, and what qualifies them; the ending is in line four at the latest.

    A verdict by the records of collectives has a further line: its calls and ranks are of no use without its middle.
    """
    silent = cause["overshadowed"]
    most = 3 if cause["hang"] is not None and cause["hang"]["verdict"].startswith("collectives") else 2
    lines = style.title(title, f": {_short_verdict(cause, style.width - len(title) - 2, style.width)}", "red", most)
    if silent:
        # Line two is the node's, so that the failure has one line.
        short = style.line(style.joined(lines)).strip() if len(lines) > 1 else lines[0]
        lines = [short, *style.wrapped(safe(silent))[:1]]
    lines += _fitted_place(cause, style, _moment(report, cause), max(1, ANSWER_LINES - len(lines)))
    doubts = _doubts(report, cause, style)
    before = doubts[:1] if doubts and len(lines) + len(doubts[0]) <= ANSWER_LINES else []
    rest = doubts[len(before) :]
    return [*lines, *(line for each in before for line in each), *ending, *(line for each in rest for line in each)]


def _fitted_place(cause: Json, style: Style, when: str, room: int) -> list[str]:
    """Return the lines on the place and time; what does not fit into `room` lines is left out, file and line last."""
    # Who noticed it first is also in the list of ranks.
    for variant in (
        cause,
        {**cause, "alike": None},
        {**cause, "alike": None, "where": _shortened_file(cause["where"])},
    ):
        lines = _place(variant, style, when)
        if len(lines) <= room:
            return lines
    return ["  " + cut_middle(style.joined(lines), style.width - 2)]


def _shortened_file(where: Json | None) -> Json | None:
    if where is None or where["shown"].count("/") < 3:
        return where
    return {**where, "shown": f".../{'/'.join(where['shown'].split('/')[-2:])}"}


def _notes(report: Json, style: Style) -> list[str]:
    return [line for note in report["notes"] for line in style.wrapped(safe(note))]


def _short_verdict(cause: Json, limit: int, width: int) -> str:
    """Return the verdict within a width; a long message must not displace the cause's title."""
    text = verdict(cause)
    if cause["role"] == CASCADE and len(text) > limit:
        # The message has no more than the title: that a connection broke.
        return f"{subject(cause)}: {cause['title']}{follows(cause)}"
    room = limit + width - 8  # of the second line, for its indent and word wrapping
    told = what(cause)
    if len(text) > room:
        text, told = (by_sentences(with_short_paths(each), room) for each in (text, told))
    fits = len(text) <= room
    if fits or not _of_rank(cause) or cause["hang"] is not None or cause["cause"] in UNTOLD:
        return text
    head = f"{subject(cause)}: {cause['title']}: "
    if text.lower().startswith(head.lower()):
        room = max(room - len(head), width // 2)
        return f"{text[: len(head)]}{cut_middle(text[len(head) :], room)}"
    shown = shortened(text, room)
    return text if cause["title"].lower() in shown.lower() else f"{subject(cause)}: {cause['title']} ({told})"


def _of_rank(failure: Json) -> bool:
    return failure["rank"] is not None or failure["kind"] in WORKER_KINDS


def _ending(report: Json, cause: Json) -> str:
    entry = _entry(report, cause)
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
    silent = SILENT in reason  # of a log
    blame = "" if still is not None or silent or blames_a_rank(report) else "no rank is to blame"
    lines += style.wrapped("; ".join(p for p in (where, code, blame) if p))
    lines += [line for text in still_lines(still) for line in style.wrapped(text)]
    lines += style.wrapped(stop_hint(report)) if stop_hint(report) and still is None else []
    lines += style.wrapped(_HINT_ON_SILENCE) if silent else []
    # More time would not help ranks that do not move.
    lines += _hints(report["cause"], style) if report["cause"] is not None and still is None and not silent else []
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
        lines += [line for each in _doubts(report, cause, style) for line in each]
    lines += _slurm(report, style)
    return [*lines, f"  {_activity(report, style)}", *_survived(report, style), *_repeated_failures(report, style)]


def _unfinished(report: Json, style: Style) -> list[str]:
    rounds, cause = report["rounds"], report["cause"]
    if report["job"] is not None:
        return _without_run(report["job"], _id(report), style)
    if report["source"] != "ftslurm":
        text = f": no failure found in these {safe(report['source'])}"
        return [*style.title(_id(report), text, "yellow"), *_notes(report, style), *_survived(report, style)]
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
        lines += [style.line(verdict(cause)), *_place(cause, style)]
        lines += [line for each in _doubts(report, cause, style) for line in each]
        lines += _repeated_failures(report, style) + _hints(cause, style)
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


def _moment(report: Json, failure: Json) -> str:
    """When a failure was; in logs only which attempt, if there are several."""
    if report["source"] == SOURCE:
        return moment(failure)
    return f"in attempt {failure['round']}" if len(report["rounds"]) > 1 else ""


def _place(failure: Json, style: Style, when: str | None = None) -> list[str]:
    where = place(failure) if failure["hang"] is None else ""
    when = moment(failure) if when is None else when
    line = ", ".join(
        part for part in (f"at {where}" if where else "", when.removeprefix("in ") if where else when) if part
    )
    raised = failure["raised_in"]
    if failure["rank"] is None and failure["ranks"]:
        line += f"; it had {those_ranks(failure['ranks'])}"
    elif failure["alike"] is not None:
        line += f"{'; ' if line else ''}first noticed: {first_of(failure)}"
    elif failure["hang"] is not None:
        line = _noticed(failure, failure["hang"], style.width - 2)
    elif raised is not None:
        at = f" (raised in {_short(safe(raised['shown']))}:{raised['line']})"
        # In line three there is room for no more.
        line += at if len(line) + len(at) + 2 <= style.width else ""
    return style.wrapped(line)


def _noticed(failure: Json, hang: Json, room: int) -> str:
    """Which rank's time-out expired; before that, where the rank is of which the first line names the call."""
    message = first_line(hang["message"])
    # A time-out of another rank's is no reproach.
    its_own = hang["rank"] == failure["rank"]
    rank = f"rank {hang['rank']} on {safe(hang['node'])}" if its_own else f"noticed by rank {hang['rank']}"
    if not hang["where"]:
        return f"{moment(failure)}; {rank}: {message}"
    where = f"{safe(hang['where'])}; {moment(failure)}"
    message = message.removesuffix(")").rpartition(" (")[0] or message
    told = f"{where}; {rank}: {message}"
    # The first line names a rank whose own time-out it was.
    return told if len(told) <= room else f"{where}; {message if its_own else rank}"


def _short(path: str) -> str:
    """``torch/.../signal_handling.py``: the package of a file and its name."""
    parts = path.split("/")
    if path.startswith("/"):
        return parts[-1]
    return path if len(parts) < 4 else f"{parts[0]}/.../{parts[-1]}"


def _doubts(report: Json, failure: Json, style: Style) -> list[list[str]]:
    """Qualifications of the headline: what a cascade follows from, simultaneous failures."""
    entry = _entry(report, failure)
    if entry is None or failure["kind"] == "health-check":
        return []
    found = [style.wrapped(safe(remark)) for remark in failure["remarks"]]
    same = entry["same_time"]
    found += [style.wrapped(_qualifications(other)) for other in same[:SAME_TIME_SHOWN]]
    if len(same) > SAME_TIME_SHOWN:
        found.append(style.wrapped(f"and {plural(len(same) - SAME_TIME_SHOWN, 'more node')}"))
    if failure["role"] == CASCADE or failure["hang"] is not None:
        found.append(_unwell(report, failure, style))
    return [lines for lines in found if lines]


def _unwell(report: Json, failure: Json, style: Style) -> list[str]:
    """Name a node whose device failed a check, where only waiting ranks are known."""
    if failure["round"] != report["focus"]:
        return []
    devices = ("gpu-", "amd-", "nic-")
    found = [each for each in report["health"]["findings"] if each["status"] == "fail"]
    found = [each for each in found if each["check"].startswith(devices) and not each["of_failure"]]
    return style.wrapped(f"possible reason: {finding(found[0], style)}") if found else []


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
    restart = RESTARTS.get(failure["restart"], "") if _of_rank(failure) else ""
    if failure["restart"] == OTHER_NODE and failure["alike"] is not None and len(failure["alike"]["nodes"]) > 1:
        restart = ""  # it failed so on several nodes
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


def _extent(report: Json, style: Style) -> list[str]:
    parts = []
    if report["started_ns"] is not None:
        parts.append(f"started {style.date(report['started_ns'], '%Y-%m-%d %H:%M:%S')}")
    if report["last_step"] is not None:
        parts.append(f"last step {report['last_step']}")
    elif report["last_optimizer_step"] is not None:
        parts.append(f"last step of the optimizer {report['last_optimizer_step']}")
    return [f"  {', '.join(parts)}"] if parts else []


def _entry(report: Json, failure: Json) -> Json | None:
    return next((r for r in report["rounds"] if r["round"] == failure["round"]), None)


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

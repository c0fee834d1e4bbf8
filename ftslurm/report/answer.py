"""The first lines of the report: a failure, its place and time, what qualifies it, what the job survived (pure)."""

from __future__ import annotations

from ftslurm.failures.causes import CASCADE
from ftslurm.failures.own_code import is_library
from ftslurm.report.layout import Style, by_sentences, shortened, with_short_paths, without_source
from ftslurm.report.wording import (
    WORKER_KINDS,
    Json,
    cost_of,
    finding,
    first_of,
    follows,
    moment,
    place,
    step_of,
    subject,
    those_ranks,
    verdict,
    what,
)
from ftslurm.text import clip, cut_middle, duration, first_line, plural, ranges, safe

SAME_TIME_SHOWN = SURVIVED_SHOWN = 3
REPEATS_SHOWN = 2
UNTOLD = ("exception", "system-exit", "exit", "signal", "missing-file", "permission", "interrupt", "import-error")
"""Causes whose titles repeat the message."""
ANSWER_LINES = 3
"""Lines before that of the exit code."""
SOURCE = "ftslurm"
"""Of a report on a run of ftslurm's, not on logs."""


def answer(report: Json, cause: Json, title: str, style: Style, ending: list[str]) -> list[str]:
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
    doubts = doubt_lines(report, cause, style)
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
        lines = place_lines(variant, style, when)
        if len(lines) <= room:
            return lines
    return ["  " + cut_middle(style.joined(lines), style.width - 2)]


def _shortened_file(where: Json | None) -> Json | None:
    parts = [] if where is None else where["shown"].replace("\\", "/").split("/")
    return where if where is None or len(parts) < 4 else {**where, "shown": f".../{'/'.join(parts[-2:])}"}


def _short_verdict(cause: Json, limit: int, width: int) -> str:
    """Return the verdict within a width; a long message must not displace the cause's title."""
    text = verdict(cause)
    if cause["awaited"]:
        return text
    if cause["role"] == CASCADE and len(text) > limit:
        # The message has no more than the title: that a connection broke.
        return f"{subject(cause)}: {cause['title']}{follows(cause)}"
    room = limit + width - 8  # of the second line, for its indent and word wrapping
    description = what(cause)
    if len(text) > room:
        text, description = (by_sentences(with_short_paths(each), room) for each in (text, description))
    fits = len(text) <= room
    if fits or not of_rank(cause) or cause["hang"] is not None or cause["cause"] in UNTOLD:
        return text
    head = f"{subject(cause)}: {cause['title']}: "
    if text.lower().startswith(head.lower()):
        room = max(room - len(head), width // 2)
        return f"{text[: len(head)]}{shortened(text[len(head) :], room)}"
    shown = shortened(text, room)
    if cause["title"].lower() in shown.lower():
        return text
    if text.lower().startswith(f"{subject(cause)}: {cause['title']}".lower()):
        begin = len(subject(cause)) + len(cause["title"]) + 2
        return f"{text[:begin]}{shortened(text[begin:], max(room - begin, width // 2))}"
    titled = f"{subject(cause)}: {cause['title']}"
    # What the program itself raised says more than what it was raised from, which the title has.
    raised = cause["raised_in"]
    own = (raised is None or not is_library(raised["file"])) and not cause["cause"].startswith("dataloader")
    bare = without_source(description) if own else description
    whole = len(titled) + len(description) + 3 <= room
    return f"{titled} ({bare if not whole and len(titled) + len(bare) + 3 <= room else description})"


def of_rank(failure: Json) -> bool:
    """Return whether a failure is of a rank, known or not, and not of a node or an agent."""
    return failure["rank"] is not None or failure["kind"] in WORKER_KINDS


def _moment(report: Json, failure: Json) -> str:
    """When a failure was; in logs only which attempt, if there are several."""
    if report["source"] == SOURCE:
        entry = round_of(report, failure)
        counted = step_of(entry) if failure["step"] is None and entry is not None else ""
        return f"{counted}, round {failure['round']}" if counted.startswith("optimizer") else moment(failure)
    return f"in attempt {failure['round']}" if len(report["rounds"]) > 1 else ""


def place_lines(failure: Json, style: Style, when: str | None = None) -> list[str]:
    """Return the lines on where and when it was, by default at which step and in which round."""
    where = place(failure) if failure["hang"] is None else ""
    when = moment(failure) if when is None else when
    line = ", ".join(
        part for part in (f"at {where}" if where else "", when.removeprefix("in ") if where else when) if part
    )
    room = style.width - 2
    if failure["rank"] is None and failure["ranks"]:
        line += f"; it had {those_ranks(failure['ranks'])}"
    elif failure["hang"] is not None:
        line = _noticed(failure, failure["hang"], room)
    first = ""
    if failure["alike"] is not None and failure["alike"]["ordered"] and failure["hang"] is None:
        first = f"{'; ' if line else ''}first noticed: {first_of(failure)}"
    if failure["raised_in"] is not None and where and failure["hang"] is None:
        line = _with_raised(line, where, failure["raised_in"], room - len(first))
    return style.wrapped(line + first)


def _with_raised(line: str, where: str, raised: Json, room: int) -> str:
    """Add where a library raised it, if there is room in one line: without the own function, or its directories."""
    at = f" (raised in {_short(safe(raised['shown']))}:{raised['line']})"
    bare = where.partition(" in ")[0]
    shorter = (line.replace(where, each, 1) for each in (where, bare, with_short_paths(bare)))
    return next((f"{each}{at}" for each in shorter if len(each) + len(at) <= room), line)


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
    whole = f"{where}; {rank}: {message}"
    # The first line names a rank whose own time-out it was.
    shorter = f"{where}; {message if its_own else rank}"
    return next((text for text in (whole, shorter) if len(text) <= room), where)


def _short(path: str) -> str:
    """``torch/.../signal_handling.py``: the package of a file and its name."""
    parts = path.split("/")
    if path.startswith("/"):
        return parts[-1]
    return path if len(parts) < 4 else f"{parts[0]}/.../{parts[-1]}"


def doubt_lines(report: Json, failure: Json, style: Style) -> list[list[str]]:
    """Qualifications of the headline: what a cascade follows from, simultaneous failures."""
    entry = round_of(report, failure)
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


def round_of(report: Json, failure: Json) -> Json | None:
    """Return the round of a failure."""
    return next((r for r in report["rounds"] if r["round"] == failure["round"]), None)


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
        numbers = clip(ranges(e["round"] for e in group), 16)
        title = f"rounds {numbers}" if failure is None else f"{len(group)} rounds ({numbers}), the last"
    if failure is None:
        why = entry["scheduler"] or first_line(entry["reason"] or "") or "why is not recorded"
        outcome = "" if entry["outcome"] == "unknown" else f"{safe(entry['outcome'])}: "
        lines = [style.line(f"{title}: {outcome}{why}")]
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

"""The status as text: a summary in the first line, then what the run waits for, its nodes and its ranks (pure)."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ftslurm.report.layout import WIDTH, Style
from ftslurm.report.wording import Json
from ftslurm.slurm.nodelist import NodeListError, compress
from ftslurm.status.stopping import NO_SAVE, stop_line
from ftslurm.status.table import columns, table
from ftslurm.text import clip, duration, first_line, names, plural, safe

MAX_ROUNDS = 3
MAX_ROWS = 16
MAX_RANKS = 5
MAX_TIMEOUTS = 8
MAX_PROBLEMS = 5
MAX_FINDINGS = 6
FRESH_S = 10.0
QUIET_S = 60.0
OVER = ("ended", "silent")
INTERRUPTED = "interrupted: "
"""The reason of an orderly stop begins with it."""
NOT_DETECTED = (
    "a rank that hangs is not detected: no rank has sent a heartbeat (ftslurm.heartbeat() in the script, or the first "
    "20 steps of a torch optimizer; or --hang-timeout SECONDS)"
)


def render(
    status: Json,
    *,
    everything: bool = False,
    colour: bool = False,
    width: int = WIDTH,
    zone: Callable[[float], Any] = time.localtime,
) -> str:
    """Render a status for a terminal.

    Args:
        status: the result of `ftslurm.status.summary.summarise`.
        everything: one line per node, all rounds and all conspicuous ranks.
        colour: whether to add ANSI colours.
        width: columns.
        zone: converts seconds since the epoch to a `time.struct_time` of the reader's time zone.

    Returns:
        Lines, each ended by a newline. Nothing from a file can reach the terminal as a control sequence.
    """
    style = Style(colour, max(40, width), zone)
    title, rest, tint = _headline(status)
    lines = style.title(title, rest, tint)
    for text in _facts(status, style):
        lines += style.wrapped(text)
    lines += _rounds(status, style, everything)
    if status["status"] != "closed" or everything:
        lines += _nodes(status, style, everything)
        lines += _health(status, style, everything)
        lines += _ranks(status, style, everything)
    lines += _problems(status, style, everything)
    lines.append(_report(status))
    return "\n".join(lines) + "\n"


def _headline(status: Json) -> tuple[str, str, str]:
    """Return the first line: its start, its rest, and its colour."""
    name = f"run {clip(safe(status['run']), 40)}"
    now = status["status"]
    form = {"closed": _closed, "ended": _ended, "silent": _silent, "forming": _forms, "unknown": _unknown}
    if now in form:
        start, rest, tint = form[now](status)
        return f"{name}{start}", rest, tint
    world = status["world"]
    start = f": round {status['round']} "
    if now == "hanging":
        hang = status["hang"]
        return (
            f"{name}{start}HANGS",
            f": rank {hang['rank']} on {safe(hang['node'])}: {first_line(hang['what'])}",
            "red",
        )
    if now == "ending":
        first = status["failures"][0]
        where = f"rank {first['rank']} on {safe(first['node'])}"
        return f"{name}{start}is ending", f": {where} failed: {first_line(first['message'])}", "yellow"
    size = f"{plural(world['nodes'], 'node')}, {plural(world['ranks'], 'rank')}"
    return f"{name}{start}runs", f" on {size}{_step(status)}, {_restarts(status)}", "green"


def _closed(status: Json) -> tuple[str, str, str]:
    closed = status["closed"]
    if closed is None:
        return " is closed", ": its outcome is not recorded", "yellow"
    outcomes = {
        "succeeded": (" succeeded", "green"),
        "failed": (" FAILED", "red"),
        "stopped": (" was stopped", "yellow"),
    }
    reason = first_line(closed["reason"])
    if closed["outcome"] == "stopped" and reason.startswith(INTERRUPTED):
        return " was interrupted", f": {reason.removeprefix(INTERRUPTED)}", "yellow"
    if closed["saved"] == NO_SAVE:
        reason += f"; {NO_SAVE}"
    start, tint = outcomes.get(closed["outcome"], (f" is closed, {first_line(closed['outcome'])}", "yellow"))
    return start, f": {reason}", tint


def _ended(status: Json) -> tuple[str, str, str]:
    rest = f": its agents ended without recording the run's end; it was {_activity(status)}"
    return " has ended", rest, "red"


def _silent(status: Json) -> tuple[str, str, str]:
    if status["newest_s"] is None:
        return " is SILENT", ": it is not closed, but no node record found", "red"
    rest = f" for about {duration(status['newest_s'])}: no agent has written since; it was {_activity(status)}"
    return " is SILENT", rest, "red"


def _activity(status: Json) -> str:
    where = f"in round {status['round']}" if status["phase"] == "running" else "forming a round"
    return f"{where}{_step(status)}"


def _forms(status: Json) -> tuple[str, str, str]:
    forming = status["forming"]
    ready = f"{plural(forming['ready'], 'node')} ready, at least {forming['needed']} needed"
    return f": round {status['round'] + 1} forms", f": {ready}, {_restarts(status)}", "yellow"


def _unknown(status: Json) -> tuple[str, str, str]:
    if not status["nodes"] and not status["problems"]:
        return ": no agent has started", "; neither a state nor a node record is there", "yellow"
    records = plural(len(status["nodes"]), "node")
    return ": no readable state", f"; records of {records}", "yellow"


def _step(status: Json) -> str:
    last, made = status["steps"]["last"], status["steps"]["optimizer"]
    if last is None and made is not None:
        return f", optimizer step {made['last']}"
    return "" if last is None else f", step {last}"


def _restarts(status: Json) -> str:
    restarts = status["restarts"]
    if not restarts["allowed"]:
        return "no restarts allowed"
    return f"{restarts['used']} of {plural(restarts['allowed'], 'restart')} used"


def _facts(status: Json, style: Style) -> Iterable[str]:
    """Yield further facts on the run as a whole."""
    if 0 < status["token"] < status["newest_token"]:
        yield f"this is state {status['token']}; the newest, {status['newest_token']}, is unusable"
    if status["closed"] is not None:
        ended = style.date(status["closed"]["time_ns"], "%Y-%m-%d %H:%M:%S")
        yield f"exit code {status['closed']['exit_code']}, ended {ended}{_step(status)}, {_restarts(status)}"
        yield from _time(status)
        yield from _slurm(status)
        return
    if status["attempt"] is not None:
        yield _coordinator(status)
    yield from _slurm(status)
    if status["stop"] is not None:
        yield stop_line(status["stop"])
    yield from _waits(status)
    if status["status"] not in OVER and (status["newest_s"] or 0.0) > FRESH_S:
        yield f"the newest node record is about {duration(status['newest_s'])} old, by this machine's clock"
    if status["clock_behind_s"] > 1.0:
        behind = duration(status["clock_behind_s"])
        yield f"this machine's clock is {behind} or more behind the file server's: times since then are too short"
    text = _timeouts(status["timeouts"])
    if text:
        yield text
    if status["status"] == "running" and (status["quiet_s"] or 0.0) >= QUIET_S:
        yield f"no rank has printed anything for {duration(status['quiet_s'])}"
    if status["timeouts"]["detects_hangs"] is False:
        yield NOT_DETECTED
    yield from _time(status)


def _time(status: Json) -> Iterable[str]:
    if status["time"]:
        yield f"in all: {status['time']}"


def _slurm(status: Json) -> Iterable[str]:
    if status["slurm"] is not None:
        yield from status["slurm"]["lines"]


def _coordinator(status: Json) -> str:
    number = status["attempts"]
    parts = [f"attempt {number} ({safe(status['attempt'])})"] if number > 1 else []
    if status["formed_s"] is not None and status["status"] not in OVER:
        parts.append(f"formed {duration(status['formed_s'])} ago")
    lease = status["coordinator"]
    parts.append(f"coordinator {safe(lease['node'])}, term {lease['term']}")
    return ", ".join(parts)


def _waits(status: Json) -> Iterable[str]:
    """Yield why a round ends or does not begin yet."""
    hang, forming = status["hang"], status["forming"]
    if hang is not None:
        step = "" if hang["step"] is None else f", its last step is {hang['step']}"
        pending = "" if hang["acknowledged"] else "; the coordinator has not handled it yet"
        done = f"{hang['stacks_collected']} of {plural(hang['of'], 'node')}"
        yield f"{done} have collected their ranks' stacks{step}{pending}"
        if hang["awaited"] and hang["stacks_collected"]:
            yield f"awaited: {_list(hang['awaited'])}"
    failures = status["failures"]
    if len(failures) > 1:
        more = [f"rank {each['rank']} on {safe(each['node'])}" for each in failures]
        yield f"failed: {names(more)}; for the order see ftslurm report"
    if forming is not None:
        if forming["busy"]:
            yield f"still ending the last round: {_list(forming['busy'])}"
        if forming["awaited"]:
            yield f"awaited: {_list(forming['awaited'])}"
        if forming["silent"]:
            yield f"silent: {_list(forming['silent'])}"
        if forming["health_pending"]:
            yield f"health pending: {_list(forming['health_pending'])}"
        if forming["unhealthy"]:
            yield f"unhealthy: {_list(forming['unhealthy'])}"
        if forming["missing"]:
            yield f"no node record of: {_list(forming['missing'])}"


def _timeouts(timeouts: Json) -> str:
    """Return the time-outs in force with their sources."""
    shown = timeouts["entries"][:MAX_TIMEOUTS]
    sources = {
        "option": "set by option",
        "learned": f"learned from {plural(timeouts['rounds'], 'round')}",
        "default": "default",
    }
    parts = []
    for source, why in sources.items():
        of_it = [f"{_watched(each)} {_allowed(each['seconds'])}" for each in shown if each["source"] == source]
        parts += [f"{', '.join(of_it)} ({why})"] if of_it else []
    rest = len(timeouts["entries"]) - len(shown)
    parts += [f"{rest} more in --json"] if rest else []
    if parts and timeouts["silent"]:
        parts.append(f"{plural(timeouts['silent'], 'rank')} sent no heartbeat so far")
    return f"time-outs: {'; '.join(parts)}" if parts else ""


def _watched(entry: Json) -> str:
    return entry["what"] if entry["name"] is None else f"section {clip(safe(entry['name']), 40)}"


def _allowed(seconds: float | None) -> str:
    return "off" if seconds is None else duration(seconds)


def _rounds(status: Json, style: Style, everything: bool) -> list[str]:
    """Return a table of the last rounds, newest first."""
    rounds = status["rounds"] if everything else status["rounds"][:MAX_ROUNDS]
    if not rounds:
        return []
    today = style.date(status["made_ns"], "%x")
    form = "%H:%M:%S" if all(style.date(each["ended_ns"], "%x") == today for each in rounds) else "%m-%d %H:%M"
    rows = [["round", "ended", "took", "why"]]
    for each in rounds:
        why = first_line(each["reason"] or "") or safe(each["outcome"])
        rows.append([str(each["round"]), style.date(each["ended_ns"], form), duration(each["took_s"]), why])
    lines = [style.line(line) for line in columns(rows)]
    rest = len(status["rounds"]) - len(rounds)
    lines += [f"  and {plural(rest, 'earlier round')} (--all)"] if rest else []
    return [style.section(lines[0]), *lines[1:]]


def _nodes(status: Json, style: Style, everything: bool) -> list[str]:
    rows = [row for row in status["nodes"] if everything or row["role"] != "earlier"]
    lines = table(rows, status["round"], style, grouped=not everything and len(rows) > MAX_ROWS)
    hidden = len(status["nodes"]) - len(rows)
    return lines + ([f"  and {plural(hidden, 'node')} of earlier attempts (--all)"] if hidden else [])


def _health(status: Json, style: Style, everything: bool) -> list[str]:
    """Return the nodes' findings, each once; the reason of an unhealthy node is in the table already."""
    groups: dict[tuple[str, str, str, str], list[Json]] = {}
    for row in status["nodes"]:
        for each in row["health"]["findings"] if row["health"] is not None and row["role"] != "earlier" else ():
            key = each["status"], each["check"], each["subject"], each["text"]
            groups.setdefault(key, []).append(row)
    # "fail" comes before "warn".
    shown = sorted(groups.items(), key=lambda group: group[0][0])
    most = len(shown) if everything else MAX_FINDINGS
    lines: list[str] = []
    for (level, _, subject, text), rows in shown[:most]:
        finding = f"{safe(subject)}: {safe(text)}" if subject else safe(text)
        lines += style.wrapped(f"health: {_list([row['node'] for row in rows])}: {safe(level)}: {finding}")
    return lines + _more(len(shown) - most, "finding", "of health checks")


def _ranks(status: Json, style: Style, everything: bool) -> list[str]:
    """Return the pace of training steps, and conspicuous ranks."""
    most = len(status["nodes"]) * 1000 if everything else MAX_RANKS
    steps, slow, late = status["steps"], status["slow"], status["late"]
    lines: list[str] = []
    if steps["step_s"]:
        made = steps["optimizer"]
        few = f"; {steps['reporting']} of {plural(steps['of'], 'rank')} report steps"
        few = few if steps["reporting"] < steps["of"] else ""
        if made is not None:
            few = f"; {made['ranks']} of {plural(steps['of'], 'rank')} step" if made["ranks"] < steps["of"] else ""
        none = ""
        if not slow and not late["ranks"] and (steps["compared"] > 1 or late["compared"] > 1):
            # Equal steps alone must not be read as "no problem".
            none = "; no slow rank" if late["compared"] > 1 else "; no slow rank (arrivals at collectives not compared)"
        lines += style.wrapped(
            f"pace: {duration(steps['step_s'])} {'a step' if made is None else 'a step of the optimizer'}{few}{none}"
        )
    for each in status["behind"][:most]:
        where = f"rank {each['rank']} on {safe(each['node'])}"
        lines.append(style.line(f"behind: {where}: step {each['step']}, the others are at {each['usual']}"))
    lines += _more(len(status["behind"]) - most, "rank", "behind")
    for each in slow[:most]:
        where = f"rank {each['rank']} on {safe(each['node'])}"
        paces = f"{duration(each['median_s'])} a step, the others {duration(each['others_s'])} (medians)"
        lines.append(style.line(f"slow: {where}: {paces}"))
    lines += _more(len(slow) - most, "rank", "slow")
    if not late["ranks"]:
        return lines
    from ftslurm.monitor.lateness import phrase

    for each in late["ranks"][:most]:
        lines += style.wrapped(f"slow: rank {each['rank']} on {safe(each['node'])} {safe(phrase(each))}")
    return lines + _more(len(late["ranks"]) - most, "rank", "late")


def _more(number: int, thing: str, what: str) -> list[str]:
    return [f"  and {plural(number, f'more {thing}')} {what} (--all)"] if number > 0 else []


def _problems(status: Json, style: Style, everything: bool) -> list[str]:
    found = status["problems"]
    shown = found if everything else found[:MAX_PROBLEMS]
    lines: list[str] = []
    for each in shown:
        lines += style.wrapped(f"unusable: {safe(each['file'])}: {safe(each['reason'])}")
    return lines + _more(len(found) - len(shown), "file", "unusable")


def _report(status: Json) -> str:
    what = "why and how" if status["status"] == "closed" else "more"
    return f"  {what}: ftslurm report {safe(shlex.quote(status['directory']))}"


def _list(nodes: Sequence[str]) -> str:
    """Return node names as Slurm's hostlist if possible, else as a list."""
    try:
        return clip(compress(nodes), 200)
    except NodeListError:
        return names(nodes)

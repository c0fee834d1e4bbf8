"""The parts of a text report below its headline: evidence, ranks, rounds, defects, one rank's page (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.failures.causes import CASCADE
from ftslurm.monitor.lateness import phrase
from ftslurm.pattern import pattern
from ftslurm.report.accounting import sentence
from ftslurm.report.layout import Style
from ftslurm.report.wording import Json, brief, cost_of, finding, place, rank_of, step_of, verdict
from ftslurm.text import clip, duration, first_line, names, plural, safe, safe_lines

_STOPPED_FOR = pattern(r"rank (\d{1,9}) on \S+ failed")
TRACEBACK_HEAD, TRACEBACK_TAIL = 12, 40
LOG_LINES_BESIDE_TRACEBACK = 10
ROUNDS_SHOWN = 12
EVIDENCE_SHOWN = 12
GROUPS_SHOWN = 12
PROBLEMS_SHOWN = 10
SLOW_SHOWN = 5
ATTEMPT_WIDTH = 16
FINDINGS_SHOWN = 8
DEFECTS_SHOWN = 5
RANK_LINES_SHOWN = 200


def evidence(entry: Json, style: Style) -> list[str]:
    """The evidence of the first failure's cause, and further observations."""
    failure = entry["first_failure"]
    shown = failure["evidence_lines"][:EVIDENCE_SHOWN] if failure else []
    return [style.section("evidence"), *(line for each in shown for line in style.wrapped(safe(each)))] if shown else []


def traceback(entry: Json, style: Style) -> list[str]:
    """The first failure's traceback; without one, the stacks of a crash."""
    failure = entry["first_failure"]
    text = (failure["traceback"] or failure["stacks"]) if failure else None
    if not text:
        return []
    kind = "traceback" if failure["traceback"] else "stacks"
    lines = safe_lines(text.rstrip("\n"))
    left_out = len(lines) - TRACEBACK_HEAD - TRACEBACK_TAIL
    if left_out > 1:
        lines[TRACEBACK_HEAD:-TRACEBACK_TAIL] = [f"  ... {left_out} lines left out ..."]
    title = f"{kind} of {rank_of(failure)} in round {entry['round']}"
    return [style.section(title), *style.quoted(lines, "  ")]


def log(entry: Json, report: Json, style: Style) -> list[str]:
    """The end of the first failure's output, without the traceback shown above."""
    failure = entry["first_failure"]
    end = failure["log"] if failure else None
    if end is None:
        return []
    lines = [safe(line).rstrip() for line in end["lines"]]
    what = f"the end of its {end['stream']}"
    if failure["traceback"]:
        lines = lines[-LOG_LINES_BESIDE_TRACEBACK:]
        what += ", traceback left out" if end["stream"] == "stderr" else ""
    path = safe(end["path"]).removeprefix(safe(report["run"]["directory"]).rstrip("/") + "/")
    return [style.section(f"{what} ({path})"), *style.quoted(lines, "  | ")]


def others(entry: Json, report: Json, style: Style) -> list[str]:
    """The other ranks of the round, one line for each kind of end."""
    rows = other_ranks(entry, report)
    if not rows:
        return []
    width = max(len(ranks) for ranks, _ in rows)
    return [style.section(others_title(entry)), *(style.line(f"{ranks:<{width}}  {text}") for ranks, text in rows)]


def others_title(entry: Json) -> str:
    """The title of the table of `other_ranks`."""
    return f"{'the other ranks' if entry['first_failure'] else 'the ranks'} of round {entry['round']}"


def other_ranks(entry: Json, report: Json) -> list[tuple[str, str]]:
    """The other ranks of the round, grouped by their ends."""
    rows = [(_ranks(g["ranks"], g["count"]), _end_of(g)) for g in entry["groups"][:GROUPS_SHOWN]]
    rest = entry["groups"][GROUPS_SHOWN:]
    if rest:
        more = sum(g["count"] for g in rest)
        rows.append((plural(more, "rank"), f"{plural(len(rest), 'more kind')} of failure (see --json)"))
    stopped, finished, silent = entry["stopped"], entry["finished"], entry["silent"]
    if stopped is not None:
        some = "" if stopped["killed"] == stopped["count"] else f", {stopped['killed']} of them"
        killed = f"{some} by SIGKILL" if stopped["killed"] else ""
        why = _why_stopped(first_line(stopped["reason"] or ""), entry["first_failure"])
        rows.append((_ranks(stopped["ranks"], stopped["count"]), f"stopped by ftslurm{killed}{why}"))
    if finished is not None:
        rows.append((_ranks(finished["ranks"], finished["count"]), "had finished with exit code 0"))
    if silent is not None:
        where = f" (on {names(silent['nodes'])})" if silent["nodes"] else ""
        yet = " yet" if report["status"] == "running" and entry is report["rounds"][-1] else ""
        rows.append((_ranks(silent["ranks"], silent["count"]), f"no end recorded{yet}{where}"))
    return rows


def _why_stopped(reason: str, failure: Json | None) -> str:
    """Return why ranks were stopped: by the failure that was noticed first, which need not be the first failure."""
    named = _STOPPED_FOR.match(reason)
    if named is None or failure is None or failure["rank"] is None or int(named[1]) == failure["rank"]:
        return f": {reason}" if reason else ""
    return f", when rank {named[1]}'s end was noticed"


def slow(report: Json, style: Style) -> list[str]:
    """The ranks that were persistently slower than the others in the round that is shown, else in the last one."""
    title, rows = slow_ranks(report)
    lines = [line for rank, what in rows[:SLOW_SHOWN] for line in style.wrapped(f"{rank}: {what}")]
    more = [f"  and {len(rows) - SLOW_SHOWN} more (see --json)"] if len(rows) > SLOW_SHOWN else []
    return [style.section(title), *lines, *more] if lines else []


def slow_ranks(report: Json) -> tuple[str, list[tuple[str, str]]]:
    """The title of the list of slow ranks, and its rows: the rank, and how it is slow."""
    chosen = [r for r in report["rounds"] if r["round"] == report["focus"]] or report["rounds"][-1:]
    found = [
        (each, f"{duration(each['median_s'])} a step, the others {duration(each['others_s'])} (medians)")
        for entry in chosen
        for each in entry["slow"]
    ]
    found += [(each, safe(phrase(each))) for entry in chosen for each in entry["late"]]
    rows = [(f"rank {each['rank']} on {safe(each['node'])}", what) for each, what in found]
    return f"slower than the others in round {chosen[0]['round']}" if chosen else "", rows


def health(report: Json, style: Style) -> list[str]:
    """The findings of checks, those of the first failure's node first, and the nodes that took no part."""
    found = report["health"]
    lines: list[str] = []
    for each in found["findings"][:FINDINGS_SHOWN]:
        lines += style.wrapped(finding(each, style))
        lines += style.wrapped(f"hint: {safe(each['advice'])}", "    ") if each["advice"] and each["of_failure"] else []
    more = len(found["findings"]) - FINDINGS_SHOWN + found["more"]
    lines += [f"  and {plural(more, 'more finding')} (see --json)"] if more > 0 else []
    for each in found["left_out"][:FINDINGS_SHOWN]:
        lines += style.wrapped(each["text"])
    more = len(found["left_out"]) - FINDINGS_SHOWN + found["more_left_out"]
    lines += [f"  and {plural(more, 'more node')} left out (see --json)"] if more > 0 else []
    return [style.section("health of the nodes"), *lines] if lines else []


def timeline(report: Json, style: Style) -> list[str]:
    """The rounds as a table, with what each failure cost."""
    rounds = report["rounds"]
    if not rounds:
        return []
    shown, left_out = rounds, len(rounds) - ROUNDS_SHOWN
    if left_out > 0:
        shown = [*rounds[:2], *rounds[2 - ROUNDS_SHOWN :]]
    title, form = _dates(shown, style)
    head = ["round", "attempt", "nodes", "ranks", "started", "took", "ended"]
    attempts = _short_attempts([entry["attempt"] or "?" for entry in shown])
    rows = [
        head,
        *(
            _row(entry, attempt, report, style.date(entry["started_ns"], form))
            for entry, attempt in zip(shown, attempts, strict=True)
        ),
    ]
    if len({entry["attempt"] for entry in rounds}) < 2:
        rows = [row[:1] + row[2:] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = [_cells(rows[0], widths, style)]
    for i, entry in enumerate(shown):
        lines.append(_cells(rows[i + 1], widths, style))
        cost = cost_of(entry["cost"]) if entry["cost"] is not None else ""
        lines += [style.line(" " * (widths[0] + 2) + cost)] if cost else []
        if i == 1 and left_out > 0:
            lines.append(style.line(f"... {left_out} rounds left out (see --json)"))
    return [style.section(title), *lines, *_in_all(report, style), *clocks(report, style)]


def missing(report: Json, style: Style) -> list[str]:
    """The missing records; empty if the end of the run is recorded and no record is missing."""
    found = report["missing"]
    lines = [line for each in found for line in style.wrapped(safe(each))]
    return [style.section("what is missing"), *lines] if lines else []


def problems(report: Json, style: Style) -> list[str]:
    """The unusable files, with reasons."""
    found = report["problems"]
    lines = [f"  {safe(p['file'])}: {safe(p['reason'])}" for p in found[:PROBLEMS_SHOWN]]
    if len(found) > PROBLEMS_SHOWN:
        lines.append(f"  and {len(found) - PROBLEMS_SHOWN} more (see --json)")
    if report["skipped_rounds"]:
        older = plural(report["skipped_rounds"], "older round")
        lines.append(f"  the files of {older} were not read (--round N reads them)")
    return [style.section("files that could not be used"), *style.quoted(lines, "")] if lines else []


def files(report: Json) -> list[str]:
    """The location of the run directory."""
    # A job without a run has none.
    return [f"  files: {safe(report['run']['directory'])}"] if report["job"] is None else []


def _end_of(group: Json) -> str:
    text = brief(group["what"])
    known = group["title"].lower() in text.lower()
    return f"{group['title']} ({text})" if group["role"] == CASCADE and not known else text


def _ranks(text: str, number: int) -> str:
    if number == 1 or text.isdecimal():
        return f"rank {text}"
    return f"ranks {text}" if number <= 64 and len(text) <= 18 else f"{number} ranks ({clip(text, 18)})"


def _short_attempts(attempts: Sequence[str]) -> list[str]:
    """Return the attempts' names for a column: of long ones, as of runs outside Slurm, the part that differs."""
    common = 0
    if max(map(len, attempts)) > ATTEMPT_WIDTH:
        letters = enumerate(zip(*attempts, strict=False))
        common = next((i for i, each in letters if len(set(each)) > 1), min(map(len, attempts)) - 1)
    return [clip(safe(f"...{name[common:]}" if common > 3 else name), ATTEMPT_WIDTH) for name in attempts]


def _row(entry: Json, attempt: str, report: Json, started: str) -> list[str]:
    world = entry["world_size"]
    return [
        str(entry["round"]),
        attempt,
        str(len(entry["nodes"])),
        "?" if world is None else str(world),
        started,
        duration(took(entry, report)),
        ended(entry, report),
    ]


def _cells(row: list[str], widths: list[int], style: Style) -> str:
    return style.line("  ".join([*(row[i].ljust(width) for i, width in enumerate(widths)), row[-1]]).rstrip())


def took(entry: Json, report: Json) -> float | None:
    """The duration of a round, so far if it runs; None if unknown."""
    if entry["outcome"] == "running" and report["status"] == "running" and entry["started_ns"] is not None:
        return float(report["made_ns"] - entry["started_ns"]) / 1e9
    span: float | None = entry["duration_s"]
    return span


def ended(entry: Json, report: Json) -> str:
    """How a round ended, in a line."""
    if entry["first_failure"] is not None:
        return verdict(entry["first_failure"])
    outcome: str = safe(entry["outcome"])
    if outcome in ("running", "unknown"):
        running = outcome == "running" and report["status"] == "running"
        if entry["scheduler"] and not running:
            return safe(entry["scheduler"])
        return "running" if running else "no end recorded"
    step = f" at {step_of(entry)}" if step_of(entry) else ""
    reason = f": {first_line(entry['reason'])}" if entry["reason"] and outcome != "succeeded" else ""
    return f"{outcome}{step}{reason}"


def clocks(report: Json, style: Style) -> list[str]:
    """The nodes whose clocks are off: their times here differ from those in their logs."""
    far = [(safe(clock["node"]), clock["ahead_s"]) for clock in report["clocks"]]
    parts = [f"{node} {duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}" for node, ahead in far]
    if not parts:
        return []
    more = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
    return style.wrapped(f"clocks that are off, corrected here: {', '.join(parts[:4])}{more}")


def _in_all(report: Json, style: Style) -> list[str]:
    text = in_all(report)
    return style.wrapped(f"in all: {text}") if text else []


def in_all(report: Json) -> str:
    """The time accounting of a run of several rounds; empty if it adds nothing."""
    text, cost = sentence(report), report["cost"]
    if len(report["rounds"]) < 2:
        return ""
    if text and report["accounting"]["rounds"] < len(report["rounds"]):
        return f"since round {report['accounting']['first_round']}: {text}"
    return text or (f"{duration(cost['between_rounds_s'])} between rounds" if cost["rounds"] > 1 else "")


def _dates(rounds: list[Json], style: Style) -> tuple[str, str]:
    """The table's title and the format of its times: a day that all rounds share is shown once."""
    known = [r["started_ns"] for r in rounds if r["started_ns"] is not None]
    days = {style.date(t, "%Y-%m-%d") for t in known}
    zone = style.date(known[0], "%Z") if known else ""
    if len(days) == 1:
        return f"rounds ({' '.join(part for part in (*days, zone) if part)})", "%H:%M:%S"
    return f"rounds{f' (times in {zone})' if zone not in ('', '?') else ''}", "%m-%d %H:%M:%S"


def defect_lines(report: Json) -> list[list[str]]:
    """Return each defect's lines of text; the first one describes it."""
    return [_defect_lines(each) for each in report["defects"]]


def _defect_lines(each: Json) -> list[str]:
    more = each["node_count"] - len(each["nodes"])
    where = names(each["nodes"]) + (f" and {more} more nodes" if more > 0 else "")
    place = f" ({safe(each['place'])})" if each["place"] else ""
    what = f"{clip(safe(each['error']), 200)}{place}"
    if each["part"] is None:
        first = f"{where}: the agent ended: {what}"
    else:
        first = f"{where}: {safe(each['part'])}: {what}"
    meaning = [f"{safe(each['meaning'])}; the job went on"] if each["meaning"] else []
    return [first, *meaning, f"please report it, with {safe(each['file'])}"]


def defects(report: Json, style: Style) -> list[str]:
    """Return the section of a text report."""
    found = defect_lines(report)
    lines: list[str] = []
    for first, *rest in found[:DEFECTS_SHOWN]:
        lines += style.wrapped(first)
        lines += [line for each in rest for line in style.wrapped(each, "    ", "      ")]
    if len(found) > DEFECTS_SHOWN:
        lines.append(f"  and {len(found) - DEFECTS_SHOWN} more (see --json)")
    return [style.section("defects of ftslurm itself, neither your program's nor a node's"), *lines] if lines else []


def rank_page(report: Json, style: Style) -> list[list[str]]:
    """Return blocks of lines about ``report["rank"]``: how it ended, then its record, stacks and output."""
    rank = report["rank"]
    failure = rank["failure"]
    entry = {"first_failure": failure, "round": rank["round"]}
    blocks = [_rank_title(report, style)]
    if failure is not None:
        blocks += [evidence(entry, style), traceback(entry, style)]
    elif rank["message"]:
        record = safe_lines(rank["message"])
        blocks.append([style.section("its error record"), *style.quoted(record[:RANK_LINES_SHOWN], "  ")])
    blocks.append(_rank_stacks(rank, style))
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
        blocks += [head, evidence(entry, style), traceback(entry, style)]
        blocks.append(log(entry, report, style))
    return blocks


def _rank_title(report: Json, style: Style) -> list[str]:
    rank = report["rank"]
    failure, progress = rank["failure"], rank["progress"]
    title = f"rank {rank['rank']}" + (f" on {safe(rank['node'])}" if rank["node"] else "")
    head = f"{title}, round {rank['round']} of {safe(report['run']['id'])}"
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
    what = "steps"
    if progress is None and rank["optimizer_steps"] is not None:
        what, progress = "it reported no step; steps of its optimizer:", rank["optimizer_steps"]
    if progress is None:
        return [*lines, "  it reported no step"]
    steps = f"{what} {progress['first_step']} to {progress['last_step']}"
    if progress["last_ns"] is not None:
        steps += f", the last at {style.date(progress['last_ns'])}"
    return lines + style.wrapped(steps)


def _rank_stacks(rank: Json, style: Style) -> list[str]:
    stacks = rank["stacks"]
    if stacks is None:
        return []
    lines = [style.section("its stacks")]
    if stacks["problem"]:
        lines.append(style.line(safe(stacks["problem"])))
    lines += [style.line(f"{safe(key)}: {safe(value)}") for key, value in stacks["facts"].items()]
    shown = safe_lines(stacks["text"].rstrip("\n"))
    lines += style.quoted(shown[:RANK_LINES_SHOWN], "  ")
    left_out = len(shown) - RANK_LINES_SHOWN
    return lines + ([f"  ... {plural(left_out, 'more line')} (see --json)"] if left_out > 0 else [])

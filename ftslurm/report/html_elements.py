"""Elements of the HTML report: markup in which content from files is always text, charts of time and nodes (pure).

Nodes with the same states in all rounds share a row, so that a thousand nodes remain readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftslurm.failures.causes import PRIMARY
from ftslurm.failures.own_code import is_library
from ftslurm.pattern import pattern
from ftslurm.report.accounting import hours, percent
from ftslurm.report.layout import Style
from ftslurm.report.sections import TRACEBACK_HEAD, TRACEBACK_TAIL, ended
from ftslurm.report.wording import Json, ranks_of
from ftslurm.text import clip, duration, first_line, plural, safe, safe_lines

_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/_.~-")
_FRAME = pattern(r'( *File ")([^"]*)(", line \d+.*)')
LINE_WIDTH = 2000
ROUNDS_SHOWN = 40
ROWS_SHOWN = 60
NAMES_SHOWN = 6000
# Labels of the key, and their meanings.
LABELS = {
    "productive": ("training", "steps that no later round repeated"),
    "startup": ("startup", "until the first step of the run"),
    "lost": ("lost work", "repeated steps, and work between the last step and the failure"),
    "detection": ("detection", "from the failure until all nodes had signalled their ranks to stop"),
    "stopping": ("stopping", "from there until the last rank had ended"),
    "restart": ("restart", "from a round's end to the next round's first step"),
    "queue": ("between attempts", "waiting for Slurm, or for the user, to start the next attempt"),
    "other": ("other", "such as saving after a stop request"),
    "unknown": ("not known", "no steps were reported (ftslurm.progress), or not yet"),
}
_STATES = {
    "first": ("✕", "the first failure"),
    "lost": ("✕", "lost"),
    "hung": ("◼", "hung"),
    "also": ("!", "failed too"),
    "follows": ("○", "failed because of another rank's end"),
    "silent": ("?", "no end recorded"),
    "ran": ("·", "took part"),
    "well": ("✓", "ended well"),
    "absent": ("", "not in this round"),
}

Segment = tuple[str, float]


def esc(text: str) -> str:
    """Foreign text as HTML text, also within quotes; control characters become visible."""
    text = safe(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&#39;")


def tag(name: str, inner: str, **attributes: str | int | None) -> str:
    """An element around HTML; attributes are foreign text, ``aria_label`` is ``aria-label``, None is left out."""
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{esc(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{rendered}>{inner}</{name}>"


def link(path: str, text: str, page_directory: str | None) -> str:
    """A link to a file: relative if it is below the page's directory, else absolute; plain text if it is neither."""
    below = f"{page_directory.rstrip('/')}/" if page_directory else None
    if below is not None and path.startswith(below):
        target = "./" + _quoted(path[len(below) :])
    elif path.startswith("/"):
        target = "file://" + _quoted(path)
    else:
        return esc(text)
    return tag("a", esc(text), href=target)


def table(head: Sequence[str], rows: Iterable[str], *, label: str, class_: str | None = None) -> str:
    """A table that scrolls by itself on a narrow screen; ``head`` and ``rows`` are HTML, empty without rows."""
    body = "".join(rows)
    if not body:
        return ""
    cells = "".join(tag("th", name, scope="col") for name in head)
    inner = tag("table", f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody>", class_=class_)
    return tag("div", inner, class_="wide", role="region", tabindex=0, aria_label=label)


def row(*cells: str, id_: str | None = None) -> str:
    """A row whose first cell is its head; cells are HTML."""
    inner = tag("th", cells[0], scope="row") + "".join(f"<td>{cell}</td>" for cell in cells[1:])
    return tag("tr", inner, id_=id_)


def folded(summary: str, inner: str, *, open_: bool = False, class_: str | None = None) -> str:
    """Content that is unfolded on a click; both are HTML."""
    return tag("details", f"<summary>{summary}</summary>{inner}", class_=class_, open=("" if open_ else None))


def _quoted(path: str) -> str:
    try:
        data = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = path.encode("utf-8", "replace")
    return "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in data)


def block(lines: Sequence[str]) -> str:
    """A block of the text report, its first line as the title."""
    title, *rest = lines
    if not rest:
        return tag("p", esc(title))
    indent = min((len(line) - len(line.lstrip(" ")) for line in rest if line.strip()), default=0)
    return tag("h3", esc(title)) + tag("pre", "\n".join(esc(line[indent:]) for line in rest), tabindex=0)


def traceback_lines(text: str) -> str:
    """A traceback's lines: the user's own places stand out, those of libraries step back."""
    lines = safe_lines(text.rstrip("\n"))
    left_out = len(lines) - TRACEBACK_HEAD - TRACEBACK_TAIL
    if left_out > 1:
        lines[TRACEBACK_HEAD:-TRACEBACK_TAIL] = [f"  ... {left_out} lines left out ..."]
    lines = [clip(line, LINE_WIDTH) for line in lines]
    shown = [_frame(line) for line in lines]
    if lines and not lines[-1].startswith(" "):
        shown[-1] = f"<b>{esc(lines[-1])}</b>"
    return "\n".join(shown)


def _frame(line: str) -> str:
    place = _FRAME.fullmatch(line)
    if place is None:
        return esc(line)
    if is_library(place[2]):
        return f'<span class="dim">{esc(line)}</span>'
    return f"{esc(place[1])}<strong>{esc(place[2])}</strong>{esc(place[3])}"


def branch(node: Json, lines_left: list[int]) -> str:
    """A branch of the tree of stacks; ``lines_left`` counts down the lines that may still be shown."""
    if lines_left[0] <= 0:
        return ""
    frames = node["frames"][-lines_left[0] :]
    lines_left[0] -= 1 + len(frames)
    heading = tag("div", esc(ranks_of(node["ranks"], node["count"], [], 0)), class_="ranks")
    lines = "\n".join(_frame(clip(safe(frame), LINE_WIDTH)) for frame in frames)
    inner = heading + (tag("div", lines, class_="mono") if lines else "")
    return tag("div", inner + "".join(branch(child, lines_left) for child in node["children"]), class_="branch")


def strip(report: Json, style: Style) -> str:
    """The run from left to right, to scale: a bar of the time accounting with failures marked above it; and its key."""
    bars, failures, total = _bars(report)
    if not total:
        return ""
    drawn = "".join(
        f'<rect class="{part}" x="{_share(start, total)}" y="14" width="{_share(span, total)}" height="30">'
        f"<title>{esc(title)}</title></rect>"
        for part, start, span, title in bars
    )
    flags = "".join(
        f'<a href="#round-{number}"><svg x="{_share(at, total)}" y="0" overflow="visible">'
        f'<path class="mark" d="M-5 1h10l-5 10z"/><title>{esc(title)}</title></svg></a>'
        for number, at, title in failures
    )
    title = f"The run from left to right: {plural(len(report['rounds']), 'round')} in {duration(total)}"
    defs = (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" class="hatch-a"/><rect width="2.4" height="6" class="hatch-b"/></pattern></defs>'
    )
    chart = f'<svg class="strip" role="group" aria-label="{esc(title)}" height="46">{defs}{drawn}{flags}</svg>'
    ends = tag("span", esc(style.date(report["started_ns"], "%Y-%m-%d %H:%M:%S")))
    last = None if report["started_ns"] is None else report["started_ns"] + int(total * 1e9)
    ends += tag("span", esc(style.date(last, "%Y-%m-%d %H:%M:%S")))
    return chart + tag("div", ends, class_="axis") + _sums(report["accounting"], total)


def grid(report: Json) -> str:
    """The state of each node in each round: a row for nodes with the same states, those with failures first."""
    rounds = report["rounds"][-ROUNDS_SHOWN:]
    fates: dict[str, list[str]] = {}
    for column, entry in enumerate(rounds):
        special = _special(entry)
        usual = "well" if entry["outcome"] == "succeeded" else "ran"
        for node in dict.fromkeys(entry["nodes"]):
            fates.setdefault(node, ["absent"] * len(rounds))[column] = special.get(node, usual)
    rows_: dict[tuple[str, ...], list[str]] = {}
    for node, states in fates.items():
        rows_.setdefault(tuple(states), []).append(node)
    groups = sorted(rows_.items(), key=lambda item: (-_trouble(item[0]), len(item[1])))
    rows = [_row(states, nodes, rounds) for states, nodes in groups[:ROWS_SHOWN]]
    left_out = [nodes for _, nodes in groups[ROWS_SHOWN:]]
    if left_out:
        more = sum(len(nodes) for nodes in left_out)
        rows.append(tag("tr", tag("th", f"{plural(more, 'more node')}", scope="row")))
    head = ["nodes", *(_column(entry, report, entry is report["rounds"][0]) for entry in rounds)]
    label = "The state of each node in each round"
    used = {state for states in rows_ for state in states if state != "absent"}
    return table(head, rows, label=label, class_="grid") + _key(used) if rounds and fates else ""


def mini(entry: Json, *, first: bool) -> str:
    """A round's own time as a narrow bar."""
    parts = _inside(entry, first=first)
    total = sum(span for _, span in parts)
    if not total:
        return ""
    at, drawn = 0.0, ""
    for part, span in parts:
        drawn += f'<rect class="{part}" x="{_share(at, total)}" width="{_share(span, total)}" height="6"/>'
        at += span
    return f'<svg class="mini" height="6" aria-hidden="true">{drawn}</svg>'


def _in_short(nodes: Sequence[str]) -> str:
    """Many node names, compressed by Slurm's syntax if all are plain names."""
    from ftslurm.slurm.nodelist import NodeListError, compress

    try:
        return compress(nodes)
    except NodeListError:
        return clip(", ".join(safe(node) for node in nodes[:200]), NAMES_SHOWN)


def _bars(report: Json) -> tuple[list[tuple[str, float, float, str]], list[tuple[int, float, str]], float]:
    """All parts of the run's time (part, start, span, text), the failures (round, time, text), and the sum."""
    bars: list[tuple[str, float, float, str]] = []
    failures: list[tuple[int, float, str]] = []
    at = 0.0
    known = [r for r in report["rounds"] if r["accounting"] is not None]
    for i, entry in enumerate(known):
        for part, span in _inside(entry, first=not i):
            if entry["first_failure"] is not None and part == "detection":
                failures.append((entry["round"], at, _round_title(entry, report)))
            bars.append((part, at, span, _part_title(f"round {entry['round']}", part, span)))
            at += span
        if entry["first_failure"] is not None and (not failures or failures[-1][0] != entry["round"]):
            failures.append((entry["round"], at, _round_title(entry, report)))
        for part, span in _after(entry, known[i + 1] if i + 1 < len(known) else None):
            bars.append((part, at, span, _part_title(f"after round {entry['round']}", part, span)))
            at += span
    return bars, failures, at


def _part_title(where: str, part: str, span: float) -> str:
    name, meaning = LABELS[part]
    return f"{where}: {duration(span)} {name} ({meaning})"


def _round_title(entry: Json, report: Json) -> str:
    return f"round {entry['round']}: {ended(entry, report)}"


def _inside(entry: Json, *, first: bool) -> list[Segment]:
    spent = entry["accounting"]
    if spent is None or not spent["took_s"]:
        return []
    parts = [
        (part, spent[f"{part}_s"] or 0.0)
        for part in ("startup", "productive", "lost", "detection", "stopping", "other")
    ]
    rest = max(0.0, spent["took_s"] - sum(span for _, span in parts))
    if rest > 1e-3:
        # The unknown part precedes the failure.
        parts.insert(3, ("unknown", rest))
    # The startup of later rounds is the end of a restart.
    return [("restart" if part == "startup" and not first else part, span) for part, span in parts if span > 0]


def _after(entry: Json, following: Json | None) -> list[Segment]:
    spent = entry["accounting"]
    parts = []
    if spent["queue_s"]:
        parts.append(("queue", spent["queue_s"]))
    elif spent["restart_s"] and following is not None:
        parts.append(("restart", max(0.0, spent["restart_s"] - (following["accounting"]["startup_s"] or 0.0))))
    return parts


def _share(value: float, total: float) -> str:
    return f"{100 * value / total:.3f}%"


def _sums(sums: Json, total: float) -> str:
    known = {part: sums[f"{part}_s"] or 0.0 for part in LABELS if part != "unknown"}
    known["unknown"] = max(0.0, total - sum(known.values()))
    items = ""
    for part, span in known.items():
        if span > 1e-4 * total or (span >= 0.05 and part != "unknown"):
            name, meaning = LABELS[part]
            label = f'<b>{name}</b> {esc(duration(span))} <span class="dim">{percent(span / total)}</span>'
            items += tag(
                "li",
                f'<svg class="swatch" width="14" height="14" aria-hidden="true">{_square(part)}</svg>{label}',
                title=meaning,
            )
    lost = sums["rank_hours_lost"]
    note = (
        tag("p", f"Failures cost {esc(hours(sums))}: ranks, times lost work, detection, stopping and restart.")
        if lost
        else ""
    )
    return tag("ul", items, class_="key") + note


def _square(part: str) -> str:
    return f'<rect class="{part}" width="14" height="14" rx="3"/>'


def _special(entry: Json) -> dict[str, str]:
    """The states of a round's nodes other than mere participation."""
    found: dict[str, str] = {}
    silent = entry["silent"]
    for node in silent["nodes"] if silent else ():
        found[node] = "silent"
    for group in entry["groups"]:
        # The report does not name all nodes of large groups: marking a few of them would mislead.
        if group["role"] == PRIMARY or group["node_count"] <= len(group["nodes"]):
            found.update(dict.fromkeys(group["nodes"], "also" if group["role"] == PRIMARY else "follows"))
    found.update((other["node"], "also") for other in entry["same_time"])
    failure = entry["first_failure"]
    if failure is not None:
        kind = {"node-lost": "lost", "hang": "hung"}.get(failure["kind"], "first")
        found.update(dict.fromkeys(failure["nodes"] or (), kind))
    return found


def _trouble(states: Iterable[str]) -> int:
    """The sort key of a row: those of the newest failures first."""
    worst = 0
    for column, state in enumerate(states, 1):
        if state in ("first", "lost", "hung"):
            worst = 2000 + column
        elif state in ("also", "silent") and worst < 2000:
            worst = 1000 + column
        elif state == "follows" and worst < 1000:
            worst = column
    return worst


def _row(states: Sequence[str], nodes: Sequence[str], rounds: Sequence[Json]) -> str:
    name = esc(clip(safe(nodes[0]), 40))
    if len(nodes) > 1:
        name = folded(plural(len(nodes), "node"), tag("code", esc(_in_short(nodes))))
    cells = ""
    for state, entry in zip(states, rounds, strict=True):
        sign, meaning = _STATES[state]
        title = f"round {entry['round']}: {meaning}"
        failure = entry["first_failure"]
        if state in ("first", "hung") and failure is not None and failure["rank"] is not None:
            title += f": rank {failure['rank']}: {first_line(failure['what'])[:200]}"
        hidden = tag("span", meaning, class_="hidden")
        cells += tag("td", f'<span aria-hidden="true">{sign}</span>{hidden}', class_=state, title=title)
    return tag("tr", tag("th", name, scope="row") + cells)


def _column(entry: Json, report: Json, first: bool) -> str:
    number = tag("a", str(entry["round"]), href=f"#round-{entry['round']}", title=_round_title(entry, report))
    return number + mini(entry, first=first)


def _key(used: Iterable[str]) -> str:
    shown = [s for s in _STATES if s in set(used)]
    parts = (f'<span class="{s} cell" aria-hidden="true">{_STATES[s][0]}</span> {_STATES[s][1]}' for s in shown)
    return tag("p", "".join(tag("span", part) for part in parts), class_="key")

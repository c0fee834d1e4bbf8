"""The report as Markdown, for pasting into an issue or a chat (pure).

Text from files (messages, output, names) is rendered as code: in fences longer than any inside, or in code spans.
There, nothing is a heading, a link, HTML or a mention of a user.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ftslurm.pattern import pattern
from ftslurm.report.layout import Style
from ftslurm.report.sections import (
    PROBLEMS_SHOWN,
    ROUNDS_SHOWN,
    SLOW_SHOWN,
    clocks,
    defects,
    ended,
    failed,
    in_all,
    log,
    other_ranks,
    others_title,
    problems,
    rank_page,
    slow_ranks,
    took,
    traceback,
)
from ftslurm.report.text import hang_blocks, headline
from ftslurm.report.wording import Json, finding
from ftslurm.text import clip, duration, plural, safe

# Lines that a reader's window wraps; cut only to keep a page readable.
LINE_WIDTH, CELL_WIDTH = 500, 200
SIZE_LIMIT = 60_000
LONG = 25
"""A fence with more lines is folded away."""

# Plain text: no Markdown syntax, and nothing that GitHub links as a commit or an issue.
_PLAIN = pattern(
    r"(?!.*\b(?:[0-9a-f]{7,}|GH-\d))"
    r"(?:[A-Za-z0-9 ,;()%']|[.:](?= |$)|(?<=\d)\.(?=\d)|(?<=[A-Za-z0-9])-(?=[A-Za-z0-9])|(?<=\d\d):(?=\d\d))*"
)
_BACKTICKS = pattern(r"`+")


def render(report: Json, *, zone: Callable[[float], Any] = time.localtime) -> str:
    """Render a report as GitHub-flavoured Markdown.

    Args:
        report: what `ftslurm.report.analysis.analyse` returned.
        zone: turns seconds since the epoch into a `time.struct_time` of the reader's time zone.

    Returns:
        Text below GitHub's limit of 65,536 characters for a comment.
    """
    style = Style(False, LINE_WIDTH, zone)
    blocks = [_headline(report, style), _quoted(defects(report, style))] + [
        _quoted(block) for block in _asked_for(report, style)
    ]
    focus = next((r for r in report["rounds"] if r["round"] == report["focus"]), None)
    if focus is not None:
        blocks += [_proofs(focus), _quoted(traceback(focus, style))]
        blocks += [_quoted(block, LONG) for block in hang_blocks(focus, style)]
        blocks.append(_quoted(log(focus, report, style)))
        blocks.append(_table(others_title(focus), ("ranks", "how they ended"), other_ranks(focus, report)))
    blocks += [_health(report, style), _slow(report)]
    blocks += [_list("what repeats", (each["text"] for each in report["repeats"])), _rounds(report, style)]
    blocks += [inline(" ".join(clocks(report, style))), _list("what is missing", report["missing"])]
    blocks += [_quoted(problems(report, style), PROBLEMS_SHOWN), _run(report)]
    return _fitting([block for block in blocks if block])


def inline(text: str) -> str:
    """Foreign text within a line: unchanged if harmless, else a code span."""
    text = safe(text).strip()
    return text if _PLAIN.fullmatch(text) else code(text)


def code(text: str) -> str:
    """Foreign text as a code span that its content cannot end."""
    text = safe(text)
    if not text.strip():
        return ""
    ticks = "`" * (_longest(text) + 1)
    space = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def cell(text: str) -> str:
    """Foreign text as a table cell, where a bar would end even a code span."""
    text = clip(safe(text).strip(), CELL_WIDTH)
    if "|" not in text:
        return inline(text)
    return f"<code>{''.join(c if c.isalnum() or c == ' ' else f'&#{ord(c)};' for c in text)}</code>"


def fence(lines: Sequence[str]) -> str:
    """Foreign lines as a code block that their content cannot end."""
    ticks = "`" * max(3, 1 + max((_longest(line) for line in lines), default=0))
    return "\n".join([f"{ticks}text", *lines, ticks])


def _longest(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


def _fitting(blocks: list[str]) -> str:
    """Omit blocks from the end to stay below the limit; the last one names the complete report."""
    while len(blocks) > 2 and sum(len(block) + 2 for block in blocks) > SIZE_LIMIT:
        del blocks[-2]
    return "\n\n".join(blocks) + "\n"


def _asked_for(report: Json, style: Style) -> list[list[str]]:
    return rank_page(report, style) if report["rank"] is not None else failed(report, style)


def _list(title: str, lines: Iterable[str]) -> str:
    items = [f"- {inline(clip(line, LINE_WIDTH))}" for line in lines][:PROBLEMS_SHOWN]
    return "\n".join([f"{title}:", "", *items]) if items else ""


def _headline(report: Json, style: Style) -> str:
    lines = headline(report, style)
    title, colon, rest = lines[0].partition(": ")
    items = [f"{'  ' * (line.startswith('    '))}- {inline(line)}" for line in lines[1:]]
    return "\n".join([f"**{inline(title)}**{colon}{inline(rest)}", "", *items])


def _proofs(entry: Json) -> str:
    failure = entry["first_failure"]
    return _list("evidence", (failure["evidence_lines"] if failure else None) or [])


def _quoted(lines: Sequence[str], long: int = LONG) -> str:
    """A block of the text report, its title outside of the fence; folded if it is long."""
    if len(lines) < 2:
        return inline(lines[0]) if lines else ""
    title, block = _title(lines[0]), fence(_dedented(lines[1:]))
    if len(lines) - 1 <= long:
        return f"{title}:\n\n{block}"
    # A summary element is HTML: only our own text may be in it.
    return _folded(f"{plural(len(lines) - 1, 'line')}", f"{title}:\n\n{block}")


def _title(text: str) -> str:
    label, bracket, path = text.partition(" (")
    return f"{inline(label)} ({code(path.removesuffix(')'))})" if bracket else inline(text)


def _dedented(lines: Sequence[str]) -> list[str]:
    indent = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    return [line[indent:] for line in lines]


def _folded(summary: str, block: str) -> str:
    title, _, rest = block.partition("\n\n")
    return f"{title}\n\n<details><summary>{summary}</summary>\n\n{rest}\n\n</details>"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"{title}:", "", f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *lines])


def _rounds(report: Json, style: Style) -> str:
    shown = report["rounds"][-ROUNDS_SHOWN:]
    rows = [_round(entry, report, style) for entry in shown]
    head = ["round", "attempt", "nodes", "ranks", "started", "took", "trained", "lost", "ended"]
    left_out = len(report["rounds"]) - len(shown)
    older = f" ({plural(left_out, 'older one')} left out)" if left_out else ""
    text = in_all(report)
    return "\n\n".join(
        x for x in (_table(f"rounds{older}", head, rows), inline(f"in all: {text}") if text else "") if x
    )


def _round(entry: Json, report: Json, style: Style) -> list[str]:
    spent = entry["accounting"] or {"productive_s": None, "lost_s": None}
    return [
        str(entry["round"]),
        entry["attempt"] or "?",
        str(len(entry["nodes"])),
        "?" if entry["world_size"] is None else str(entry["world_size"]),
        style.date(entry["started_ns"], "%Y-%m-%d %H:%M:%S"),
        duration(took(entry, report)),
        duration(spent["productive_s"]),
        duration(spent["lost_s"]),
        ended(entry, report),
    ]


def _health(report: Json, style: Style) -> str:
    found = report["health"]
    items = [finding(each, style) for each in found["findings"][:PROBLEMS_SHOWN]]
    return _list("health of the nodes", [*items, *(each["text"] for each in found["left_out"])])


def _slow(report: Json) -> str:
    title, rows = slow_ranks(report)
    return _table(title, ("rank", "how"), rows[:SLOW_SHOWN])


def _run(report: Json) -> str:
    run = report["run"]
    scheduler = report.get("scheduler")
    parts = [f"made by ftslurm {run['ftslurm']}"] if run["ftslurm"] else []
    parts += [scheduler["line"]] if scheduler is not None and scheduler["line"] else []
    lines = [f"- command: {code(clip(' '.join(run['command']), LINE_WIDTH))}"] if run["command"] else []
    lines.append(f"- files: {code(clip(run['directory'], LINE_WIDTH))}")
    return "\n".join([*lines, *(f"- {inline(part)}" for part in parts)])

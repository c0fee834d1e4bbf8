"""Where the ranks of a round were, and their stacks, as text (pure)."""

from __future__ import annotations

from ftslurm.dataclasses import replace
from ftslurm.monitor.triage import COLLECTIVES
from ftslurm.report.layout import Style
from ftslurm.report.wording import Json, ranks_of
from ftslurm.text import clip, plural, safe

GROUPS_SHOWN = 10
FRAMES_SHOWN_FIRST, FRAMES_SHOWN_LAST = 3, 12
LINES_SHOWN, NATIVE_SHOWN = 60, 20
_KERNEL_STACK_SHOWN = 4
_MARKED = {
    "odd": "not where the others wait",
    "no-answer": "cannot go on, whatever the others wait for",
    "mismatch": "in another collective than most",
    "elsewhere": "elsewhere than most",
    "overdue": "the time-out was its own",
    COLLECTIVES: "named by the records of the ranks' collectives",
}


def whereabouts_text(entry: Json, style: Style) -> list[str]:
    """One line for each group of ranks, suspects first; kernel facts of those whose stacks are missing."""
    where = entry["whereabouts"]
    if where is None:
        return []
    groups = where["groups"][:GROUPS_SHOWN]
    rows = [(ranks_of(g["ranks"], g["count"], g["nodes"], g["node_count"]), g) for g in groups]
    width = min(max((len(name) for name, _ in rows), default=0), 30)
    column = replace(style, width=style.width - width - 4)
    lines = [style.section(f"where the ranks of round {entry['round']} were")]
    for name, group in rows:
        mark = "*" if group["suspect"] else " "
        wrapped = column.wrapped(safe(group["text"]), "", "")
        lines += [f" {mark}{clip(name, width):<{width}}  {wrapped[0] if wrapped else '?'}"]
        lines += [f"  {'':<{width}}  {more}" for more in wrapped[1:]]
        lines += [style.line(f"  {fact}") for fact in _facts(group["facts"])] if group["suspect"] else []
    left_out = len(where["groups"]) - GROUPS_SHOWN + where["more_groups"]
    lines += [f"  {plural(left_out, 'more location')} (see --json)"] if left_out > 0 else []
    missing = where["missing"]
    if missing is not None:
        lines.append(style.line(f"no stacks were collected of {plural(missing['count'], 'rank')} ({missing['ranks']})"))
    if any(group["suspect"] for group in groups):
        lines.append(f"  *: {_MARKED[where['verdict']]}")
        return lines
    first = entry["first_failure"] or {}
    # Where one rank failed first, it is named already.
    if first.get("ranks") != str(first.get("rank")):
        lines.append("  none of them is a suspect")
    return lines


def stacks_text(entry: Json, style: Style) -> list[str]:
    """The stacks as a tree: common frames once, then the branches; finally py-spy's frames."""
    where = entry["whereabouts"]
    if where is None:
        return []
    lines: list[str] = []
    for branch in where["tree"]:
        _draw(branch, 1, lines, style)
    left_out = len(lines) - LINES_SHOWN
    if left_out > 1:
        lines[LINES_SHOWN:] = [f"  ... {left_out} lines left out (see --json) ..."]
    if lines:
        lines.insert(0, style.section("their stacks, innermost call last"))
    for group in where["groups"]:
        if group["native"]:
            name = f"native frames of {ranks_of(group['ranks'], group['count'], [], 0)} (py-spy)"
            native = [safe(line) for line in group["native"][:NATIVE_SHOWN]]
            lines += [*([""] if lines else []), style.section(name), *style.quoted(native, "  | ")]
    return lines


def _draw(branch: Json, depth: int, lines: list[str], style: Style) -> None:
    indent = "  " * depth
    lines.append(clip(f"{indent}{ranks_of(branch['ranks'], branch['count'], [], 0)}", style.width))
    frames = [safe(frame) for frame in branch["frames"]]
    left_out = len(frames) - FRAMES_SHOWN_FIRST - FRAMES_SHOWN_LAST
    if left_out > 1:
        frames[FRAMES_SHOWN_FIRST:-FRAMES_SHOWN_LAST] = [f"... {left_out} frames left out ..."]
    lines += style.quoted(frames, f"{indent}  ")
    for child in branch["children"]:
        _draw(child, depth + 1, lines, style)


def _facts(facts: Json) -> list[str]:
    lines = []
    for key, value in facts.items():
        if key in ("State", "wchan", "syscall", "stack"):
            lines += [f"{safe(key)}: {safe(line)}" for line in str(value).splitlines()[:_KERNEL_STACK_SHOWN]]
    return lines

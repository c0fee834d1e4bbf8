"""The report as one HTML file: no network, no script, nothing from outside (pure).

A content security policy makes the browser refuse anything but the page's own style sheet, so that even a mistake in
the escaping of a log line could not run or load anything.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftslurm.report.accounting import hours, percent
from ftslurm.report.html_elements import (
    LINE_WIDTH,
    block,
    branch,
    esc,
    folded,
    grid,
    link,
    row,
    strip,
    table,
    tag,
    traceback_lines,
)
from ftslurm.report.layout import Style
from ftslurm.report.sections import (
    clocks,
    defect_lines,
    ended,
    failed,
    other_ranks,
    others_title,
    rank_page,
    slow_ranks,
    took,
)
from ftslurm.report.stopped import is_interrupted
from ftslurm.report.text import headline
from ftslurm.report.wording import Json, cost_of, nodes_of, rank_of, ranks_of
from ftslurm.text import clip, duration, names, plural, safe, size

TITLE_WIDTH = 400
# The page of a run of a thousand rounds must still open: only the newest ones are shown.
ROUNDS_SHOWN, DETAILS_SHOWN = 200, 24
PROBLEMS_SHOWN, GROUPS_SHOWN, TREE_LINES = 50, 40, 400

_CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8").strip()
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()
    + "'"
)


def render(report: Json, *, page_directory: str | None = None, zone: Callable[[float], Any] = time.localtime) -> str:
    """Render a report as a self-contained page.

    Args:
        report: what `ftslurm.report.analysis.analyse` returned.
        page_directory: the directory of the page. Links to files below it are relative, so that the directory can be
            moved; all others are absolute.
        zone: turns seconds since the epoch into a `time.struct_time` of the reader's time zone.

    Returns:
        HTML, below 2 MB whatever the run's size.
    """
    style = Style(False, LINE_WIDTH, zone)
    page = _Page(report, style, page_directory)
    focus = next((r for r in report["rounds"] if r["round"] == report["focus"]), None)
    parts = [page.head(), page.defects(), page.rank(), page.tiles(), page.timeline()]
    if focus is not None:
        parts += [
            page.evidence(focus),
            page.collectives(focus),
            page.whereabouts(focus),
            page.failed(),
            page.others(focus),
        ]
    parts += [page.health(), page.slow()]
    parts += [page.nodes(), page.rounds(focus), page.problems(), page.run()]
    inner = "\n".join(part for part in parts if part)
    return document(clip(safe(report["summary"]), 120), f"{inner}\n{page.foot()}")


def document(title: str, inner: str) -> str:
    """Return a whole page: `title` is foreign text, `inner` HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{esc(_POLICY)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"<title>{esc(title)}</title>\n<style>{_CSS}</style></head>\n<body><main>\n{inner}\n</main></body></html>\n"
    )


class _Page:
    """The sections of one report's page."""

    def __init__(self, report: Json, style: Style, directory: str | None) -> None:
        self.report = report
        self.style = style
        self.directory = directory

    def head(self) -> str:
        """The answer."""
        report = self.report
        first, *lines = headline(report, self.style)
        run_id = clip(safe(report["run"]["id"]), 40)
        heading = first.removeprefix(run_id).lstrip(": ").removeprefix("FAILED").lstrip(": ")
        heading = heading[:1].upper() + heading[1:] if report["status"] != "failed" else heading
        paragraphs = "".join(_answer_line(line) for line in lines)
        badge = "interrupted" if is_interrupted(report) else report["status"]
        top = tag("span", esc(badge.upper()), class_="badge") + tag("span", esc(run_id), class_="id mono")
        if report["started_ns"] is not None:
            top += tag("span", esc(f"started {self.style.date(report['started_ns'], '%Y-%m-%d %H:%M:%S %Z')}"))
        if report["ended_ns"] is not None:
            top += tag("span", esc(f"ended {self.date(report['ended_ns'])}"))
        inner = tag("div", top, class_="top") + tag("h1", esc(clip(heading, TITLE_WIDTH))) + paragraphs
        status = report["status"]
        return tag("header", inner, class_=status if status in ("failed", "succeeded", "running") else None)

    def tiles(self) -> str:
        """The run in figures."""
        report, sums = self.report, self.report["accounting"]
        tiles = []
        if sums["ratio"] is not None:
            tiles.append((percent(sums["ratio"]), f"of {duration(sums['elapsed_s'])} was training"))
        elif report["duration_s"] is not None:
            tiles.append((duration(report["duration_s"]), "in all"))
        lost = sum(sums[f"{key}_s"] or 0.0 for key in ("lost", "detection", "stopping", "restart", "queue"))
        if lost >= 0.05:
            wasted = f" ({hours(sums)})" if (sums["rank_hours_lost"] or 0) >= 1 else ""
            tiles.append((duration(lost), f"lost to failures and waiting{wasted}"))
        if report["rounds"]:
            last = report["rounds"][-1]
            world = "" if last["world_size"] is None else f"{plural(last['world_size'], 'rank')} in the last round"
            tiles.append((plural(len(last["nodes"]), "node"), world))
            restarts = report["restarts_used"], report["max_restarts"]
            detail = "" if None in restarts else f"{restarts[0]} of {restarts[1]} restarts used"
            tiles.append((plural(len(report["rounds"]), "round"), detail))
        if report["last_step"] is not None:
            repeated = report["cost"]["steps_repeated"]
            detail = f"the last one; {plural(repeated, 'step')} repeated" if repeated else "the last one"
            tiles.append((f"step {report['last_step']}", detail))
        elif report["last_optimizer_step"] is not None:
            tiles.append((f"step {report['last_optimizer_step']}", "of the optimizer, the last one"))
        inner = (tag("div", f"<b>{esc(b)}</b><span>{esc(text)}</span>", class_="tile") for b, text in tiles)
        return tag("div", "".join(inner), class_="tiles") if tiles else ""

    def evidence(self, entry: Json) -> str:
        """The evidence of a round's first failure."""
        failure = entry["first_failure"]
        inner = self.proofs(failure) if failure is not None else ""
        if not inner:
            return ""
        return tag("section", tag("h2", f"Evidence of round {entry['round']}") + inner)

    def proofs(self, failure: Json) -> str:
        """A failure's evidence, traceback and the end of its output."""
        known = "".join(tag("li", esc(proof)) for proof in (failure["evidence_lines"] or [])[:20])
        inner = tag("ul", known, class_="proofs") if known else ""
        text = failure["traceback"] or failure["stacks"]
        if text:
            kind = "Traceback" if failure["traceback"] else "Stacks"
            inner += tag("h3", f"{kind} of {rank_of(failure)}") + tag("pre", traceback_lines(text), tabindex=0)
        end = failure["log"]
        if end is not None:
            without = ", traceback left out" if failure["traceback"] and end["stream"] == "stderr" else ""
            shown = clip(safe(end["path"]).removeprefix(safe(self.report["run"]["directory"]).rstrip("/") + "/"), 300)
            title = f"The end of its {esc(end['stream'])}{without}: {link(end['path'], shown, self.directory)}"
            length = tag("span", f" ({size(end['size'])})", class_="dim")
            lines = "\n".join(esc(line).rstrip() for line in end["lines"])
            inner += tag("h3", title + length) + tag("pre", lines, tabindex=0)
        return inner

    def collectives(self, entry: Json) -> str:
        """What the ranks called, by the records of their collectives."""
        found = entry["collectives"]
        if found is None or not found["text"]:
            return ""
        from ftslurm.report.collectives import did

        rows = []
        for each in found["parties"]:
            label = ' <span class="tag">suspect</span>' if each["suspect"] else ""
            nodes = names(each["nodes"]) if each["node_count"] <= 4 else plural(each["node_count"], "node")
            line = row(esc(ranks_of(each["ranks"], each["count"], [], 0)) + label, esc(nodes), esc(did(each)))
            rows.append(line.replace("<tr>", '<tr class="suspect">', 1) if each["suspect"] else line)
        inner = tag("p", esc(found["text"])) + table(["ranks", "nodes", "call"], rows, label="What the ranks called")
        inner += "".join(tag("p", esc(text)) for text in [*found["remarks"], found["advice"]] if text)
        missing = found["missing"]
        if missing is not None:
            group_ranks = esc(ranks_of(missing["ranks"], missing["count"], missing["nodes"], missing["node_count"]))
            inner += tag("p", f"No record of {group_ranks} ({esc(missing['reason'])}).")
        return tag("section", tag("h2", f"The collectives of round {entry['round']}") + inner)

    def whereabouts(self, entry: Json) -> str:
        """The ranks' locations in a hung round, and their stacks."""
        where = entry["whereabouts"]
        if where is None:
            return ""
        rows = []
        for group in where["groups"][:GROUPS_SHOWN]:
            group_ranks = esc(ranks_of(group["ranks"], group["count"], [], 0))
            label = ' <span class="tag">suspect</span>' if group["suspect"] else ""
            nodes = names(group["nodes"]) if group["node_count"] <= 4 else plural(group["node_count"], "node")
            facts = "".join(tag("div", esc(f"{k}: {v}"[:500]), class_="dim mono") for k, v in group["facts"].items())
            if group["native"]:
                native = "\n".join(esc(line) for line in group["native"])
                facts += folded("native frames (py-spy)", tag("pre", native, tabindex=0))
            line = row(group_ranks + label, esc(nodes), esc(group["text"]) + facts)
            rows.append(line.replace("<tr>", '<tr class="suspect">', 1) if group["suspect"] else line)
        left_out = max(0, len(where["groups"]) - GROUPS_SHOWN) + where["more_groups"]
        inner = tag("p", esc(where["text"])) if where["text"] else ""
        inner += table(["ranks", "nodes", "where"], rows, label="Where the ranks were")
        inner += tag("p", f"{plural(left_out, 'more location')} in report.json") if left_out else ""
        missing = where["missing"]
        if missing is not None:
            group_ranks = esc(clip(missing["ranks"], 200))
            inner += tag("p", f"No stacks were collected of {plural(missing['count'], 'rank')} ({group_ranks}).")
        lines_left = [TREE_LINES]
        tree = "".join(branch(node, lines_left) for node in where["tree"])
        if tree:
            inner += tag("h3", "Their stacks, innermost call last") + tag("div", tree, class_="tree", tabindex=0)
        return tag("section", tag("h2", f"Where the ranks of round {entry['round']} were") + inner)

    def rank(self) -> str:
        """All facts about the requested rank."""
        if self.report["rank"] is None:
            return ""
        first, *blocks = rank_page(self.report, self.style)
        paragraphs = "".join(tag("p", esc(line)) for line in first[1:])
        return tag(
            "section", tag("h2", esc(first[0])) + paragraphs + "".join(block(lines) for lines in blocks if lines)
        )

    def failed(self) -> str:
        """All failed ranks in full, if requested."""
        inner = "".join(block(lines) for lines in failed(self.report, self.style) if lines)
        return tag("section", tag("h2", "All that failed") + inner) if inner else ""

    def others(self, entry: Json) -> str:
        """The other ranks of a round."""
        rows = [row(esc(group), esc(text)) for group, text in other_ranks(entry, self.report)]
        title = others_title(entry)
        inner = table(["ranks", "how they ended"], rows, label=title)
        return tag("section", tag("h2", esc(title[:1].upper() + title[1:])) + inner) if inner else ""

    def health(self) -> str:
        """The findings of checks on the nodes, and the nodes that took no part."""
        found = self.report["health"]
        rows = []
        for each in found["findings"][:PROBLEMS_SHOWN]:
            label = tag("span", esc(each["status"].upper()), class_="tag")
            subject = f"{each['subject']}: " if each["subject"] else ""
            text = esc(clip(f"{subject}{each['text']}", LINE_WIDTH))
            text += tag("div", esc(each["advice"]), class_="dim") if each["advice"] else ""
            when = tag("div", self.date(each["since_ns"]))
            when += tag("div", esc(each["relation"]["text"]), class_="dim") if each["relation"] is not None else ""
            line = row(f"{esc(nodes_of(each))} {label}", text, when)
            rows.append(line.replace("<tr>", '<tr class="suspect">', 1) if each["of_failure"] else line)
        more = len(found["findings"]) - len(rows) + found["more"]
        inner = table(["node", "finding", "first seen"], rows, label="Health of the nodes")
        inner += tag("p", f"{plural(more, 'more finding')} in report.json") if more > 0 else ""
        out = "".join(tag("li", esc(clip(each["text"], LINE_WIDTH))) for each in found["left_out"][:PROBLEMS_SHOWN])
        more = len(found["left_out"]) - PROBLEMS_SHOWN + found["more_left_out"]
        out += tag("li", f"and {plural(more, 'more node')} in report.json") if more > 0 else ""
        inner += tag("ul", out, class_="proofs") if out else ""
        return tag("section", tag("h2", "Health of the nodes") + inner) if inner else ""

    def slow(self) -> str:
        """The persistently slow ranks."""
        title, rows = slow_ranks(self.report)
        lines = [row(*map(esc, each)) for each in rows[:GROUPS_SHOWN]]
        inner = table(["rank", "how"], lines, label=title)
        more = len(rows) - GROUPS_SHOWN
        inner += tag("p", f"{plural(more, 'more rank')} in report.json") if more > 0 else ""
        return tag("section", tag("h2", esc(title[:1].upper() + title[1:])) + inner) if inner else ""

    def timeline(self) -> str:
        """The run's time from left to right."""
        bar = strip(self.report, self.style)
        off = tag("p", esc(" ".join(clocks(self.report, self.style)))) if self.report["clocks"] else ""
        return tag("section", tag("h2", "Where the time went") + bar + off) if bar or off else ""

    def nodes(self) -> str:
        """The state of each node in each round."""
        inner = grid(self.report)
        return tag("section", tag("h2", "Nodes by rounds") + inner) if inner else ""

    def rounds(self, focus: Json | None) -> str:
        """All rounds as a table, the evidence of the other failed ones folded."""
        rounds = self.report["rounds"]
        shown = rounds[-ROUNDS_SHOWN:]
        attempts = len({entry["attempt"] for entry in rounds}) > 1
        detailed = {r["round"] for r in [r for r in shown if r["first_failure"] and r is not focus][-DETAILS_SHOWN:]}
        rows = (self.round(entry, attempts, entry["round"] in detailed) for entry in shown)
        head = ["round", "how it ended", "started", "took", "size", "steps", "trained", "lost"]
        inner = table(head, rows, label="Rounds")
        if not inner:
            return ""
        older = len(rounds) - len(shown)
        note = tag("p", f"{plural(older, 'older round')} in report.json") if older else ""
        again = "".join(tag("li", esc(each["text"])) for each in self.report["repeats"][:12])
        again = tag("ul", again, class_="proofs") if again else ""
        return tag("section", tag("h2", "Rounds") + again + inner + note)

    def round(self, entry: Json, attempts: bool, detailed: bool) -> str:
        """A row of the table of rounds."""
        spent = entry["accounting"] or {}
        text = tag("p", esc(clip(ended(entry, self.report), TITLE_WIDTH)))
        ended_s = (spent.get("detection_s") or 0.0) + (spent.get("stopping_s") or 0.0)
        costs = [f"stopped everywhere {duration(ended_s)} later"] if ended_s >= 0.05 else []
        costs += [cost_of(entry["cost"])] if entry["cost"] is not None else []
        text += tag("p", esc(", ".join(costs)), class_="dim") if costs else ""
        if detailed:
            failure = entry["first_failure"]
            more = self.proofs(failure)
            more += tag("p", f"<b>Hint:</b> {esc(failure['advice'])}") if failure["advice"] and more else ""
            text += folded("evidence", more) if more else ""
        steps = "" if entry["first_step"] is None else f"{entry['first_step']}-{entry['last_step']}"
        if entry["optimizer_steps"] is not None:
            steps = "{first}-{last} of the optimizer".format_map(entry["optimizer_steps"])
        world = "" if entry["world_size"] is None else plural(entry["world_size"], "rank")
        started = tag("div", esc(self.style.date(entry["started_ns"])))
        started += tag("div", esc(clip(entry["attempt"] or "?", 40)), class_="dim") if attempts else ""
        size = tag("div", plural(len(entry["nodes"]), "node")) + tag("div", world, class_="dim")
        cells = [started, esc(duration(took(entry, self.report))), size, steps]
        cells += [_span(spent.get("productive_s")), _span(spent.get("lost_s"))]
        return tag(
            "tr",
            tag("th", str(entry["round"]), scope="row")
            + tag("td", text, class_="text")
            + "".join(tag("td", cell, class_="nowrap") for cell in cells),
            id_=f"round-{entry['round']}",
        )

    def defects(self) -> str:
        """Defects of ftslurm itself."""
        found = defect_lines(self.report)[:PROBLEMS_SHOWN]
        inner = "".join(tag("li", "; ".join(esc(clip(line, LINE_WIDTH)) for line in lines)) for lines in found)
        title = "Defects of ftslurm itself, neither your program's nor a node's"
        return tag("section", tag("h2", title) + tag("ul", inner, class_="proofs")) if inner else ""

    def problems(self) -> str:
        """The files that could not be used, and why."""
        found = self.report["problems"]
        rows = [
            row(tag("code", esc(clip(p["file"], 400))), esc(clip(p["reason"], 400))) for p in found[:PROBLEMS_SHOWN]
        ]
        inner = "".join(tag("li", esc(clip(line, LINE_WIDTH))) for line in self.report["missing"][:PROBLEMS_SHOWN])
        inner = tag("ul", inner, class_="proofs") if inner else ""
        inner += table(["file", "reason"], rows, label="Files that could not be used")
        more = len(found) - PROBLEMS_SHOWN
        inner += tag("p", f"and {more} more in report.json") if more > 0 else ""
        if self.report["skipped_rounds"]:
            older = plural(self.report["skipped_rounds"], "older round")
            inner += tag("p", f"The files of {older} were not read (ftslurm report --round N reads them).")
        return tag("section", tag("h2", "What is missing or could not be read") + inner) if inner else ""

    def run(self) -> str:
        """What was run, and where everything is."""
        run, report = self.report["run"], self.report
        directory = run["directory"].rstrip("/")
        facts = [("run", esc(run["id"]))]
        facts += [("user", esc(run["user"]))] if run["user"] else []
        facts += [("attempts", esc(names(run["attempts"], 12)))] if run["attempts"] else []
        facts += [("command", tag("code", esc(clip(" ".join(run["command"]), LINE_WIDTH))))] if run["command"] else []
        scheduler = report.get("scheduler")
        facts += (
            [("Slurm", esc(clip(scheduler["line"], LINE_WIDTH)))] if scheduler is not None and scheduler["line"] else []
        )
        facts += [("exit code", "not recorded" if report["exit_code"] is None else str(report["exit_code"]))]
        facts += [("files", link(directory, clip(directory, LINE_WIDTH), None))]
        numbers = [entry["round"] for entry in report["rounds"][-8:]]
        folders = (link(f"{directory}/rounds/{n:06d}/", f"round {n}", self.directory) for n in numbers)
        facts += [("records and output", ", ".join(folders))] if numbers else []
        inner = "".join(tag("dt", name) + tag("dd", value) for name, value in facts)
        return tag("section", tag("h2", "The run") + tag("dl", inner))

    def foot(self) -> str:
        """Who made the page, and when."""
        version = self.report["run"]["ftslurm"]
        made = f"made by ftslurm {version}" if version else "made by ftslurm"
        return tag("footer", esc(f"{clip(made, 80)}, {self.date(self.report['made_ns'])}"))

    def date(self, time_ns: int | None) -> str:
        """A moment in the reader's zone."""
        return self.style.date(time_ns, "%Y-%m-%d %H:%M:%S")


def _answer_line(line: str) -> str:
    text = line.strip()
    if text.startswith("hint: "):
        return tag("p", f"<b>What to do:</b> {esc(text[6:])}", class_="hint")
    return tag("p", esc(clip(text, TITLE_WIDTH)), class_="deeper" if line.startswith("    ") else None)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return '<span class="dim">?</span>'
    return duration(seconds) if seconds >= 0.05 else "0"

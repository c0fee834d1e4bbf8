"""The report as text: the answer in the first three lines, then the evidence, then the rest (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftslurm.failures.causes import CASCADE
from ftslurm.report.words import (
    clip,
    count,
    duration,
    first_line,
    moment,
    names,
    place,
    ranges,
    safe,
    safe_lines,
    summary,
    verdict,
)

WIDTH = 80
# Lines that are copied (tracebacks, output) are not wrapped; beyond this they are data, not text.
EVIDENCE_WIDTH = 240
TRACEBACK_HEAD, TRACEBACK_TAIL = 12, 40
LOG_LINES_BESIDE_TRACEBACK = 10
ROUNDS_SHOWN = 12
RECOVERED_SHOWN = 5
GROUPS_SHOWN = 12
PROBLEMS_SHOWN = 10

Json = Mapping[str, Any]
Clock = Callable[[float], time.struct_time]


def render(report: Json, *, colour: bool = False, width: int = WIDTH, zone: Clock = time.localtime) -> str:
    """Render a report for a terminal or a job's output file.

    Args:
        report: what `ftslurm.report.analyse.analyse` returned.
        colour: whether to add ANSI colours.
        width: columns; only quoted lines (tracebacks, output) may be longer.
        zone: how to turn seconds since the epoch into a date, for the reader's time zone.

    Returns:
        Lines, each ended by a newline. Nothing from a file can reach the terminal as a control sequence.
    """
    page = _Page(report, colour=colour, width=width, zone=zone)
    blocks = [page.headline()]
    focus = next((r for r in report["rounds"] if r["round"] == report["focus"]), None)
    if focus is not None:
        blocks += [page.traceback(focus), page.log(focus), page.others(focus)]
    if focus is not None or report["recovered"] or len(report["rounds"]) > 1:
        blocks.append(page.timeline())
    blocks.append(page.problems())
    lines: list[str] = []
    for block in blocks:
        if block and lines:
            lines.append("")
        lines += block
    if focus is not None or report["problems"]:
        lines.append("")
    lines += page.files()
    return "\n".join(lines) + "\n"


class _Page:
    def __init__(self, report: Json, *, colour: bool, width: int, zone: Clock) -> None:
        self.report = report
        self.colour = colour
        self.width = max(40, width)
        self.zone = zone

    def headline(self) -> list[str]:
        status = self.report["status"]
        if status == "succeeded":
            return self._succeeded()
        if status == "stopped":
            return self._stopped()
        return self._failed() if status == "failed" else self._open()

    def _succeeded(self) -> list[str]:
        recovered = self.report["recovered"]
        after = f" after {count(len(recovered), 'recovered failure')}" if recovered else ""
        end = "" if recovered else ", no failure"
        lines = [self._title(f"{self._id()} succeeded{after}", f": {self._size()}{end}", "green")]
        lines += self._recovered()
        lines += self._extent()
        code = self.report["exit_code"]
        return lines + ([f"  but the exit code is {code}"] if code else [])

    def _failed(self) -> list[str]:
        cause = self.report["cause"]
        reason = self._reason()
        if cause is None:
            return [self._title(f"{self._id()} FAILED", f": {reason}", "red"), f"  {self._exit()}", *self._extent()]
        lines = [self._title(f"{self._id()} FAILED", f": {verdict(cause)}", "red"), *self._place(cause)]
        lines += self._wrapped(f"{reason}; {self._exit()}")
        return lines + self._hints(cause)

    def _stopped(self) -> list[str]:
        lines = [self._title(f"{self._id()} was stopped", f": {self._reason()}", "yellow")]
        rounds = self.report["rounds"]
        where = f"in round {rounds[-1]['round']}, " if rounds else ""
        step = self.report["last_step"]
        where += "" if step is None else f"step {step}, "
        lines.append(f"  {where}after {duration(self.report['duration_s'])}; {self._exit()}; no rank is to blame")
        return lines + self._recovered()

    def _open(self) -> list[str]:
        alive, rounds, cause = self.report["alive"], self.report["rounds"], self.report["cause"]
        heard = "no sign of life is left"
        if alive is not None:
            heard = f"last sign of life {duration(alive['age_s'])} ago ({safe(alive['node'])}, {self._time(alive['time_ns'])})"
        if self.report["status"] == "running":
            now = f": round {rounds[-1]['round']}, {self._world(rounds[-1])}" if rounds else ": no round has formed yet"
            lines = [self._title(f"{self._id()} is still running", now + self._since(rounds), "green")]
            lines += self._verdict_lines(cause) if cause else []
            return [*lines, f"  {heard}", *self._recovered()]
        lines = [self._title(f"{self._id()}: no end was recorded", f"; {heard}", "yellow")]
        if cause is not None:
            lines += self._verdict_lines(cause) + self._hints(cause)
        elif rounds:
            lines.append(f"  it was in round {rounds[-1]['round']} ({rounds[-1]['outcome']}), {self._world(rounds[-1])}"
                         f"{self._step(rounds[-1])}")  # fmt: skip
        return [*lines, *self._wrapped(self._ask_slurm()), *self._recovered()]

    def _ask_slurm(self) -> str:
        attempts = self.report["run"]["attempts"]
        job = safe(attempts[-1]).split(".")[0] if attempts else ""
        ask = f": sacct -j {job} may know why" if job.isdigit() else ""
        return f"all of it was killed at once, or the shared directory was out of reach{ask}"

    def _since(self, rounds: list[Json]) -> str:
        started = rounds[-1]["started_ns"] if rounds else None
        if started is None:
            return ""
        return f", for {duration((self.report['made_ns'] - started) / 1e9)}{self._step(rounds[-1])}"

    def _step(self, entry: Json) -> str:
        return "" if entry["last_step"] is None else f", step {entry['last_step']}"

    def _verdict_lines(self, failure: Json) -> list[str]:
        return [clip(f"  {verdict(failure)}", self.width), *self._place(failure)]

    def _place(self, failure: Json) -> list[str]:
        where = place(failure)
        line = f"at {where}, {moment(failure)}" if where else moment(failure)
        if failure["rank"] is None and failure["ranks"]:
            line += f"; it had ranks {failure['ranks']}"
        elif failure["raised_in"] is not None:
            line += f" (raised in {safe(failure['raised_in']['shown']).rsplit('/', 1)[-1]}:{failure['raised_in']['line']})"
        return self._wrapped(line)

    def _hints(self, failure: Json) -> list[str]:
        lines: list[str] = []
        entry = next(r for r in self.report["rounds"] if r["round"] == failure["round"])
        for other in entry["same_time"][:4]:
            lines += self._wrapped(f"at about the same time: {verdict(other)}")
        if failure["role"] == CASCADE:
            lines += self._wrapped("this follows from another rank's end, of which no failure is recorded")
        if failure["same_as_rounds"]:
            rounds = ranges(failure["same_as_rounds"])
            lines += self._wrapped(f"the same failure as in round{'s' if len(failure['same_as_rounds']) > 1 else ''} {rounds}")
        return lines + (self._wrapped(f"what to do: {failure['advice']}") if failure["advice"] else [])

    def _recovered(self) -> list[str]:
        failed = [r for r in self.report["rounds"] if r["recovered"]]
        lines = []
        if len(failed) > RECOVERED_SHOWN:
            lines.append(f"  {len(failed) - RECOVERED_SHOWN} older recovered failures; the newest:")
        for entry in failed[-RECOVERED_SHOWN:]:
            failure = entry["first_failure"]
            lines.append(clip(f"  round {entry['round']}: {verdict(failure)}", self.width))
            step = "" if failure["step"] is None else f"step {failure['step']}"
            where = ", ".join(part for part in (place(failure) and f"at {place(failure)}", step) if part)
            lines += self._wrapped("; ".join(part for part in (where, self._cost(entry["cost"])) if part), "    ")
        return lines

    def _cost(self, cost: Json) -> str:
        parts = []
        if cost["until_next_round_s"] is not None:
            queue = " (requeued)" if cost["requeued"] else ""
            parts.append(f"next round {duration(cost['until_next_round_s'])} later{queue}")
        if cost["steps_repeated"] is not None:
            parts.append(f"{count(cost['steps_repeated'], 'step')} repeated")
        return ", ".join(parts)

    def traceback(self, entry: Json) -> list[str]:
        failure = entry["first_failure"]
        if failure is None:
            return []
        text = failure["traceback"] or failure["stacks"]
        if not text:
            return []
        kind = "traceback" if failure["traceback"] else "stacks"
        lines = safe_lines(text.rstrip("\n"))
        if len(lines) > TRACEBACK_HEAD + TRACEBACK_TAIL + 1:
            left_out = len(lines) - TRACEBACK_HEAD - TRACEBACK_TAIL
            lines[TRACEBACK_HEAD:-TRACEBACK_TAIL] = [f"  ... {left_out} lines left out ..."]
        return [self._section(f"{kind} of rank {failure['rank']}, round {entry['round']}"), *self._quoted(lines, "  ")]

    def log(self, entry: Json) -> list[str]:
        failure = entry["first_failure"]
        log = failure["log"] if failure else None
        if log is None:
            return []
        lines = [safe(line).rstrip() for line in log["lines"]]
        if failure["traceback"]:
            lines = lines[-LOG_LINES_BESIDE_TRACEBACK:]
        path = safe(log["path"]).removeprefix(safe(self.report["run"]["directory"]).rstrip("/") + "/")
        other = "other " if failure["traceback"] and log["stream"] == "stderr" else ""
        title = f"last {other}lines of its {log['stream']} ({path})"
        return [self._section(title), *self._quoted(lines, "  | ")]

    def others(self, entry: Json) -> list[str]:
        rows = []
        for group in entry["groups"][:GROUPS_SHOWN]:
            text = first_line(group["what"])
            text = f"{group['title']}: {text}" if group["role"] == CASCADE else text
            rows.append((self._ranks(group["ranks"], group["count"]), text))
        if len(entry["groups"]) > GROUPS_SHOWN:
            rest = entry["groups"][GROUPS_SHOWN:]
            rows.append((f"{sum(g['count'] for g in rest)} more ranks", f"{len(rest)} more kinds of failure (see --json)"))
        stopped, finished, silent = entry["stopped"], entry["finished"], entry["silent"]
        if stopped is not None:
            killed = f", {count(stopped['killed'], 'rank')} with SIGKILL" if stopped["killed"] else ""
            why = f": {first_line(stopped['reason'])}" if stopped["reason"] else ""
            rows.append((self._ranks(stopped["ranks"], stopped["count"]), f"stopped by ftslurm{killed}{why}"))
        if finished is not None:
            rows.append((self._ranks(finished["ranks"], finished["count"]), "had finished (exit code 0)"))
        if silent is not None:
            where = f" ({names(silent['nodes'])})" if silent["nodes"] else ""
            rows.append((self._ranks(silent["ranks"], silent["count"]), f"no end recorded{where}"))
        if not rows:
            return []
        label = max(len(r[0]) for r in rows)
        lines = [clip(f"  {ranks:<{label}}  {text}", self.width) for ranks, text in rows]
        return [self._section(f"{'the other' if entry['first_failure'] else 'the'} ranks of round {entry['round']}"), *lines]

    def _ranks(self, text: str, number: int) -> str:
        if number == 1:
            return f"rank {text}"
        return f"ranks {text}" if len(text) <= 18 else f"{number} ranks ({clip(text, 14)})"

    def timeline(self) -> list[str]:
        rounds = self.report["rounds"]
        if not rounds:
            return []
        several = len(self.report["run"]["attempts"]) > 1
        zone = self._zone(rounds)
        rows = [["round", "attempt", "nodes", "ranks", f"started{zone}", "took", "ended"]]
        shown = rounds if len(rounds) <= ROUNDS_SHOWN else [*rounds[:2], None, *rounds[2 - ROUNDS_SHOWN :]]
        after: dict[int, str] = {}
        for entry in shown:
            if entry is None:
                after[len(rows) - 1] = f"... {len(rounds) - ROUNDS_SHOWN} more rounds (see --json)"
                continue
            rows.append(self._row(entry))
            if entry["cost"] is not None and self._cost(entry["cost"]):
                after[len(rows) - 1] = self._cost(entry["cost"])
        if not several:
            rows = [row[:1] + row[2:] for row in rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        lines = []
        for i, row in enumerate(rows):
            cells = [cell.ljust(width) for cell, width in zip(row, widths)]
            lines.append(clip("  " + "  ".join([*cells, row[-1]]).rstrip(), self.width))
            if i in after:
                lines.append(clip(" " * (widths[0] + 4) + after[i], self.width))
        return [self._section("rounds"), *lines, *self._in_all()]

    def _row(self, entry: Json) -> list[str]:
        world = entry["world_size"]
        return [
            str(entry["round"]),
            clip(safe(entry["attempt"] or "?"), 16),
            str(len(entry["nodes"])),
            "?" if world is None else str(world),
            self._time(entry["started_ns"]),
            duration(self._took(entry)),
            self._ended(entry),
        ]

    def _took(self, entry: Json) -> float | None:
        if entry["outcome"] == "running" and entry["started_ns"] is not None and self.report["status"] == "running":
            span: float = (self.report["made_ns"] - entry["started_ns"]) / 1e9
            return span
        took: float | None = entry["duration_s"]
        return took

    def _ended(self, entry: Json) -> str:
        failure = entry["first_failure"]
        if failure is not None:
            return verdict(failure)
        outcome: str = safe(entry["outcome"])
        if outcome == "running":
            return "running" if self.report["status"] == "running" else "no end recorded"
        step = "" if entry["last_step"] is None else f" at step {entry['last_step']}"
        reason = f": {first_line(entry['reason'])}" if entry["reason"] and outcome != "succeeded" else ""
        return f"{outcome}{step}{reason}"

    def _in_all(self) -> list[str]:
        cost = self.report["cost"]
        if cost["failures"] < 2:
            return []
        lost = duration(cost["between_rounds_s"])
        return self._wrapped(
            f"in all: {cost['failures']} recovered failures, {lost} between rounds, {cost['steps_repeated']} steps repeated"
        )

    def problems(self) -> list[str]:
        problems = self.report["problems"]
        lines = [f"  {safe(p['file'])}: {safe(p['reason'])}" for p in problems[:PROBLEMS_SHOWN]]
        if len(problems) > PROBLEMS_SHOWN:
            lines.append(f"  and {len(problems) - PROBLEMS_SHOWN} more (see --json)")
        if self.report["skipped_rounds"]:
            lines.append(f"  the files of the {self.report['skipped_rounds']} oldest rounds were not read (--round N does)")
        return [self._section("files that could not be used"), *self._quoted(lines, "")] if lines else []

    def files(self) -> list[str]:
        return [f"  files: {safe(self.report['run']['directory'])}"]

    def _extent(self) -> list[str]:
        started = self.report["started_ns"]
        step = self.report["last_step"]
        parts = [] if started is None else [f"started {self._time(started, year=True)}"]
        parts += [] if step is None else [f"last step {step}"]
        return [f"  {', '.join(parts)}"] if parts else []

    def _size(self) -> str:
        rounds = self.report["rounds"]
        parts = [count(len(rounds), "round")]
        parts += [self._world(rounds[-1])] if rounds else []
        parts += [] if self.report["duration_s"] is None else [duration(self.report["duration_s"])]
        return ", ".join(parts)

    def _world(self, entry: Json) -> str:
        nodes, world = len(entry["nodes"]), entry["world_size"]
        return count(nodes, "node") + ("" if world is None else f", {count(world, 'rank')}")

    def _reason(self) -> str:
        return first_line(self.report["reason"] or "") or "why is not recorded"

    def _exit(self) -> str:
        code = self.report["exit_code"]
        return "no exit code recorded" if code is None else f"exit code {code}"

    def _id(self) -> str:
        return clip(safe(self.report["run"]["id"]), 40)

    def _title(self, start: str, rest: str, colour: str) -> str:
        line = clip(start + rest, self.width)
        if not self.colour:
            return line
        code = {"red": "31", "green": "32", "yellow": "33"}[colour]
        return f"\x1b[1;{code}m{line[: len(start)]}\x1b[0m{line[len(start) :]}"

    def _section(self, title: str) -> str:
        return f"\x1b[1m{title}\x1b[0m" if self.colour else title

    def _quoted(self, lines: Iterable[str], prefix: str) -> list[str]:
        return [(prefix + clip(line, EVIDENCE_WIDTH)).rstrip() for line in lines]

    def _wrapped(self, text: str, indent: str = "  ") -> list[str]:
        """Wrap at blanks; the next lines are indented deeper. Much lighter than `textwrap`, which imports `re`-heavy code."""
        lines, line = [], indent
        for word in text.split():
            if len(line) + len(word) + 1 > self.width and line.strip():
                lines.append(line)
                line = indent + "  "
            line += word if line.endswith(" ") else f" {word}"
        return [*lines, line] if line.strip() else lines

    def _time(self, time_ns: int | None, *, year: bool = False) -> str:
        if time_ns is None:
            return "?"
        try:
            return time.strftime("%Y-%m-%d %H:%M:%S" if year else "%m-%d %H:%M:%S", self.zone(time_ns / 1e9))
        except (ValueError, OverflowError, OSError):
            return "?"

    def _zone(self, rounds: list[Json]) -> str:
        started = next((r["started_ns"] for r in rounds if r["started_ns"] is not None), None)
        if started is None:
            return ""
        try:
            name = time.strftime("%Z", self.zone(started / 1e9))
        except (ValueError, OverflowError, OSError):
            return ""
        return f" ({name})" if name else ""


__all__ = ["render", "summary"]

"""A job's history, from its files and from observation."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_parts.history import (
    Closed,
    Commit,
    Event,
    FirstFailure,
    History,
    Leftover,
    PastRound,
    Report,
    pick,
)

REPORT_S = 60.0
Dict = dict[str, Any]


@dataclass(frozen=True)
class RunState:
    """The relevant fields of a run's newest state."""

    attempt: str
    round: int
    closed: Closed | None


def run_directory(job: Path) -> Path | None:
    """Return the run directory of a job's directory, None before it exists."""
    return next(iter(sorted(job.glob("ftslurm-runs/job-*"))), None)


def read_state(job: Path) -> RunState | None:
    """Return the newest state of the job's run; None: there is none, or it vanishes while it is read."""
    run = run_directory(job)
    names = sorted(run.glob("state/0*.json")) if run is not None else []
    for path in reversed(names):
        try:
            value = json.loads(path.read_text())["value"]
        except (OSError, ValueError):
            continue
        if value is None:
            continue
        closed = value.get("closed")
        return RunState(value["attempt"], value["round"], pick(Closed, closed) if closed else None)
    return None


def events(path: Path) -> tuple[Event, ...]:
    """Return the ranks' events."""
    return tuple(pick(Event, line) for line in _lines(path))


def commits(journal: Iterator[Dict], name: str) -> tuple[Commit, ...]:
    """Return the committed checkpoints of the job of that name, from the shared directory's journal."""
    found = []
    for line in journal:
        directory, _, file = line["path"].rpartition("/")
        if line["what"] == "renamed" and directory.endswith(f"/{name}/checkpoints"):
            found.append(Commit(line["began_ns"], line["done_ns"], file, **_content(line["text"])))
    return tuple(found)


def _content(text: str) -> Dict:
    value = json.loads(text)
    return {key: value[key] for key in ("attempt", "round", "step", "total")}


def report_of(run: Path, make: Callable[[Path], str]) -> Report | None:
    """Return the report in the run directory; if there is none, make one."""
    path = run / "report.json"
    text = path.read_text() if path.exists() else make(run)
    return read_report(json.loads(text)) if text else None


def read_report(value: Dict) -> Report:
    """Return the relevant fields of a report."""
    rounds = []
    for each in value["rounds"]:
        first = each["first_failure"]
        failure = None
        if first is not None:
            what = first["what"] or ""
            nodes = tuple(first["nodes"] or ())
            failure = FirstFailure(first["cause"], what, first["rank"], first["node"], nodes, first["signal"])
        past = (each["round"], each["attempt"] or "", each["outcome"], each["reason"] or "", each["ended_ns"])
        rounds.append(PastRound(*past, tuple(each["nodes"]), failure))
    return Report(value["status"], tuple(rounds), value["restarts_used"] or 0, value["max_restarts"] or 0)


def maker(environment: dict[str, str]) -> Callable[[Path], str]:
    """Return a function that makes a report as JSON with ``ftslurm report``; "" on failure."""

    def make(run: Path) -> str:
        arguments = ["ftslurm", "report", "--json", str(run)]
        try:
            done = subprocess.run(
                arguments, env=environment, capture_output=True, text=True, timeout=REPORT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout if done.stdout.startswith("{") else ""

    return make


def result_of(checkpoints: Path) -> tuple[int, int] | None:
    """Return the step and the sum of the result file, None without one."""
    try:
        value = json.loads((checkpoints / "result.json").read_text())
        return int(value["step"]), int(value["total"])
    except (OSError, ValueError, KeyError):
        return None


def gather(
    history: History,
    directory: Path,
    event_file: Path,
    journal: Iterator[Dict],
    make_report: Callable[[Path], str],
    leftovers: tuple[Leftover, ...],
) -> History:
    """Add the content of the job's files to a history with the observations from outside.

    Args:
        history: of `chaos_parts.run_job`.
        directory: the job's directory.
        event_file: its ranks' events.
        journal: of the shared directory.
        make_report: makes a report of a run directory that has none.
        leftovers: files left on the nodes' disks.
    """
    run = run_directory(directory)
    state = read_state(directory)
    output = "".join(path.read_text(errors="replace") for path in sorted(directory.glob("slurm-*.out")))
    values = {
        **{name: getattr(history, name) for name in History.__dataclass_fields__},
        "commits": commits(journal, history.name),
        "events": events(event_file),
        "closed": state.closed if state is not None else None,
        "report": report_of(run, make_report) if run is not None else None,
        "result": result_of(directory / "checkpoints"),
        "leftovers": leftovers,
        "output": output,
    }
    return History(**values)


def _lines(path: Path) -> Iterator[Dict]:
    if not path.exists():
        return
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)

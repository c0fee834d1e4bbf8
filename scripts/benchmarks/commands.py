"""How long the commands that people type take: help, report and status of a run, list and history of a thousand."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from sample_runs.builder import RunBuilder
from sample_runs.contents import START_NS

from benchmarks import table
from benchmarks.agent import machine
from benchmarks.report import _in_child, spend
from benchmarks.table import Measurement
from ftslurm.report.pipeline import make_report, save

OURS = "ftslurm"
RUNS, PER_NODE = 1000, 8
UNSAVED = 10
"""One run of so many has no saved report."""
MEASUREMENTS = (
    Measurement("help", "ftslurm --help", "s", 0.1),
    Measurement("status", "status of a run on 4 nodes, 32 ranks", "s", 0.1),
    Measurement("report", "report of the same run", "s", 0.1),
    Measurement("report_saved", "report of a run that has ended", "s", 0.1),
    Measurement("status_64", "status of a run on 64 nodes, 512 ranks", "s", 0.2),
    Measurement("status_1024", "status of a run on 1024 nodes, 8192 ranks", "s", 1.0),
    Measurement("list", f"list of {RUNS} runs, the newest 20", "s"),
    Measurement("list_all", f"list --all of {RUNS} runs", "s"),
    Measurement("history", f"history of {RUNS} runs of 4 nodes, 9 of 10 with a report", "s", 5.0),
    Measurement("history_anew", "the same, none with a report", "s"),
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench commands`` to the command line."""
    parser = subparsers.add_parser("commands", help=__doc__, description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="samples of each (default 5)")
    parser.add_argument("--json", action="store_true", help="all samples as JSON instead of the table")
    parser.set_defaults(run=run)


def live_run(parent: Path, nodes: int) -> Path:
    """Write a run that is in its second round, as of now."""
    story = RunBuilder(parent, nodes=nodes, nproc=PER_NODE, run_id=f"live-{nodes}")
    story.wait((time.time_ns() - START_NS) / 1e9 - 600)
    story.round().steps(1, 120).wait(60).fail(9, ValueError("boom"), step=120).stop().round().steps(100, 150)
    for rank in range(nodes * PER_NODE):
        story.pace(rank, 20 + rank % 3)
    return story.write()


def many_runs(parent: Path, *, saved: bool) -> None:
    """Write runs that succeeded after an exception, went on without a lost node, or failed."""
    for number in range(RUNS):
        story = RunBuilder(parent, nodes=4, nproc=PER_NODE, run_id=f"job-{number}", job_id=str(number))
        story.round().steps(1, 120).wait(60)
        if number % 3 == 0:
            story.fail(9, ValueError("boom"), step=120, log="step 120\n").stop().round().steps(100, 150).succeed()
            story.close("succeeded", "all ranks succeeded")
        elif number % 3 == 1:
            story.lose("n4").round(nodes=["n1", "n2", "n3"]).steps(100, 150).succeed()
            story.close("succeeded", "all ranks succeeded")
        else:
            story.fail(3, RuntimeError("CUDA out of memory"), step=120).stop().close("failed", "no restart left")
        path = story.write()
        if saved and number % UNSAVED:
            save(make_report(path), path)


def collect(arguments: argparse.Namespace, parent: Path) -> dict[str, table.Samples]:
    """Return all samples, the commands in turn."""
    folders = {name: parent / name / "ftslurm-runs" for name in ("saved", "unsaved", "live")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    for nodes in (4, 64, 1024):
        _in_child(lambda: live_run(folders["live"], nodes))  # noqa: B023
    _in_child(lambda: many_runs(folders["saved"], saved=True))
    _in_child(lambda: many_runs(folders["unsaved"], saved=False))
    commands = {
        "help": ["--help"],
        "status": ["status", str(folders["live"] / "live-4")],
        "report": ["report", str(folders["live"] / "live-4")],
        "report_saved": ["report", str(folders["saved"] / "job-1")],
        "status_64": ["status", str(folders["live"] / "live-64")],
        "status_1024": ["status", str(folders["live"] / "live-1024")],
        "list": ["list", str(folders["saved"])],
        "list_all": ["list", "--all", str(folders["saved"])],
        "history": ["history", "--failed", str(folders["saved"])],
        "history_anew": ["history", "--failed", str(folders["unsaved"])],
    }
    results: dict[str, table.Samples] = {measurement.key: {OURS: []} for measurement in MEASUREMENTS}
    for number in range(arguments.runs + 1):  # run 0 warms caches up and does not count
        print(f"run {number}/{arguments.runs}", file=sys.stderr, flush=True)
        for key, command_line in commands.items():
            spent = spend([sys.executable, "-m", "ftslurm.cli", *command_line])
            if number:
                results[key][OURS].append(spent.wall_s)
    return results


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0, 1 when a bar is missed, 2 for a wrong command line."""
    if arguments.runs < 1:
        print("bench: --runs: expected 1 or more", file=sys.stderr)
        return 2
    # Slurm's part is bounded by a deadline of its own, and not what is measured here.
    os.environ["PATH"] = str(Path(sys.executable).parent)
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as name:
        results = collect(arguments, Path(name))
    if arguments.json:
        facts = {"machine": machine(), "runs": arguments.runs}
        print(json.dumps(facts | {"measurements": table.as_json(MEASUREMENTS, results, OURS)}, indent=2))
    else:
        facts = machine()
        print(f"{arguments.runs} interleaved runs of each command as a process, warm page cache")
        print(f"{facts['system']}, {facts['cores']} cores, load {facts['load']}\n")
        print("\n".join(table.lines(MEASUREMENTS, results, [OURS], OURS)))
    return int(any(table.verdict(each, results[each.key], OURS) == "MISSED" for each in MEASUREMENTS))

"""How fast a launcher starts, restarts and ends its workers, and what it takes beside them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure, table, tools, warm
from benchmarks.table import Measurement

OURS = "ftslurm"
WORKER = str(Path(__file__).with_name("worker.py"))
LIMIT_S = 90.0
MEMORY_WORKERS = 8
MEMORY_SETTLE_S = 1.5  # launchers import and allocate for a while after their workers run

MEASUREMENTS = (
    Measurement("start_1", "start → workers' first lines, 1 node", "s", 0.3, ("torchrun", 0.15)),
    Measurement("start_2", "start → workers' first lines, 2 nodes", "s"),
    Measurement("restart_1", "exit(1) → all of the new round run, 1 node", "s", 0.15),
    Measurement("restart_2", "exit(1) → all of the new round run, 2 nodes", "s", 0.8),
    Measurement("exit_1", "last worker done → launcher exit, 1 node", "s", 0.2),
    Measurement("exit_2", "last worker done → launcher exit, 2 nodes", "s", 0.7),
    Measurement("rss", f"resident beside {MEMORY_WORKERS} workers, RSS", "MB", 25e6),
    Measurement("pss", f"resident beside {MEMORY_WORKERS} workers, PSS", "MB"),
    Measurement("report", "ftslurm report of a small run", "s", 0.15),
    *warm.MEASUREMENTS,
)
WARM = tuple((how, name, name == "warm") for how in ("kill", "raise") for name in ("warm", "cold"))
Sample = dict[str, float]  # a measurement's key -> seconds or bytes


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench agent`` to the command line."""
    parser = subparsers.add_parser("agent", help=__doc__, description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="samples of each (default 7)")
    parser.add_argument("--tools", default=",".join(tools.NAMES), help="which, by commas (default all three)")
    parser.add_argument(
        "--python",
        default=tools.this_python(),
        metavar="PATH",
        help="the interpreter whose environment holds the tools (default the running one)",
    )
    parser.add_argument("--json", action="store_true", help="all samples as JSON instead of the table")
    parser.set_defaults(run=run)


def start_job(
    tool: tools.Tool, nodes: int, workers: int, mode: str, directory: Path
) -> tuple[tools.Job, measure.Launch]:
    """Start the benchmark's worker script under ``tool``."""
    script = (WORKER, str(directory / "events"), mode)
    job = tools.Job(nodes, workers, script, directory, measure.free_port())
    return job, measure.Launch(tool.commands(job), directory, tools.environment(directory))


def measure_restart(tool: tools.Tool, nodes: int) -> Sample:
    """Run a job of two workers per node that fails once; return the times of start, restart, end."""
    with measure.job_directory() as directory:
        job, launch = start_job(tool, nodes, 2, "restart", directory)
        ended_ns = launch.wait(LIMIT_S)
        return times(measure.read_events(directory / "events"), job, launch.started_ns, ended_ns)


def times(events: list[measure.Event], job: tools.Job, started_ns: int, ended_ns: int) -> Sample:
    """Return the seconds from start to first lines, failure to new first lines, last end to launcher's end.

    It is always the last of the workers that counts.
    """
    fails = [event.time_ns for event in events if event.what == "fail"]
    done = [event.time_ns for event in events if event.what == "done"]
    world_size = job.nodes * job.workers
    if len(fails) != 1 or len(done) < world_size:
        raise measure.RunFailedError(
            f"expected one failure and {world_size} good ends of workers, found {len(fails)} and {len(done)}"
        )
    first = [e.time_ns for e in events if e.what == "start" and e.time_ns < fails[0]]
    second = [e.time_ns for e in events if e.what == "start" and e.time_ns > fails[0]]
    return {
        f"start_{job.nodes}": (max(first) - started_ns) / 1e9,
        f"restart_{job.nodes}": (second[world_size - 1] - fails[0]) / 1e9,
        f"exit_{job.nodes}": (ended_ns - max(done)) / 1e9,
    }


def measure_report(tool: tools.Tool) -> Sample:
    """Return the seconds that ``ftslurm report`` takes for a run with one failure."""
    with measure.job_directory() as directory:
        job, launch = start_job(tool, 1, 2, "restart", directory)
        launch.wait(LIMIT_S)
        command = [*tool.start, "report", str(tools.run_directory(job))]
        report = measure.Launch([command], directory, tools.environment(directory))
        return {"report": (report.wait(LIMIT_S) - report.started_ns) / 1e9}


def measure_memory(tool: tools.Tool) -> Sample:
    """Return what is resident beside the workers of one node, once all of them run."""
    with measure.job_directory() as directory:
        _, launch = start_job(tool, 1, MEMORY_WORKERS, "hold", directory)
        deadline = time.monotonic() + LIMIT_S
        while len(started := measure.read_events(directory / "events")) < MEMORY_WORKERS:
            if time.monotonic() > deadline or not launch.running():
                raise measure.RunFailedError(f"its workers did not start; {launch.last_output()}")
            time.sleep(0.05)
        time.sleep(MEMORY_SETTLE_S)
        launchers = {process.pid for process in launch.processes}
        workers = {event.pid for event in started}
        memory = measure.memory_of(measure.processes_below(launchers, without=workers))
        (directory / "events.stop").touch()
        launch.wait(LIMIT_S)
        return {"rss": float(memory.rss), "pss": float(memory.pss)}


def collect(found: list[tools.Tool], runs: int) -> tuple[dict[str, table.Samples], list[str]]:
    """Return all samples, interleaved A B C A B C …, and a line for each run that failed."""
    results: dict[str, table.Samples] = {measurement.key: {} for measurement in MEASUREMENTS}
    failures: list[str] = []
    parts: tuple[tuple[str, Callable[[tools.Tool], Sample]], ...] = (
        ("1 node", lambda tool: measure_restart(tool, 1)),
        ("2 nodes", lambda tool: measure_restart(tool, 2)),
        ("memory", measure_memory),
        ("report", measure_report),
        *((f"restart, {how}, {name}", partial(warm.measure_restart, how=how, warm=ahead)) for how, name, ahead in WARM),
    )
    for number in range(runs + 1):  # run 0 warms caches up and does not count
        for title, part in parts:
            for tool in found:
                if title in ("report", *(f"restart, {how}, {name}" for how, name, _ in WARM)) and tool.name != OURS:
                    continue  # other tools have none
                print(f"run {number}/{runs}, {title}: {tool.name}", file=sys.stderr, flush=True)
                try:
                    sample = part(tool)
                except measure.RunFailedError as error:
                    failures.append(f"{tool.name}, {title}, run {number}: {error}")
                    continue
                for key, value in sample.items() if number else ():
                    results[key].setdefault(tool.name, []).append(value)
    return results, failures


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0 if every run of every tool that is there went well, 2 for a wrong command line."""
    names = arguments.tools.split(",")
    unknown = [name for name in names if name not in tools.NAMES]
    if unknown:
        print(f"bench: --tools {','.join(unknown)}: expected of {','.join(tools.NAMES)}", file=sys.stderr)
        return 2
    if arguments.runs < 1:
        print(f"bench: --runs {arguments.runs}: expected 1 or more", file=sys.stderr)
        return 2
    found, missing = tools.find_all(names, arguments.python)
    for line in missing:
        print(f"bench: {line}", file=sys.stderr)
    if not found:
        return 2
    measure.adopt_orphans()
    results, failures = collect(found, arguments.runs)
    if arguments.json:
        facts = {"machine": machine(), "runs": arguments.runs, "tools": {t.name: t.version for t in found}}
        print(json.dumps(facts | {"measurements": table.as_json(MEASUREMENTS, results, OURS)}, indent=2))
    else:
        print_table(found, results, arguments.runs)
    for line in failures:
        print(f"bench: failed: {line}", file=sys.stderr)
    return 1 if failures else 0


def machine() -> dict[str, Any]:
    """Return what the numbers depend on most."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }


def print_table(found: list[tools.Tool], results: dict[str, table.Samples], runs: int) -> None:
    """Print what was measured, and where."""
    facts = machine()
    versions = ", ".join(f"{tool.name} {tool.version}" for tool in found)
    print(f"{runs} interleaved runs each of {versions}")
    print(f"{facts['system']}, {facts['cores']} cores, load {facts['load']}; 2 workers per node, loopback\n")
    print("\n".join(table.lines(MEASUREMENTS, results, [tool.name for tool in found], OURS)))

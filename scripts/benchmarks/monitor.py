"""What it costs a rank and its node to be watched, and how soon a hang is noticed."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import measure, table, tools
from benchmarks.agent import machine
from benchmarks.table import Measurement

OURS, NVRX, TORCH = "ftslurm", "NVRx", "torch timer"
WORKER = str(Path(__file__).with_name("monitor_worker.py"))
OTHERS = str(Path(__file__).with_name("monitor_others.py"))
LIMIT_S = 90.0
BEATING_RANKS = 8
SETTLE_S = 2.0  # agents start their first round, and import, for a while
CROWD_NODES, CROWD_PER_NODE = 4, 16
CROWD = CROWD_NODES * CROWD_PER_NODE
POLL_S = 0.01
LONGEST_PHASE_S = 5.0  # NVRx's server looks so often: its deadline may come at any time in between

MEASUREMENTS = (
    Measurement("heartbeat", "one heartbeat call", "µs", 1.5e-6, (NVRX, 0.2)),
    Measurement("section", "section open + close", "µs", 3e-6),
    Measurement("signalled", "deadline passed → rank signalled", "ms", 0.02),
    Measurement("terminated", "deadline passed → rank sent SIGTERM, stacks collected", "ms"),
    Measurement("stacks", f"deadline → stacks of {CROWD} ranks on {CROWD_NODES} nodes", "s", 2.0),
    Measurement("share", f"{BEATING_RANKS} ranks with 100 heartbeats/s each: share of a core", "%", 0.02),
    Measurement("processes", f"processes of its own beside {BEATING_RANKS} ranks", "processes", 0.0),
    Measurement("pss", "what those, or watching in the agent, take: PSS", "MB"),
)
Sample = dict[str, float]  # a measurement's key -> seconds, bytes, a share or a number


@dataclass(frozen=True)
class Turn:
    """One run's worth of measuring."""

    phase_s: float
    beat_s: float


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench monitor`` to the command line."""
    parser = subparsers.add_parser("monitor", help=__doc__, description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="samples of each (default 5)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="to count a watchdog's time on a core (default 10)"
    )
    parser.add_argument(
        "--python",
        default=tools.this_python(),
        metavar="PATH",
        help="the interpreter whose environment holds torch and NVRx (default the running one)",
    )
    parser.add_argument("--only", metavar="PART", help="calls, hang, crowd or beat (default all)")
    parser.add_argument("--json", action="store_true", help="all samples as JSON instead of the table")
    parser.set_defaults(run=run)


@contextlib.contextmanager
def our_job(
    tool: tools.Tool, nodes: int, workers: int, *mode: str, options: tuple[str, ...] = ()
) -> Iterator[tuple[measure.Launch, Path, Path]]:
    """Run `monitor_worker.py` under ftslurm; give the launch, the path of its events and its run directory."""
    with measure.job_directory() as directory:
        events = directory / "events"
        job = tools.Job(nodes, workers, (WORKER, str(events), *mode), directory, 0)
        command = tool.commands(job)[0]
        at = command.index("--max-restarts=3")
        command[at : at + 1] = ["--max-restarts=0", *options]
        yield measure.Launch([command], directory, tools.environment(directory)), events, tools.run_directory(job)


def first(events: list[measure.Event], what: str) -> measure.Event | None:
    """Return the first event of that kind."""
    return next((event for event in events if event.what == what), None)


def wait_for(events: Path, launch: measure.Launch, seen: Callable[[list[measure.Event]], bool]) -> list[measure.Event]:
    """Wait until the workers' events are as asked for; return them."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        runs = launch.running()  # before the look: what it did last must be seen
        found = measure.read_events(events)
        if seen(found):
            return found
        if time.monotonic() > deadline or not runs:
            raise measure.RunFailedError(f"not all of it happened; {launch.last_output()}")
        time.sleep(POLL_S)


def our_calls(tool: tools.Tool, _: Turn) -> Sample:
    """Return the seconds of the client's calls, in a worker of a running agent."""
    with our_job(tool, 1, 1, "calls") as (launch, events, _run):
        launch.wait(LIMIT_S)
        pairs = [event.what.partition("=") for event in measure.read_events(events)]
        return {name: float(seconds) for name, _, seconds in pairs}


def our_hang(tool: tools.Tool, turn: Turn) -> Sample:
    """Return the seconds from a time-out to the dump signal's handler, and to SIGTERM's."""
    with our_job(tool, 1, 1, "hang", str(turn.phase_s), options=("--hang-signal=SIGTERM",)) as (launch, events, _run):
        found = wait_for(events, launch, lambda seen: first(seen, "terminated") is not None)
        times = {
            what: event.time_ns for what in ("deadline", "signalled", "terminated") if (event := first(found, what))
        }
        return {name: (times[name] - times["deadline"]) / 1e9 for name in ("signalled", "terminated")}


def our_crowd(tool: tools.Tool, _: Turn) -> Sample:
    """Return the seconds from a rank's time-out until the stacks of all ranks are in the run directory."""
    with our_job(tool, CROWD_NODES, CROWD_PER_NODE, "crowd") as (launch, events, run_directory):
        deadline = first(wait_for(events, launch, lambda seen: first(seen, "deadline") is not None), "deadline")
        assert deadline is not None
        give_up = time.monotonic() + LIMIT_S
        while len(list(run_directory.glob("rounds/*/ranks/*/stacks.txt"))) < CROWD:
            if time.monotonic() > give_up:
                raise measure.RunFailedError(f"not all {CROWD} stacks were collected; {launch.last_output()}")
            time.sleep(POLL_S)
        return {"stacks": (time.monotonic_ns() - deadline.time_ns) / 1e9}


def our_beat(tool: tools.Tool, turn: Turn) -> Sample:
    """Return what the agent and its guardian take beside beating ranks, and more than beside idle ones."""
    idle = beside(tool, "idle", 0.0)
    beating = beside(tool, "beat", turn.beat_s)
    return {
        "share": beating["share"],
        "processes": beating["processes"] - idle["processes"],
        "pss": max(0.0, beating["pss"] - idle["pss"]),
    }


def beside(tool: tools.Tool, mode: str, seconds: float) -> Sample:
    """Return what stands beside eight ranks: its share of a core over ``seconds``, its processes and memory."""
    with our_job(tool, 1, BEATING_RANKS, mode) as (launch, events, _run):
        found = wait_for(events, launch, lambda seen: len(seen) == BEATING_RANKS)
        time.sleep(SETTLE_S)
        roots = {process.pid for process in launch.processes}
        pids = measure.processes_below(roots, without={event.pid for event in found})
        before_s, began_s = cpu_s(pids), time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        share = (cpu_s(pids) - before_s) / took_s if seconds else 0.0
        memory = measure.memory_of(pids)
        events.with_name("events.stop").touch()
        launch.wait(LIMIT_S)
        return {"share": share, "processes": float(len(pids)), "pss": float(memory.pss)}


def cpu_s(pids: set[int]) -> float:
    """Return the seconds on a core that these processes' threads have had (proc(5): schedstat)."""
    total_ns = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # a thread has just ended
            for task in Path(f"/proc/{pid}/task").iterdir():
                total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def theirs(name: str, python: str, *mode: str) -> Sample:
    """Run `monitor_others.py`; return the samples that it prints."""
    with measure.job_directory() as directory:
        output = directory / "output.txt"
        with output.open("wb") as errors:
            try:
                done = subprocess.run(
                    [python, "-W", "ignore", OTHERS, name, str(directory), *mode],
                    env=tools.environment(directory),
                    check=False,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    timeout=LIMIT_S,
                )
            except subprocess.TimeoutExpired:
                raise measure.RunFailedError(f"it had not ended after {LIMIT_S:.0f} s") from None
        if done.returncode != 0 or not done.stdout:
            lines = output.read_text(errors="replace").strip().splitlines()[-3:]
            raise measure.RunFailedError(f"its exit code was {done.returncode}: {' / '.join(lines)}")
        return {key: float(value) for key, value in json.loads(done.stdout).items()}


def parts_of(found: list[tools.Tool], python: str) -> list[tuple[str, str, Callable[[Turn], Sample]]]:
    """Return what is to be measured: the part's name, the tool's, how."""
    names = {tool.name: tool for tool in found}
    parts: list[tuple[str, str, Callable[[Turn], Sample]]] = []
    for part, call in (("calls", our_calls), ("hang", our_hang), ("crowd", our_crowd), ("beat", our_beat)):
        if OURS in names:
            parts.append((part, OURS, lambda turn, call=call: call(names[OURS], turn)))  # type: ignore[misc]
        for launcher, name, key in (("ft_launcher", NVRX, "nvrx"), ("torchrun", TORCH, "torch")):
            if launcher in names and part != "crowd":
                parts.append((part, name, lambda turn, p=part, w=key: theirs(w, python, *mode_of(p, turn))))  # type: ignore[misc]
    return parts


def mode_of(part: str, turn: Turn) -> tuple[str, ...]:
    """Return the arguments for `monitor_others.py`."""
    extra = {"hang": (str(turn.phase_s),), "beat": (str(turn.beat_s),)}
    return (part, *extra.get(part, ()))


def collect(
    parts: list[tuple[str, str, Callable[[Turn], Sample]]], runs: int, beat_s: float
) -> tuple[dict[str, table.Samples], list[str]]:
    """Return all samples, interleaved, and a line for each run that failed."""
    results: dict[str, table.Samples] = {measurement.key: {} for measurement in MEASUREMENTS}
    failures: list[str] = []
    for number in range(runs + 1):  # run 0 warms caches up and does not count
        phase_s = LONGEST_PHASE_S * (number + random.random()) / (runs + 1)
        turn = Turn(phase_s, beat_s if number else 1.0)
        for part, tool, call in parts:
            print(f"run {number}/{runs}, {part}: {tool}", file=sys.stderr, flush=True)
            try:
                sample = call(turn)
            except measure.RunFailedError as error:
                failures.append(f"{tool}, {part}, run {number}: {error}")
                continue
            for key, value in sample.items() if number else ():
                results[key].setdefault(tool, []).append(value)
    return results, failures


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0 if every run of every tool that is there went well, 2 for a wrong command line."""
    if arguments.runs < 1 or not arguments.seconds > 0:
        print("bench: --runs and --seconds: expected more than 0", file=sys.stderr)
        return 2
    found, missing = tools.find_all(list(tools.NAMES), arguments.python)
    for line in missing:
        print(f"bench: {line}", file=sys.stderr)
    parts = [part for part in parts_of(found, arguments.python) if arguments.only in (None, part[0])]
    if not parts:
        print(f"bench: nothing to measure (--only {arguments.only})", file=sys.stderr)
        return 2
    measure.adopt_orphans()
    results, failures = collect(parts, arguments.runs, arguments.seconds)
    versions = {{"ft_launcher": NVRX, "torchrun": TORCH}.get(tool.name, tool.name): tool.version for tool in found}
    if arguments.json:
        facts = {"machine": machine(), "runs": arguments.runs, "tools": versions}
        print(json.dumps(facts | {"measurements": table.as_json(MEASUREMENTS, results, OURS)}, indent=2))
    else:
        facts = machine()
        shown = [measurement for measurement in MEASUREMENTS if results[measurement.key]]
        print(f"{arguments.runs} interleaved runs each of {', '.join(f'{n} {v}' for n, v in versions.items())}")
        print(f"{facts['system']}, {facts['cores']} cores, load {facts['load']}")
        print("NVRx waits for a reply to each call; a heartbeat of torch's file timer is to arm a timer again\n")
        print("\n".join(table.lines(shown, results, [OURS, NVRX, TORCH], OURS)))
    for line in failures:
        print(f"bench: failed: {line}", file=sys.stderr)
    return 1 if failures else 0

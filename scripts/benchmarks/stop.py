"""What an orderly stop costs per step, and whether all ranks leave together: real stops by random triggers."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import tools

WORKER = str(Path(__file__).with_name("stop_worker.py"))
NODES, WORKERS = 2, 2
RANKS = NODES * WORKERS
UP_S, STOPPED_S = 90.0, 90.0
INTERRUPTED = 75
BAR_S = 1e-6


class Stop(NamedTuple):
    """The end of one stopped run."""

    trigger: str
    code: int | None
    steps: tuple[int, ...]
    took_s: float

    @property
    def together(self) -> bool:
        """All ranks that have left did so at the same step."""
        return len(set(self.steps)) == 1

    @property
    def saved(self) -> bool:
        """All ranks have saved."""
        return len(self.steps) == RANKS


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench stop`` to the command line."""
    parser = subparsers.add_parser("stop", help=__doc__, description=__doc__, allow_abbrev=False)
    parser.add_argument("--stops", type=int, default=100, metavar="N", help="real stops (default 100)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of triggers, paces and saves (default 1)")
    parser.set_defaults(run=run)


def start(directory: Path, mode: str, workers: int, **more: str) -> subprocess.Popen[bytes]:
    """Start the ranks under two agents on this machine."""
    command = [sys.executable, "-m", "ftslurm.cli", "run", "--local-nodes", str(NODES), "--shared-dir", str(directory)]
    command += ["--rdzv-id", tools.RUN_ID, "--nproc-per-node", str(workers), "--health", "off", "--max-restarts", "0"]
    environment = tools.environment(directory) | more
    with open(directory / "output", "wb") as output:
        return subprocess.Popen(
            [*command, WORKER, mode, str(directory)],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def ask(directory: Path, process: subprocess.Popen[bytes], choice: random.Random) -> None:
    """Ask as users do."""
    command = [sys.executable, "-m", "ftslurm.cli", "stop", str(directory / tools.RUN_ID)]
    subprocess.run(command, env=tools.environment(directory), check=True, stdout=subprocess.DEVNULL, timeout=60)


def launcher(number: int) -> Callable[[Path, subprocess.Popen[bytes], random.Random], None]:
    """Return a trigger: a signal to all agents."""
    return lambda directory, process, choice: process.send_signal(number)


def one_agent(directory: Path, process: subprocess.Popen[bytes], choice: random.Random) -> None:
    """Send SIGTERM to one agent."""
    record = choice.choice(sorted((directory / tools.RUN_ID / "nodes").glob("*.json")))
    os.kill(json.loads(record.read_text())["pid"], signal.SIGTERM)


def one_rank(number: int) -> Callable[[Path, subprocess.Popen[bytes], random.Random], None]:
    """Return a trigger: a signal to one rank."""
    return lambda directory, process, choice: os.kill(
        int((directory / f"up{choice.randrange(RANKS)}").read_text()), number
    )


TRIGGERS: dict[str, Callable[[Path, subprocess.Popen[bytes], random.Random], None]] = {
    "SIGTERM to all": launcher(signal.SIGTERM),
    "SIGUSR1 to all": launcher(signal.SIGUSR1),
    "SIGINT to all": launcher(signal.SIGINT),
    "SIGTERM to one agent": one_agent,
    "SIGTERM to one rank": one_rank(signal.SIGTERM),
    "SIGUSR1 to one rank": one_rank(signal.SIGUSR1),
    "ftslurm stop": ask,
}


def stop_once(number: int, seed: int) -> Stop:
    """Start a run, stop it by a random trigger, and return how it ended."""
    choice = random.Random(f"{seed}.{number}")
    trigger = list(TRIGGERS)[number % len(TRIGGERS)]
    directory = Path(tempfile.mkdtemp(prefix="bench-stop-"))
    facts = {"PACE_S": f"{10 ** choice.uniform(-4, -1):.6f}", "SAVE_S": f"{choice.uniform(0, 2):.2f}"}
    facts |= {"COLLECTIVE": "1"} if choice.random() < 0.5 else {}
    process = start(directory, "train", WORKERS, **facts)
    try:
        end = time.monotonic() + UP_S
        while process.poll() is None and not all((directory / f"up{rank}").exists() for rank in range(RANKS)):
            if time.monotonic() > end:
                raise TimeoutError(f"seed {seed}, stop {number}: the ranks did not start; see {directory}")
            time.sleep(0.02)
        time.sleep(choice.uniform(0, 1))
        begin = time.monotonic()
        TRIGGERS[trigger](directory, process, choice)
        try:
            code: int | None = process.wait(STOPPED_S)
        except subprocess.TimeoutExpired:
            code = None
        took_s = time.monotonic() - begin - float(facts["SAVE_S"])
        steps = tuple(int(path.read_text()) for path in sorted(directory.glob("saved*")))
        stop = Stop(trigger, code, steps, took_s)
        if code == INTERRUPTED and stop.together and stop.saved:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"bench: seed {seed}, stop {number}: {facts}: {stop}; see {directory}", file=sys.stderr, flush=True)
        return stop
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def per_call() -> list[list[float]]:
    """Return each rank's seconds per call of `should_stop`, and per all-reduce if torch is there."""
    directory = Path(tempfile.mkdtemp(prefix="bench-stop-"))
    process = start(directory, "calls", 1)
    if process.wait(UP_S + STOPPED_S) != 0:
        raise RuntimeError((directory / "output").read_text(errors="replace")[-2000:])
    found = [[float(text) for text in path.read_text().split()] for path in sorted(directory.glob("calls*"))]
    shutil.rmtree(directory, ignore_errors=True)
    return found


def summary(stops: list[Stop]) -> list[str]:
    """Return the table of the stops by trigger."""
    lines = [f"{'trigger':22} {'stops':>5} {'same step':>9} {'saved':>5} {'deadlocks':>9}  longest, without the save"]
    by_trigger = Counter(stop.trigger for stop in stops)
    for name, number in [*by_trigger.items(), ("all", len(stops))]:
        those = [stop for stop in stops if name in (stop.trigger, "all")]
        together, saved = sum(stop.together for stop in those), sum(stop.saved for stop in those)
        dead, longest_s = sum(stop.code is None for stop in those), max(stop.took_s for stop in those)
        lines.append(f"{name:22} {number:5} {together:9} {saved:5} {dead:9}  {longest_s:.1f} s")
    return lines


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0 if all ranks of all runs have left at one step and saved."""
    # A shell starts background commands with SIGINT ignored, which the runs would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    costs = per_call()
    slowest = max(cost[0] for cost in costs)
    print(f"should_stop(step): {slowest * 1e6:.2f} µs a call on the slower of 2 ranks (bar ≤ {BAR_S * 1e6:g} µs)")
    reduces = [cost[1] for cost in costs if len(cost) > 1]
    if reduces:
        reduce_s = max(reduces)
        print(
            f"all_reduce of one int, gloo, 2 ranks: {reduce_s * 1e6:.0f} µs a call, {reduce_s / slowest:.0f} times that"
        )
    else:
        print("all_reduce: skipped, this Python has no torch")
    stops = []
    for number in range(arguments.stops):
        stops.append(stop_once(number, arguments.seed))
        print(f"stop {number + 1}/{arguments.stops}: {stops[-1].trigger}", file=sys.stderr, flush=True)
    if stops:
        print(f"\n{len(stops)} stops of {NODES} agents with {WORKERS} ranks each, seed {arguments.seed}")
        print("\n".join(summary(stops)))
    return 0 if all(stop.code == INTERRUPTED and stop.together and stop.saved for stop in stops) else 1

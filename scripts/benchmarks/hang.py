"""What hangs and slow ranks cost: collecting and judging the ranks' records, and scripts that run undisturbed."""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulation.training import Training, simulate

from benchmarks import table, tools
from benchmarks.agent import machine
from benchmarks.table import Measurement
from ftslurm.agent.arrival_sampling import SHARE
from ftslurm.collectives.calls import calls_of
from ftslurm.collectives.judgement import judge
from ftslurm.monitor import flight_server
from ftslurm.monitor.arrivals import STEPS_KEPT
from ftslurm.monitor.flight_client import FlightCollector
from ftslurm.monitor.lateness import lateness
from ftslurm.records.flight import SOCKET, Collective, FlightRecord, GroupConfig, Trace

ON, OFF = "all on", "all off"
COLLECTED, JUDGED, PER_NODE, ENTRIES = 64, 16_384, 8, 20
RECORDED = 2000
"""Entries of a full recorder, by default."""
COLLECT_TIMEOUT_S = 10.0
WORKER = str(Path(__file__).with_name("hang_worker.py"))
COST = str(Path(__file__).with_name("hang_cost.py"))
STEPS = 3000
CALLS_PER_STEP = 2
"""Collectives of a step of the script: DDP puts its parameters into two buckets at most."""
TRAININGS, NOISES, SAMPLED = 2000, (0.005, 0.02, 0.05, 0.1), 30

MEASUREMENTS = (
    Measurement("collect", f"records of {COLLECTED} ranks collected, full recorders", "s", 1.0),
    Measurement("judge", f"records of {JUDGED} ranks judged, processor time", "s", 3.0),
    Measurement("step", "a step of an unmodified DDP script, 2 ranks", "ms"),
    Measurement("slower", "the same, slower than with all off (standby workers import meanwhile)", "%"),
    Measurement("call", "a collective of one rank, least", "µs"),
    Measurement("hook", "a step of a small optimizer, least", "µs"),
    Measurement("parts", "the script slower by these and by the samples of arrivals", "%", 0.002),
    Measurement("named", f"one of 8 ranks 5 % slow, steps vary by 2 %: not named by {SAMPLED} steps", "%", 0.0),
    Measurement("false", f"{TRAININGS:,} simulated trainings without a slow rank: one named", "%", 0.0),
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench hang`` to the command line."""
    parser = subparsers.add_parser("hang", help=__doc__, description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="samples of each (default 5)")
    parser.add_argument("--json", action="store_true", help="all samples as JSON instead of the table")
    parser.set_defaults(run=run)


def collective(seq: int, group: tuple[str, str], name: str, *, done: bool) -> Collective:
    """Return a collective as gloo's ranks record it."""
    size = ((1 << 20,),)
    made_ns = seq * 10**6
    types = ("Float",)
    return Collective(seq, 0, seq, name, group, made_ns, size, types, size, types, state="scheduled", retired=done)


def record(rank: int, *, joined: bool) -> FlightRecord:
    """Return the record of a rank that waits in its last all_reduce, or has not joined it."""
    first = rank // PER_NODE * PER_NODE
    own = (f"t{rank // PER_NODE}", "tensor")
    entries = [collective(n, own, "gloo:all_gather", done=True) for n in range(1, ENTRIES)]
    last = ENTRIES if joined else ENTRIES - 1
    default = ("0", "default_pg")
    entries += [collective(n, default, "gloo:all_reduce", done=n < ENTRIES) for n in range(1, last + 1)]
    config = {own[0]: GroupConfig("tensor", tuple(range(first, first + PER_NODE)))}
    return FlightRecord("j", 1, f"n{first}", rank, 10**10, SOCKET, trace=Trace(tuple(entries), config, {}, 0, "2.10"))


def judged_s() -> float:
    """Return the processor time from the records of all ranks to the judgement, in seconds."""
    spent, ranks = 0.0, []
    for rank in range(JUDGED):
        one = record(rank, joined=rank != JUDGED // 2)  # a run directory has one file for each
        began = time.process_time()
        ranks.append(calls_of(one, JUDGED))
        spent += time.process_time() - began
    began = time.process_time()
    found = judge(ranks)
    spent += time.process_time() - began
    if found.culprits != (JUDGED // 2,):
        raise SystemExit(f"bench: the wrong rank was named: {found.culprits}")
    return spent


def document() -> bytes:
    """Return a full recorder's answer."""
    size = [[1 << 20]]
    entries = [
        {
            "collective_seq_id": n, "p2p_seq_id": 0, "op_id": n, "profiling_name": "gloo:all_reduce", "pg_id": 0,
            "process_group": ["0", "default_pg"], "time_created_ns": n * 10**6, "input_sizes": size,
            "input_dtypes": ["Float"], "output_sizes": size, "output_dtypes": ["Float"], "state": "scheduled",
            "retired": n < RECORDED, "is_p2p": False, "timeout_ms": 600000, "frames": [],
        }
        for n in range(1, RECORDED + 1)
    ]  # fmt: skip
    body = json.dumps({"version": "2.10", "entries": entries, "pg_config": {}, "pg_status": {}}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def servers(parent: Path) -> Iterator[dict[int, str]]:
    """Serve the answer for each rank, as torch's server in its process does; yield their directories."""
    answer, listening, directories = document(), [], {}
    for rank in range(COLLECTED):
        directory = parent / str(rank)
        directory.mkdir()
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(directory / flight_server.SOCKET))
        server.listen(1)
        threading.Thread(target=_serve, args=(server, answer), daemon=True).start()
        listening.append(server)
        directories[rank] = str(directory)
    try:
        yield directories
    finally:
        for server in listening:
            server.close()


def _serve(server: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(4096)
            connection.sendall(answer)


def collected_s() -> float:
    """Return the time from the question until all answers are there, in seconds; they are parsed in a thread."""
    with tempfile.TemporaryDirectory() as parent, servers(Path(parent)) as directories:
        collector, began = FlightCollector(directories, COLLECT_TIMEOUT_S), time.monotonic()
        collector.start()
        while not collector.fetched:
            time.sleep(0.0005)
        taken = time.monotonic() - began
        while not collector.done:
            time.sleep(0.001)
        if sum(answer.trace is not None for answer in collector.answers().values()) != COLLECTED:
            raise SystemExit("bench: not all records were collected")
    return taken


def wrongly_judged(rng: random.Random) -> tuple[float, float]:
    """Return the parts of simulated trainings in which the slow rank was not named, and one was where none is slow."""
    slow = Training([range(8)], slow={3: 0.05}, noise=0.02)
    missed = sum([each.rank for each in lateness(simulate(rng, slow, SAMPLED)).late] != [3] for _ in range(200))
    false = 0
    for number in range(TRAININGS):
        likeness, noise = rng.choice((0.0, 0.3, 0.6)), NOISES[number % len(NOISES)]
        none = Training([range(rng.choice((4, 8, 16)))], noise=noise, likeness=likeness, waits=number % 2 == 0)
        false += bool(lateness(simulate(rng, none, STEPS_KEPT)).late)
    return missed / 200, false / TRAININGS


def step_s(tool: str) -> float:
    """Return the median time of a step of the script in seconds, as its rank 0 prints it."""
    return _printed(tool, 2, "median step", WORKER, str(STEPS))[0]


def parts_s(tool: str) -> list[float]:
    """Return the least time of a collective and of an optimizer's step, seconds."""
    return _printed(tool, 1, "least", COST)


def _printed(tool: str, ranks: int, mark: str, *script: str) -> list[float]:
    off = ("--auto-progress", "off", "--flight-recorder", "off", "--warm-imports", "off") if tool == OFF else ()
    with tempfile.TemporaryDirectory() as runs:
        command = [
            *(sys.executable, "-m", "ftslurm.cli", "run", "--nnodes", "1", "--nproc-per-node", str(ranks), *off),
            *("--max-restarts", "0", "--shared-dir", runs, *script),
        ]
        done = subprocess.run(
            command, env=tools.environment(Path(runs)), cwd=runs, capture_output=True, text=True, check=False
        )
    line = next((line for line in done.stdout.splitlines() if mark in line), None)
    if done.returncode != 0 or line is None:
        raise SystemExit(f"bench: the script failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [float(number) for number in line.partition(mark)[2].split()]


def collect(arguments: argparse.Namespace) -> dict[str, table.Samples]:
    """Return all samples, with all on and all off in turn."""
    results: dict[str, table.Samples] = {measurement.key: {} for measurement in MEASUREMENTS}
    for number in range(arguments.runs):
        print(f"run {number + 1}/{arguments.runs}", file=sys.stderr, flush=True)
        steps = {tool: step_s(tool) for tool in ((ON, OFF) if number % 2 else (OFF, ON))}
        samples = [("collect", ON, collected_s()), ("judge", ON, judged_s())]
        seed = random.randrange(10**9)
        missed, false = wrongly_judged(random.Random(seed))
        if missed or false:
            print(f"slow ranks: seed {seed}: {missed:.1%} not named, {false:.2%} wrongly named", file=sys.stderr)
        samples += [("named", ON, missed), ("false", ON, false)]
        samples += [("step", tool, value) for tool, value in steps.items()]
        for tool in (ON, OFF):
            call, hook = parts_s(tool)
            samples += [("call", tool, call), ("hook", tool, hook)]
        for key, tool, value in samples:
            results[key].setdefault(tool, []).append(value)
    medians = {tool: statistics.median(results["step"][tool]) for tool in (ON, OFF)}
    results["slower"][ON] = [medians[ON] / medians[OFF] - 1]
    call, hook = (min(results[key][ON]) - min(results[key][OFF]) for key in ("call", "hook"))
    results["parts"][ON] = [(CALLS_PER_STEP * call + hook) / medians[OFF] + SHARE]
    return results


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0, or 2 for a wrong command line."""
    if arguments.runs < 1:
        print("bench: --runs: expected 1 or more", file=sys.stderr)
        return 2
    results = collect(arguments)
    if arguments.json:
        facts = {"machine": machine(), "runs": arguments.runs}
        print(json.dumps(facts | {"measurements": table.as_json(MEASUREMENTS, results, ON)}, indent=2))
        return 0
    facts = machine()
    print(f"{arguments.runs} interleaved runs on {facts['system']}, {facts['cores']} cores, load {facts['load']}\n")
    print("\n".join(table.lines(MEASUREMENTS, results, [ON, OFF], ON)))
    return 0

"""How fast members find each other, what that costs the filesystem, and how fast a lost node is replaced."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import lost as lost_nodes
from benchmarks import measure, table, tools
from benchmarks.agent import machine
from benchmarks.crowd import Costs, Count, Crowd
from benchmarks.table import Measurement

OURS, THEIRS, TUNED = "ftslurm", "torchrun", "tuned"
SIZES = (2, 16, 64, 256)
LARGE = 1024
BIG = 256  # from here on torch takes so long that it gets fewer runs, and a longer interval beside its default
BIG_RUNS = 2
KEEP_ALIVE_S = {THEIRS: 5, TUNED: 60}
LIMIT_S = {OURS: 60.0, THEIRS: 60.0, TUNED: 120.0}
SETTLE_S = 1.5  # a world gets into its steady state
WINDOW_S = 30.0  # holds whole numbers of heartbeats and of thorough looks

FORM_BARS = {64: 0.3, 256: 1.0}
AGAIN_BARS = {64: 0.5}
CALLS_BAR = 2.0
FLAT_BAR = 1.25

NOTES = (
    "Members are threads in a few processes on one machine and a local directory: no network filesystem's latency, "
    "and K members share the cores.",
    "calls: operations of ftslurm's FileSystem (a create is open, write, fsync, close), or of torch's c10d store.",
    "again: one member asks for the next world (as after a failure on its node) at a random moment of the others' "
    "looks.",
    f"tuned: torch with keep_alive_interval={KEEP_ALIVE_S[TUNED]}, only for K ≥ {BIG}, where as shipped it may not end "
    f"within {LIMIT_S[THEIRS]:.0f} s; for a lost node: ftslurm --heartbeat 0.5 --node-timeout 2, torchrun "
    "keep_alive_interval=1, keep_alive_max_attempt=2.",
    "torchrun: the agent that hosts the store is never the one killed, for the others would lose it; what then happens "
    "is not measured.",
    f"Not measured: torch at K = {LARGE}; what agents write besides the rendezvous (logs, records); several hosts.",
)
Results = dict[str, table.Samples]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench rendezvous` to the command line."""
    parser = subparsers.add_parser("rendezvous", help=__doc__, description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="samples of each time (default 5)")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of members, by commas; - for none")
    parser.add_argument("--large", action="store_true", help=f"{LARGE} members, too")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="that hold the members (default 4)")
    parser.add_argument("--lost-runs", type=int, default=3, metavar="N", help="murders of each kind (default 3)")
    parser.add_argument("--tools", default=f"{OURS},{THEIRS}", help=f"which, by commas (default {OURS},{THEIRS})")
    parser.add_argument(
        "--python",
        default=tools.this_python(),
        metavar="PATH",
        help="the interpreter whose environment holds torch (default the running one)",
    )
    parser.add_argument("--json", action="store_true", help="all samples as JSON instead of the tables")
    parser.set_defaults(run=run)


def sections(sizes: Sequence[int]) -> dict[str, list[Measurement]]:
    """Return the tables: their titles, and what stands in them."""
    return {
        "Time": [
            *(Measurement(f"form_{k}", f"all of {k} in, min = max", "s", FORM_BARS.get(k)) for k in sizes),
            *(Measurement(f"again_{k}", f"one of {k} again → all in the next", "s", AGAIN_BARS.get(k)) for k in sizes),
        ],
        "Cost of forming, per member": [
            *(Measurement(f"form_calls_{k}", f"calls, {k} members", "calls") for k in sizes),
            *(Measurement(f"form_bytes_{k}", f"bytes read and written, {k} members", "kB") for k in sizes),
        ],
        "Steady state, per member and second (the coordinator apart)": [
            *(Measurement(f"calls_{k}", f"calls, {k} members", "calls/s", CALLS_BAR) for k in sizes),
            Measurement("flat", "the most of these by the fewest", "x", FLAT_BAR),
            *(Measurement(f"sets_{k}", f"calls that write, {k} members", "calls/s") for k in sizes),
            *(Measurement(f"bytes_{k}", f"bytes read and written, {k} members", "kB/s") for k in sizes),
            *(Measurement(f"leader_calls_{k}", f"the coordinator's calls, {k} members", "calls/s") for k in sizes),
            *(Measurement(f"leader_bytes_{k}", f"the coordinator's bytes, {k} members", "kB/s") for k in sizes),
        ],
        "Lost: agent, guardian and workers SIGKILLed; 3 agents, --nnodes 2": [
            Measurement(case.key, case.title, "s", case.bar) for case in lost_nodes.CASES
        ],
    }


class Bench:
    """Collects the samples; what does not come to its end becomes a line of `failures`, and `failed` if it was ours.

    Args:
        found: the tools that are there.
        arguments: of the command line.
    """

    def __init__(self, found: list[tools.Tool], arguments: argparse.Namespace) -> None:
        self._tools = {tool.name: tool for tool in found}
        self._arguments = arguments
        self._random = random.Random()
        self.results: Results = {}
        self.failures: list[str] = []
        self.failed = False

    def members(self, size: int) -> None:
        """Measure `size` members of every kind, in turn."""
        kinds = [name for name in (OURS, THEIRS) if name in self._tools and not (name == THEIRS and size > BIG)]
        if THEIRS in kinds and size >= BIG:
            kinds.append(TUNED)
        crowds: dict[str, tuple[Crowd, Path]] = {}
        with measure.job_directory() as directory:
            for kind in kinds:
                self._try(kind, f"{size} members of {kind}", partial(self._recruit, crowds, kind, size, directory))
            for number in range(self._arguments.runs):
                for kind in tuple(crowds):
                    if kind == OURS or size < BIG or number < BIG_RUNS:
                        title = f"run {number + 1}/{self._arguments.runs}, {size} members of {kind}"
                        if not self._try(kind, title, partial(self._times, *crowds[kind], kind, size)):
                            crowds.pop(kind)[0].end()  # its members are somewhere in between
            self._steady(crowds, size)
            for crowd, _ in crowds.values():
                crowd.end()

    def lost(self) -> None:
        """Measure how long a murdered node is missing."""
        for number in range(self._arguments.lost_runs):
            for case in lost_nodes.CASES:
                for tool in self._tools.values():
                    if tool.name in case.options:
                        title = f"run {number + 1}/{self._arguments.lost_runs}, {case.title}: {tool.name}"
                        self._try(tool.name, title, partial(self._lost, tool, case))

    def finish(self) -> None:
        """Compare the sizes."""
        for name in self._tools:
            sizes = [key for key in self.results if key.startswith("calls_")]
            medians = [statistics.median(self.results[key][name]) for key in sizes if self.results[key].get(name)]
            if len(medians) > 1:
                self._add("flat", name, max(medians) / min(medians))

    def _add(self, key: str, kind: str, *values: float) -> None:
        self.results.setdefault(key, {}).setdefault(kind, []).extend(values)

    def _try(self, kind: str, title: str, part: Callable[[], None]) -> bool:
        print(title, file=sys.stderr, flush=True)
        try:
            part()
        except measure.RunFailedError as error:
            self.failures.append(f"{title}: {error}")
            self.failed |= kind == OURS
            return False
        return True

    def _recruit(self, crowds: dict[str, tuple[Crowd, Path]], kind: str, size: int, directory: Path) -> None:
        own = directory / kind
        own.mkdir()
        player = "ftslurm" if kind == OURS else "c10d"
        environment = tools.environment(own)
        environment["PYTHONPATH"] = f"{tools.CHECKOUT}:{tools.CHECKOUT / 'scripts'}"
        command = [self._arguments.python, "-m", "benchmarks.players", player]
        crowds[kind] = (Crowd(command, min(size, self._arguments.processes), own, environment), own)

    @staticmethod
    def _assemble(crowd: Crowd, own: Path, kind: str, size: int) -> None:
        if kind == OURS:
            crowd.assemble(size, root=str(own / f"run-{time.monotonic_ns()}"))
        else:
            crowd.assemble(size, keep_alive_s=KEEP_ALIVE_S[kind])

    def _times(self, crowd: Crowd, own: Path, kind: str, size: int) -> None:
        self._assemble(crowd, own, kind, size)
        before = crowd.count()
        self._add(f"form_{size}", kind, crowd.go(LIMIT_S[kind]))
        costs = [count.costs.minus(before[member].costs) for member, count in crowd.count().items()]
        self._add(f"form_calls_{size}", kind, sum(c.calls for c in costs) / size)
        self._add(f"form_bytes_{size}", kind, sum(c.moved for c in costs) / size)
        time.sleep(SETTLE_S + self._random.random())
        self._add(f"again_{size}", kind, crowd.again(self._random.randrange(size), 1, LIMIT_S[kind]))
        crowd.dismiss()

    def _steady(self, crowds: dict[str, tuple[Crowd, Path]], size: int) -> None:
        """Measure what all kinds cost at the same time: calls are counted, not timed."""
        counts: dict[str, dict[int, Count]] = {}
        for kind, (crowd, own) in crowds.items():

            def form(crowd: Crowd = crowd, own: Path = own, kind: str = kind) -> None:
                self._assemble(crowd, own, kind, size)
                crowd.go(LIMIT_S[kind])
                counts[kind] = {}

            self._try(kind, f"steady state, {size} members of {kind}", form)
        time.sleep(SETTLE_S)
        for kind in counts:
            counts[kind] = crowds[kind][0].count()
        time.sleep(WINDOW_S)
        for kind, before in counts.items():
            self._steady_costs(kind, size, before, crowds[kind][0].count())

    def _steady_costs(self, kind: str, size: int, before: dict[int, Count], after: dict[int, Count]) -> None:
        for member, count in after.items():
            seconds = (count.time_ns - before[member].time_ns) / 1e9
            rate: Costs = count.costs.minus(before[member].costs).by(seconds)
            if count.coordinating:
                self._add(f"leader_calls_{size}", kind, rate.calls)
                self._add(f"leader_bytes_{size}", kind, rate.moved)
            else:
                self._add(f"calls_{size}", kind, rate.calls)
                self._add(f"sets_{size}", kind, rate.sets)
                self._add(f"bytes_{size}", kind, rate.moved)

    def _lost(self, tool: tools.Tool, case: lost_nodes.Case) -> None:
        self._add(case.key, tool.name, lost_nodes.measure_lost(tool, case))


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0 if all of ours went well (torch at its limits may fail), 2 for a wrong command line."""
    try:
        sizes = [] if arguments.sizes == "-" else sorted({int(text) for text in arguments.sizes.split(",")})
    except ValueError:
        sizes = [0]
    if any(size < 2 for size in sizes):
        return _refuse(f"--sizes {arguments.sizes}: expected numbers from 2 on, by commas, or -")
    for name in ("runs", "processes"):
        if getattr(arguments, name) < 1:
            return _refuse(f"--{name} {getattr(arguments, name)}: expected 1 or more")
    names = arguments.tools.split(",")
    if not set(names) <= {OURS, THEIRS}:
        return _refuse(f"--tools {arguments.tools}: expected of {OURS},{THEIRS}")
    found, missing = tools.find_all(names, arguments.python)
    for line in missing:
        print(f"bench: {line}", file=sys.stderr)
    if not found:
        return 2
    if arguments.large:
        sizes.append(LARGE)
    measure.adopt_orphans()
    bench = Bench(found, arguments)
    for size in sizes:
        bench.members(size)
    bench.lost()
    bench.finish()
    if arguments.json:
        print(json.dumps(_as_json(found, bench, sizes, arguments), indent=2))
    else:
        _print_tables(found, bench, sizes, arguments)
    for line in bench.failures:
        print(f"bench: failed: {line}", file=sys.stderr)
    return 1 if bench.failed else 0


def _refuse(line: str) -> int:
    print(f"bench: {line}", file=sys.stderr)
    return 2


def _as_json(
    found: list[tools.Tool], bench: Bench, sizes: Sequence[int], arguments: argparse.Namespace
) -> dict[str, object]:
    measurements = [m for section in sections(sizes).values() for m in section]
    return {
        "machine": machine(),
        "runs": arguments.runs,
        "processes": arguments.processes,
        "tools": {tool.name: tool.version for tool in found},
        "measurements": table.as_json(measurements, bench.results, OURS),
        "failures": bench.failures,
        "notes": NOTES,
    }


def _print_tables(found: list[tools.Tool], bench: Bench, sizes: Sequence[int], arguments: argparse.Namespace) -> None:
    """Print what was measured, where, and what was not."""
    facts = machine()
    print(f"{', '.join(f'{tool.name} {tool.version}' for tool in found)}; {arguments.runs} interleaved runs")
    print(f"{facts['system']}, {facts['cores']} cores, load {facts['load']}; {arguments.processes} processes, loopback")
    for title, measurements in sections(sizes).items():
        there = [m for m in measurements if bench.results.get(m.key)]
        kinds = [kind for kind in (OURS, THEIRS, TUNED) if any(kind in bench.results[m.key] for m in there)]
        if there:
            print(f"\n{title}\n")
            print("\n".join(table.lines(there, bench.results, kinds, OURS)))
    print()
    for note in NOTES:
        print(f"- {note}")

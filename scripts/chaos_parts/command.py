"""scripts/chaos: runs one job after the other on its own lab, injects faults into each, and judges the results."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from chaos_parts.collect import gather, maker, run_directory
from chaos_parts.faults import BY_NAME, FAULTS, Fault
from chaos_parts.history import NEVER, REQUEUE_POLICIES, History, Leftover
from chaos_parts.judge import Miss, judge
from chaos_parts.run_job import MAX_RESTARTS, JobRun, Watched
from chaos_parts.schedule import Plan, plan
from chaos_parts.table import Verdict, job_lines, summary
from chaos_parts.world import LabError, World

KEPT_FAULT = "directory"
"""While the shared directory fails, records are kept on the node's disk, by design."""
LAST_START_S = 20.0
"""No job starts within this time before the end, in seconds."""


class Log:
    """Log of chaos's actions: one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO = path.open("a", buffering=1)

    def note(self, what: str, **facts: object) -> None:
        """Log an action."""
        self._file.write(json.dumps({"time_ns": time.time_ns(), "what": what, **facts}) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0 without misses, 1 with misses, 2 for a wrong command line or without root."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__, allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=6, metavar="N", help="of the lab, and of each job (default 6)")
    parser.add_argument(
        "--spares", type=int, default=2, metavar="N", help="number of these that are spares (default 2)"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, metavar="M", help="duration in which jobs are started (default 10)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="determines all faults (default 1)")
    parser.add_argument("--job", type=int, metavar="K", help="only this job of the seed")
    parser.add_argument("--only", metavar="FAULT,…", help="only these faults; --list prints them")
    parser.add_argument("--list", action="store_true", help="print the faults and exit")
    parser.add_argument(
        "--requeue",
        choices=REQUEUE_POLICIES,
        default=NEVER,
        help="of the jobs (default never: a requeue would hide a run that its agents should have saved)",
    )
    parser.add_argument("--slurm", metavar="VERSION", help="required version of the Slurm on PATH (22, 24.11)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a line of slurm.conf")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="where the files of a miss are kept (default below /tmp)"
    )
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{fault.name:28} weight {fault.weight:2}, hits {fault.hits}" for fault in FAULTS))
        return 0
    problem = _refusal(options)
    if problem:
        print(f"chaos: {problem}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the lab is shut down
    base = Path(tempfile.mkdtemp(prefix="ftschaos-", dir="/tmp"))
    kept = False
    try:
        return _session(options, base)
    except LabError as error:
        kept = True
        print(f"chaos: the lab failed: {error}; its logs are in {base}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if not kept:
            shutil.rmtree(base, ignore_errors=True)


def _refusal(options: argparse.Namespace) -> str:
    """Return why the command line is refused, "" if it is accepted."""
    if os.geteuid() != 0:
        return "a Slurm of several nodes on one machine needs root"
    if not os.path.exists("/dev/fuse"):
        return "a directory with injected faults needs /dev/fuse"
    if shutil.which("ftslurm", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}") is None:
        return f"no ftslurm beside {sys.executable} or on PATH: activate the environment that it is installed in"
    if not 2 <= options.nodes <= 64 or not 0 <= options.spares < options.nodes:
        return f"--nodes {options.nodes} --spares {options.spares}: expected 2 to 64 nodes and fewer spares than these"
    unknown = sorted(set(_names(options)) - set(BY_NAME))
    if unknown:
        return f"--only {','.join(unknown)}: no such fault (--list shows them)"
    if options.slurm:
        found = _slurm_version()
        if not f"{found}.".startswith(f"{options.slurm}."):
            return f"--slurm {options.slurm}: expected that version on PATH, found {found or 'none'}"
    return ""


def _slurm_version() -> str:
    program = shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        return ""
    # "slurm-wlm 22.05.8"; sinfo would need a configuration.
    return subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stdout.split()[-1]


def _names(options: argparse.Namespace) -> list[str]:
    return options.only.split(",") if options.only else []


def _session(options: argparse.Namespace, base: Path) -> int:
    keep = options.keep or Path("/tmp/ftslurm-chaos") / f"{time.strftime('%Y%m%d-%H%M%S')}-seed-{options.seed}"
    faults = [BY_NAME[name] for name in _names(options)] or list(FAULTS)
    log = Log(base / "chaos.jsonl")
    world = World(base, options.nodes, options.set, log.note)
    verdicts: list[Verdict] = []
    try:
        world.up()
        for each in _plans(options, faults):
            verdicts.append(_one(world, each, options, log, keep))
            print("\n".join(job_lines(verdicts[-1])), flush=True)
    finally:
        world.take_down()
    print("\n" + "\n".join(summary(verdicts)))
    again = f"--nodes {options.nodes} --spares {options.spares} --seed {options.seed} --requeue {options.requeue}"
    print(f"again: scripts/chaos {again} --job K")
    return 1 if any(verdict.misses for verdict in verdicts) else 0


def _plans(options: argparse.Namespace, faults: Sequence[Fault]) -> Iterator[Plan]:
    """Yield the plan of one job, or plans until the end of the time."""
    gloo = find_spec("torch") is not None
    if options.job is not None:
        yield plan(options.seed, options.job, faults, gloo)
        return
    end = time.monotonic() + options.minutes * 60 - LAST_START_S
    number = 0
    while time.monotonic() < end or number == 0:
        number += 1
        yield plan(options.seed, number, faults, gloo)


def _one(world: World, planned: Plan, options: argparse.Namespace, log: Log, keep: Path) -> Verdict:
    """Run one job and judge it."""
    try:
        world.heal()
    except LabError as error:
        log.note("new lab", why=str(error))
        print(f"starting a new lab, since the old one did not recover: {error}", flush=True)
        world.take_down()
        world.up()
    log.note("plan", seed=options.seed, plan=asdict(planned))
    before = {path for _, path in world.leftovers()}
    run = JobRun(world, planned, options.nodes - options.spares, options.requeue, log.note)
    watched = run.run()
    directory = world.shared.beneath / watched.name
    observed = _observed(watched, planned, world, options)
    leftovers = _leftovers(world, directory, before, observed)
    history = gather(observed, directory, run.events, world.shared.journal(), maker(world.environment), leftovers)
    misses = tuple(judge(history)) if watched.job else (Miss("submitted", "sbatch did not accept the job"),)
    kept = _keep(keep / f"job-{planned.number}", world, directory, history, misses, log) if misses else ""
    return Verdict(planned.number, history, misses, kept)


def _observed(watched: Watched, planned: Plan, world: World, options: argparse.Namespace) -> History:
    return History(
        name=watched.name,
        steps=planned.steps,
        nodes=tuple(world.nodes),
        min_nodes=options.nodes - options.spares,
        max_restarts=MAX_RESTARTS,
        requeue=options.requeue,
        batch_host=watched.facts.get("BatchHost", ""),
        begin_ns=watched.begin_ns,
        end_ns=watched.end_ns,
        stuck=watched.stuck,
        state=watched.facts.get("JobState", ""),
        exit_code=watched.facts.get("ExitCode", ""),
        injections=watched.injections,
        running=watched.running,
        stale=watched.stale,
    )


def _leftovers(world: World, directory: Path, before: set[Path], observed: History) -> tuple[Leftover, ...]:
    """Return the files left on the nodes' disks; those of an earlier job are reported once, and removed."""
    run = run_directory(directory)
    started = {path.stem for path in run.glob("nodes/*.json")} if run is not None else set()
    excused = any(injection.kind.startswith(KEPT_FAULT) for injection in observed.injections)
    found = []
    for node, path in world.leftovers():
        if path.name.startswith(f"ftslurm-{os.getuid()}-kept-") and excused:
            world.remove(path)
            continue
        if path in before and node not in started:
            continue
        found.append(Leftover(node, str(path), path in before))
        if path in before:
            world.remove(path)
    return tuple(found)


def _keep(where: Path, world: World, directory: Path, history: History, misses: Sequence[Miss], log: Log) -> str:
    """Copy all files of a job to a directory of its own; return its path."""
    where.mkdir(parents=True, exist_ok=True)
    for source, name in ((directory, "job"), (world.base / "lab" / "log", "slurm"), (world.logs, "lab")):
        shutil.copytree(source, where / name, dirs_exist_ok=True, symlinks=True, ignore_dangling_symlinks=True)
    for source in (log.path, world.events / f"{history.name}.jsonl", world.base / "journal.jsonl"):
        if source.exists():
            shutil.copy(source, where)
    (where / "history.json").write_text(json.dumps(history.as_json(), indent=1))
    (where / "misses.txt").write_text("".join(f"{miss.check}: {miss.text}\n" for miss in misses))
    return str(where)

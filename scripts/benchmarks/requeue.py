"""`bench requeue`: jobs of a real Slurm that lose a node or are preempted, and jobs whose program always fails."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks import preemption

ROOT = Path(__file__).resolve().parents[2]
NODES, STEPS, PATIENCE_S = 3, 20, 120.0
TRAIN = """\
import os, time
import ftslurm
rank, first = int(os.environ["RANK"]), 0
if os.path.exists("save"):
    first = int(open("save").read()) + 1
if rank == 0:
    print(first, os.environ["WORLD_SIZE"], time.time(), file=open("starts", "a"))
for step in range(first, 100000):
    ftslurm.progress(step)
    if os.path.exists("bug") and step == 5:
        raise ValueError("a bug")
    if rank == 0:
        open("save.new", "w").write(str(step))
        os.replace("save.new", "save")
    time.sleep(0.05)
    if os.path.exists("finish"):
        break
"""
OPTIONS = "--node-timeout 3 --heartbeat 0.5 --health off --join-timeout 5"


def register(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command line of this benchmark."""
    parser = benchmarks.add_parser("requeue", help="node losses without a spare on a real Slurm (needs root)")
    parser.add_argument("--tries", type=int, default=20, help="number of node losses; default 20")
    parser.add_argument("--preemptions", type=int, default=5, help="of ftsrun, and as many of srun; default 5")
    parser.add_argument("--prefix", default="b", help="what the names of the Slurm's nodes begin with; default b")
    parser.set_defaults(run=run)


class Cluster:
    """A Slurm for the tries."""

    def __init__(self, base: Path, prefix: str) -> None:
        self.nodes = [f"{prefix}{number}" for number in range(1, NODES + 1)]
        path = f"{ROOT / 'scripts'}:{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
        self.env = {**clean, "PATH": path, "SLURMLAB_DIR": str(base / "lab"), "SLURMLAB_PREFIX": prefix}
        settings = [option for line in preemption.SETTINGS for option in ("--set", line)]
        self.command("slurm-lab", "up", str(NODES), *settings)
        self.env["SLURM_CONF"] = str(base / "lab" / "slurm.conf")

    def command(self, *argv: str, cwd: Path | None = None) -> str:
        """Run a command; return what it printed."""
        done = subprocess.run(argv, env=self.env, cwd=cwd, capture_output=True, text=True, check=False, timeout=180)
        if done.returncode:
            raise SystemExit(f"bench: {' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def job(self, work: Path) -> str:
        """Submit a job of two nodes in `work`; return its id."""
        (work / "train.py").write_text(TRAIN)
        (work / "job.sbatch").write_text(f"#!/bin/bash\nexec ftsrun {OPTIONS} train.py\n")
        argv = ("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", "--no-kill", "--requeue")
        return self.command(*argv, "--open-mode=append", "job.sbatch", cwd=work)

    def facts(self, job: str) -> dict[str, str]:
        """Return Slurm's record of a job."""
        text = self.command("scontrol", "show", "job", "-o", job)
        return dict(field.split("=", 1) for field in text.split() if "=" in field)


def until(true: Callable[[], bool]) -> bool:
    """Wait; return whether it became true in time."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def step_of(work: Path) -> int:
    """Return the newest saved step."""
    return int((work / "save").read_text()) if (work / "save").exists() else -1


def starts_of(work: Path) -> list[list[str]]:
    """Return step, world size and time of each start."""
    return [line.split() for line in (work / "starts").read_text().splitlines()] if (work / "starts").exists() else []


def loss(cluster: Cluster, work: Path, rng: random.Random) -> float | None:
    """Let a job lose one of its nodes; return the seconds until it trains again, None if it did not, or not rightly."""
    job = cluster.job(work)
    if not until(lambda: step_of(work) >= STEPS):
        return None
    hosts = cluster.command("scontrol", "show", "hostnames", cluster.facts(job)["NodeList"]).split()
    node = rng.choice(hosts)
    cluster.command("slurm-lab", "kill-node", node)
    saved, killed_at = step_of(work), time.time()
    resumed = until(lambda: len(starts_of(work)) > 1)
    (work / "finish").touch()
    done = resumed and until(lambda: cluster.facts(job)["JobState"] == "COMPLETED")
    cluster.command("slurm-lab", "revive-node", node)
    found = starts_of(work)
    right = done and len(found) == 2 and int(found[1][0]) > saved - 2 and found[1][1] == found[0][1]
    return float(found[1][2]) - killed_at if right else None


def bug(cluster: Cluster, work: Path) -> int:
    """Run a job whose program always fails; return how often it was requeued."""
    (work / "bug").touch()
    job = cluster.job(work)
    until(lambda: cluster.facts(job)["JobState"] == "FAILED")
    return int(cluster.facts(job)["Restarts"])


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 1 if a bar is missed."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-", dir="/tmp") as name:
        base = Path(name)
        cluster = Cluster(base, arguments.prefix)
        spent: list[float] = []
        try:
            for number in range(arguments.tries):
                work = base / f"loss{number}"
                work.mkdir()
                seconds = loss(cluster, work, rng)
                spent += [] if seconds is None else [seconds]
                text = "MISSED" if seconds is None else f"trains again after {seconds:.1f} s"
                print(f"loss {number + 1}/{arguments.tries}: {text}", flush=True)
            (base / "bug").mkdir()
            restarts = bug(cluster, base / "bug")
            preemption.prepare(cluster)
            preempted: dict[str, list[preemption.Preemption]] = {way: [] for way in preemption.SCRIPTS}
            for number in range(arguments.preemptions * len(preempted)):
                way = list(preempted)[number % len(preempted)]
                (base / f"preempted{number}").mkdir()
                one = preemption.preempt(cluster, base / f"preempted{number}", way, until)
                preempted[way] += [] if one is None else [one]
                print(f"preemption {number + 1}, {way}: {one if one is not None else 'MISSED'}", flush=True)
        finally:
            cluster.command("slurm-lab", "down")
    missed = len(spent) < arguments.tries or restarts > 0
    print(f"\nrequeued and resumed at the right step: {len(spent)} of {arguments.tries} (bar: all)")
    if spent:
        print(f"from the loss to the next start: {median(spent):.1f} s ({min(spent):.1f} to {max(spent):.1f})")
    print(f"requeues of a program that always fails: {restarts} (bar: 0){'  MISSED' if missed else ''}")
    if all(preempted.values()):
        shown, kept = preemption.lines(preempted)
        print("\n" + "\n".join(shown))
        missed |= not kept
    return int(missed or any(len(tries) < arguments.preemptions for tries in preempted.values()))

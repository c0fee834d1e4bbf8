"""A real Slurm for the tests: the one of `scripts/slurm-lab`, brought up once, with a directory of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODES = 3
PREFIX = os.environ.get("FTSLURM_TEST_LAB_PREFIX", "t")
"""Two checkouts that are tested at the same time need two."""

GOES_ON = ("PENDING", "RUNNING", "SIGNALING", "COMPLETING", "CONFIGURING")


class Job:
    """A submitted batch job."""

    def __init__(self, lab: Lab, job_id: str, directory: Path) -> None:
        self.lab = lab
        self.id = job_id
        self.directory = directory
        self.run_dir = directory / "ftslurm-runs" / f"job-{job_id}"

    @property
    def state(self) -> str:
        return self.facts().get("JobState", "?")

    def facts(self) -> dict[str, str]:
        for _ in range(20):
            done = self.lab.command("scontrol", "show", "job", "-o", self.id)
            if done.returncode == 0 or "Invalid job id" in done.stderr:
                break
            # A busy controller does not always answer.
            time.sleep(0.5)
        return dict(field.split("=", 1) for field in done.stdout.split() if "=" in field)

    @property
    def output(self) -> str:
        path = self.directory / f"slurm-{self.id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def is_over(self) -> bool:
        return self.state not in GOES_ON

    def wait(self, seconds: float = 60) -> str:
        """Wait until it has ended; return its state."""
        found = ""

        def has_ended() -> bool:
            nonlocal found
            found = self.state
            return found not in GOES_ON

        self.lab.until(has_ended, seconds, self.explain)
        return found

    def until_output(self, text: str, seconds: float = 40) -> None:
        self.lab.until(lambda: text in self.output, seconds, lambda: f"{text!r} in\n{self.explain()}")

    def node_record(self, node: str) -> dict[str, object]:
        record: dict[str, object] = json.loads((self.run_dir / "nodes" / f"{node}.json").read_text())
        return record

    def explain(self) -> str:
        facts = self.facts()
        return (
            f"job {self.id} is {facts.get('JobState')}, reason {facts.get('Reason')}\n"
            f"{self.lab.states()}\nits output:\n{self.output}"
        )


class Lab:
    """The cluster."""

    def __init__(self, environment: dict[str, str], prefix: str, nodes: int) -> None:
        self.environment = environment
        self.nodes = [f"{prefix}{i}" for i in range(1, nodes + 1)]

    def command(self, *argv: str, cwd: Path | None = None, check: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=120, check=check
        )

    def lab(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.command(str(ROOT / "scripts" / "slurm-lab"), *arguments)

    def submit(self, directory: Path, body: str, *options: str, nodes: int = 2) -> Job:
        script = directory / "job.sbatch"
        script.write_text(f"#!/bin/bash\n{body}\n")
        argv = ["sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=1", "--no-kill", "--open-mode=append"]
        done = self.command(*argv, *options, str(script), cwd=directory)
        assert done.returncode == 0, done.stderr
        return Job(self, done.stdout.strip().partition(";")[0], directory)

    def restart_controller(self) -> None:
        """Have the controller read its configuration anew.

        It is shut down, not killed: a killed one has jobs and nodes as they were seconds before its end.
        """
        self.command("scontrol", "shutdown", "slurmctld")
        self.until(lambda: self.lab("start-daemon", "slurmctld").returncode == 0, 60, lambda: "slurmctld does not end")
        step = ("srun", f"--nodes={len(self.nodes)}", "--immediate=10", "--time=1", "--output=/dev/null", "true")
        self.until(lambda: self.command(*step).returncode == 0, 60, self.states)

    def states(self) -> str:
        """Return what Slurm knows of all nodes and jobs."""
        nodes, jobs = self.command("scontrol", "show", "nodes", "-o"), self.command("squeue")
        return f"{nodes.stdout}{nodes.stderr}{jobs.stdout}{jobs.stderr}"

    @staticmethod
    def until(true: Callable[[], bool], seconds: float, explain: Callable[[], str]) -> None:
        """Wait for real processes to get somewhere; the bound is for a hang, not a measurement."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                pytest.fail(f"not within {seconds} s: {explain()}")
            time.sleep(0.1)

    def processes(self, mark: str) -> list[str]:
        """Return the command lines of living processes whose environment or command line holds `mark`."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (mark.encode() in (entry / "environ").read_bytes()):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if line:
                        found.append(f"{entry.name} {line}")
            except OSError:
                continue
        return found


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Bring the cluster up, once."""
    yield from cluster_of(PREFIX, NODES)


def cluster_of(prefix: str, nodes: int) -> Iterator[Lab]:
    """Bring a cluster up, and down at the end."""
    if os.geteuid() != 0:
        pytest.skip("a real Slurm of several nodes on one machine needs root")
    base = Path(tempfile.mkdtemp(prefix="ftslab-", dir="/tmp"))
    path = f"{ROOT / 'scripts'}:{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
    # Whether a job starts again is tested in test_requeue.py; the other tests have one start.
    environment["FTSLURM_REQUEUE"] = "never"
    environment.update(PATH=path, SLURMLAB_DIR=str(base / "lab"), SLURMLAB_PREFIX=prefix, PYTHONUNBUFFERED="1")
    cluster = Lab(environment, prefix, nodes)
    up = cluster.lab("up", str(nodes))
    if up.returncode == 2:
        pytest.skip(f"no Slurm here: {up.stderr.strip()}")
    assert up.returncode == 0, up.stderr
    environment["SLURM_CONF"] = cluster.lab("env").stdout.strip().partition("SLURM_CONF=")[2].strip("'\"")
    try:
        yield cluster
    finally:
        cluster.lab("down")
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def work(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that all nodes share, and nodes that are all idle."""
    yield from work_on(lab)


def work_on(lab: Lab) -> Iterator[Path]:
    """Make that directory for one test, and leave nothing."""
    directory = Path(tempfile.mkdtemp(prefix="ftsjob-", dir="/tmp"))
    # By their whole state: a node that does not respond is idle, too, but gets no job.
    idle = ("sinfo", "-h", "-N", "-p", "lab", "-o", "%t")
    lab.until(lambda: lab.command(*idle).stdout.split() == ["idle"] * len(lab.nodes), 60, lab.states)
    yield directory
    lab.command("scancel", "--user=root")
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def preempting(lab: Lab) -> Iterator[None]:
    """Add a partition whose jobs preempt those of the other one."""
    path = Path(lab.environment["SLURM_CONF"])
    before = path.read_text()
    path.write_text(f"{before}PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n")
    lab.restart_controller()
    lab.command(
        "scontrol", "create", "PartitionName=high", "Nodes=ALL", "PriorityTier=10", "PreemptMode=OFF", check=True
    )
    yield
    lab.command("scancel", "--user=root")
    lab.command("scontrol", "update", "PartitionName=lab", "PreemptMode=REQUEUE", "GraceTime=0")
    lab.until(lambda: not lab.command("squeue", "-h").stdout.strip(), 60, lambda: lab.command("squeue").stdout)
    lab.command("scontrol", "delete", "PartitionName=high", check=True)
    path.write_text(before)
    lab.restart_controller()

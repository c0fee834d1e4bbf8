"""The launchers that are compared: where each is found, its version, how it is given the same job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
RUN_ID = "bench"
NAMES = ("torchrun", "ft_launcher", "ftslurm")
_MODULES = {
    "torchrun": "torch.distributed.run",
    "ft_launcher": "nvidia_resiliency_ext.fault_tolerance.launcher",
    "ftslurm": "ftslurm.cli",
}
_NEEDED = {
    "torchrun": ("torch",),
    "ft_launcher": ("torch", "nvidia_resiliency_ext", "psutil", "defusedxml", "yaml"),
    "ftslurm": ("ftslurm.cli",),
}
_DISTRIBUTIONS = {"torchrun": "torch", "ft_launcher": "nvidia-resiliency-ext", "ftslurm": "ftslurm"}
# Runs in the interpreter that has the tools. find_spec of a top-level package imports nothing.
_PROBE = """
import importlib.metadata, importlib.util, json, sys
needed, distribution = json.loads(sys.argv[1])
missing = []
for name in needed:
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        found = None
    if found is None:
        missing.append(name)
try:
    version = importlib.metadata.version(distribution)
except importlib.metadata.PackageNotFoundError:
    version = "of this checkout"
print(json.dumps([missing, version]))
"""


@dataclass(frozen=True)
class Job:
    """What every tool is asked to run: ``nodes`` agents on this machine with ``workers`` workers each."""

    nodes: int
    workers: int
    script: tuple[str, ...]
    directory: Path  # of this job alone
    port: int  # free on localhost


@dataclass(frozen=True)
class Tool:
    """A launcher that is there."""

    name: str
    version: str
    start: tuple[str, ...]

    def commands(self, job: Job) -> list[list[str]]:
        """Return the commands to start for ``job``, in order; together they are one launch."""
        if self.name == "ftslurm":
            return [[*self.start, "run", *_ftslurm_options(job), *job.script]]
        return [[*self.start, *_torchrun_options(job), *job.script] for _ in range(job.nodes)]


def _torchrun_options(job: Job) -> list[str]:
    # --local-addr keeps everything on loopback, and a host name that does not resolve out of the timing.
    return [
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.workers}",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{job.port}",
        f"--rdzv-id={RUN_ID}",
        "--local-addr=127.0.0.1",
    ]


def _ftslurm_options(job: Job) -> list[str]:
    options = [f"--nproc-per-node={job.workers}", "--max-restarts=3", f"--rdzv-id={RUN_ID}"]
    if job.nodes > 1:
        options.append(f"--local-nodes={job.nodes}")
    return [*options, f"--shared-dir={run_directory(job).parent}"]


def run_directory(job: Job) -> Path:
    """Return ftslurm's run directory of ``job``."""
    return job.directory / "shared" / RUN_ID


def environment(directory: Path) -> dict[str, str]:
    """Return every launcher's environment: nothing of an outer job, temporary files in ``directory``."""
    foreign = ("SLURM_", "FTSLURM_", "TORCHELASTIC_", "PET_", "MASTER_", "OMP_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        kept.pop(name, None)
    return kept | {"TMPDIR": str(directory), "PYTHONPATH": str(CHECKOUT)}


def find(name: str, python: str) -> Tool | str:
    """Return the tool ``name`` of the interpreter ``python``, or one line that says what is missing."""
    program = shutil.which(python)
    if program is None:
        return f"{name} skipped: {python} is no program"
    python = os.path.abspath(program)  # launchers start in a directory of their own
    question = json.dumps([_NEEDED[name], _DISTRIBUTIONS[name]])
    answer = subprocess.run(
        [python, "-c", _PROBE, question],
        env=environment(Path(tempfile.gettempdir())),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if answer.returncode != 0:
        return f"{name} skipped: {python} does not run: {(answer.stderr.strip() or '?').splitlines()[-1]}"
    missing, version = json.loads(answer.stdout)
    if missing:
        return f"{name} skipped: {python} has no {', '.join(missing)}"
    return Tool(name, version, _start(name, python))


def _start(name: str, python: str) -> tuple[str, ...]:
    script = Path(python).with_name(name)
    if script.exists():  # what people type, with what the installer's wrapper costs
        return (str(script),)
    return (python, "-m", _MODULES[name])


def find_all(names: list[str], python: str) -> tuple[list[Tool], list[str]]:
    """Return the tools that are there, and a line for each one that is not."""
    answers = [find(name, python) for name in names]
    return [a for a in answers if isinstance(a, Tool)], [a for a in answers if isinstance(a, str)]


def this_python() -> str:
    """Return the running interpreter, as a virtual environment names it."""
    return sys.executable

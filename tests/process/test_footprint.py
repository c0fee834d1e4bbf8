"""What the processes beside the workers hold in memory for as long as the job runs: no module that is heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What neither needs while workers run, from 0.3 MB (pathlib with urllib) to hundreds.
HEAVY = {
    "argparse", "asyncio", "concurrent", "dataclasses", "email", "gettext", "http", "importlib.metadata", "inspect",
    "logging", "multiprocessing", "pathlib", "pickle", "random", "shutil", "ssl", "tempfile", "torch", "traceback",
    "subprocess", "typing", "unittest", "urllib",
}  # fmt: skip
# The guardian does nothing but wait.
FOR_THE_AGENT = {"json", "queue", "re", "selectors", "socket", "threading"}
# Both leave by way of os._exit or the end of main; without site, which may import for other packages.
PROBE = """
import os, sys
leave = os._exit
def record(name):
    with open(name, "w") as file:
        file.write("\\n".join(sys.modules))
def record_and_leave(code):
    if os.getpgrp() == os.getpid():
        record("agent")
    leave(code)
os._exit = record_and_leave
from ftslurm.cli import main
code = main(sys.argv[1:])
record("guardian")
sys.exit(code)
"""
FAILS_ONCE = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0":
    raise ValueError("once")
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return what was imported at the end of a job that has failed once and was restarted."""
    place = tmp_path_factory.mktemp("footprint")
    (place / "train.py").write_text(FAILS_ONCE)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("FTSLURM", "SLURM", "PYTHON"))}
    options = ["--nproc-per-node", "2", "--shared-dir", "runs", "--numa-binding", "node"]
    process = subprocess.run(
        [sys.executable, "-S", "-c", PROBE, "run", *options, "train.py"],
        cwd=place,
        # The report is written after the workers' end.
        env={**inherited, "PYTHONPATH": str(ROOT), "FTSLURM_REPORT": "0", "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return {part: set((place / part).read_text().split()) for part in ("agent", "guardian")}


def test_the_agent_imports_nothing_heavy(modules: dict[str, set[str]]) -> None:
    assert "ftslurm.agent.node_agent" in modules["agent"]
    assert HEAVY & modules["agent"] == set()


def test_the_guardian_imports_little_more_than_python_itself(modules: dict[str, set[str]]) -> None:
    assert "ftslurm.agent.guardian" in modules["guardian"]
    assert (HEAVY | FOR_THE_AGENT) & modules["guardian"] == set()
    assert "ftslurm.agent.node_agent" not in modules["guardian"]

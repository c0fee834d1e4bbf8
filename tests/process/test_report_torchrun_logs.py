"""`ftslurm report --logs` on what the real torchrun leaves."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ftslurm.report.command import report_of_logs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

RAISE = """
import os, sys, time
if os.environ["RANK"] == "1":
    try:
        {}["shard"]
    except KeyError as error:
        raise ValueError("bad batch 42") from error
time.sleep(60)
"""
CRASH = """
import ctypes, faulthandler, os, time
faulthandler.enable()
if os.environ["RANK"] == "0":
    ctypes.string_at(0)
time.sleep(60)
"""
KILLED = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("source", "rank", "cause", "what"),
    [
        (RAISE, 1, "exception", "ValueError: bad batch 42"),
        (CRASH, 0, "segfault", "segmentation fault (SIGSEGV)"),
        (KILLED, 1, "sigkill", "killed by SIGKILL, sender unknown"),
    ],
)
def test_rank_and_cause_are_named_from_the_logs_of_torchrun_alone(
    tmp_path: Path, source: str, rank: int, cause: str, what: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    command = [sys.executable, "-m", "torch.distributed.run", "--log-dir", str(tmp_path / "logs"), "--redirects", "3"]
    command += [
        "--nproc-per-node",
        "2",
        "--master-port",
        "0",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    with (tmp_path / "slurm-7.out").open("wb") as output:
        subprocess.run([*command, str(script)], cwd=tmp_path, stdout=output, stderr=output, timeout=120, check=False)
    # A kill shows only in torchrun's own words.
    logs = tmp_path / "logs"
    (tmp_path / "slurm-7.out").rename(logs / "slurm-7.out")
    found = report_of_logs(logs)["cause"]
    assert found is not None
    assert (found["rank"], found["cause"], found["what"]) == (rank, cause, what)

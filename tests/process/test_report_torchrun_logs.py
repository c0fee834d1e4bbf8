"""`ftslurm report --logs` on what the real torchrun leaves."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ftslurm.report.pipeline import report_of_logs

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
        (RAISE, 1, "exception", "ValueError: bad batch 42 (from KeyError: 'shard')"),
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
    # A kill shows only in torchrun's own output.
    logs = tmp_path / "logs"
    (tmp_path / "slurm-7.out").rename(logs / "slurm-7.out")
    found = report_of_logs(logs)["cause"]
    assert found is not None
    assert (found["rank"], found["cause"], found["what"]) == (rank, cause, what)


WRITTEN = {
    "plain": ([], "rank 1: ValueError: bad batch 42"),
    "labels": (["--tee", "3"], "rank 1: ValueError: bad batch 42"),
    "restarts": (["--max-restarts", "1"], "rank 1: ValueError: bad batch 42"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_torchruns_own_output_alone_names_rank_and_place(tmp_path: Path, name: str) -> None:
    options, says = WRITTEN[name]
    script, output = tmp_path / "script.py", tmp_path / "slurm-7.out"
    script.write_text(RAISE)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", "--log-dir", str(tmp_path / "logs"), *options, str(script)]
    with output.open("wb") as file:
        subprocess.run(command, cwd=tmp_path, stdout=file, stderr=file, timeout=120, check=False)
    report = report_of_logs(output)
    assert says in report["summary"]
    assert report["cause"]["where"]["line"] == 7
    assert len(report["rounds"]) == (2 if name == "restarts" else 1)

"""A rank that is slow in synchronous training, with real processes, torch and gloo."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from test_run import Start, Started, start  # noqa: F401

pytest.importorskip("torch")

TRAIN = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    time.sleep(SLOW if rank == 3 else USUAL)
    over = torch.tensor([os.path.exists("over")], dtype=torch.int64)
    dist.all_reduce(over)
    if over:
        break
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
os._exit(0)  # torch's own threads abort the end of Python now and then
"""
TWO = ("--local-nodes", "2", "--nproc-per-node", "2")


def status(run: Started) -> dict[str, object]:
    if not any(run.directory.glob("ftslurm-runs/local-*/rounds")):
        return {}
    command = [sys.executable, "-m", "ftslurm.cli", "status", "--json", str(run.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found: dict[str, object] = json.loads(done.stdout)["late"] if done.returncode == 0 else {}
    return found


def test_the_rank_that_keeps_the_others_waiting_is_named_by_status_and_report(start: Start) -> None:  # noqa: F811
    run = start(TRAIN.replace("SLOW", "0.3").replace("USUAL", "0.2"), *TWO)

    def is_named() -> bool:
        late = status(run)
        return [(one["rank"], one["node"]) for one in late.get("ranks", ())] == [(3, "local1")]  # type: ignore[attr-defined]

    run.until(is_named, seconds=120)
    (run.directory / "over").touch()
    assert run.wait() == 0, run.err
    assert "slower than the others in round 1" in run.err + run.out
    assert "rank 3 on local1: arrives " in run.err + run.out


def test_ranks_that_are_equally_fast_are_compared_and_none_is_named(start: Start) -> None:  # noqa: F811
    # Long steps: where ranks share two cores, one may always get its turn after the others.
    run = start(TRAIN.replace("SLOW", "0.4").replace("USUAL", "0.4"), *TWO)
    run.until(lambda: status(run).get("compared") == 4, seconds=120)
    assert status(run)["ranks"] == []
    (run.directory / "over").touch()
    assert run.wait() == 0, run.err
    assert "slower than the others" not in run.err + run.out

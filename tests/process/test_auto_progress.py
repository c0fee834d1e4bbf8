"""Scripts that import nothing of ftslurm: the steps of their torch optimizers are seen, and hangs are found by them."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import test_run
from hang_story import history, hung, state
from test_run import Start, Started
from worker_process import WorkerProcess

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.optimizer_steps import WATCHED_FROM

pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")

start = test_run.start

HEAD = """
import os, sys, time
import torch
model = torch.nn.Linear(4, 4)
def loss(): return model(torch.ones(2, 4)).pow(2).sum()
def train(optimizer, steps):
    for _ in range(steps):
        loss().backward(); optimizer.step(); optimizer.zero_grad()
"""

# By name: the script, and how many steps it makes; None: nothing may be claimed.
SCRIPTS = {
    "one optimizer": ("train(torch.optim.AdamW(model.parameters()), 30)", 30),
    "gradient accumulation": (
        """
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for i in range(120):
    loss().backward()
    if i % 4 == 3:
        optimizer.step(); optimizer.zero_grad()
""",
        30,
    ),
    "generator and discriminator": (
        """
one, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(torch.nn.Linear(4, 4).parameters())
for _ in range(30):
    for _ in range(5):
        train(other, 1)
    train(one, 1)
""",
        150,
    ),
    "an optimizer per parameter, in the backward pass": (
        """
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}
def hook(p):
    optimizers[p].step(); optimizers[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
for _ in range(30):
    loss().backward()
""",
        30,
    ),
    "a closure": (
        """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
def closure():
    optimizer.zero_grad()
    found = loss(); found.backward()
    return found
for _ in range(30):
    optimizer.step(closure)
""",
        30,
    ),
    "a sharded model and optimizer": (
        """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
whole = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
zero = ZeroRedundancyOptimizer(whole.parameters(), torch.optim.Adam)
fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
sharded = torch.optim.AdamW(model.parameters())
for _ in range(30):
    whole(torch.ones(2, 4)).sum().backward(); zero.step(); zero.zero_grad()
    train(sharded, 1)
dist.destroy_process_group()
""",
        30,
    ),
    "a loss scaler that skips steps": (
        """
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cpu")
for i in range(30):
    scaler.scale(loss() * (float("inf") if i < 5 else 1.0)).backward()
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
""",
        25,
    ),
    "children that train, and ones that load data": (
        """
from torch.utils.data import DataLoader
optimizer = torch.optim.AdamW(model.parameters())
train(optimizer, 30)
list(DataLoader(list(range(8)), num_workers=2))
if os.fork() == 0:
    train(optimizer, 50)
    train(torch.optim.AdamW(model.parameters()), 50)
    os._exit(0)
assert os.wait()[1] == 0
""",
        30,
    ),
    "no optimizer": ("for _ in range(30):\n    loss().backward()", None),
    "an optimizer, but it takes over": (
        """
import ftslurm
optimizer = torch.optim.AdamW(model.parameters())
train(optimizer, 30)
ftslurm.progress(7)
train(optimizer, 30)
""",
        None,
    ),
}


def page_after(tmp_path: Path, script: str, **environment: str) -> heartbeat_page.HeartbeatPage | None:
    """Run a worker with that script; return the heartbeat page that it leaves."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "train.py").write_text(HEAD + script)
    worker = WorkerProcess(tmp_path)
    done = worker.run("--script", "train.py", "--", cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert "ftslurm" not in done.stderr
    return heartbeat_page.read(worker.records)


NEED_NEW_TORCH = {"a sharded model and optimizer": (2, 7), "children that train, and ones that load data": (2, 7)}
"""fully_shard on the CPU, and autograd in a child by fork."""


def torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in version("torch").split(".")[:2])


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_steps_of_one_optimizer_are_seen(tmp_path: Path, name: str) -> None:
    if name in NEED_NEW_TORCH and torch_version() < NEED_NEW_TORCH[name]:
        pytest.skip("this torch cannot run the script, under plain Python either")
    script, steps = SCRIPTS[name]
    page = page_after(tmp_path, script)
    if steps is None:
        assert page is None or (page.optimizer_steps is None and page.beats.number == 0)
        return
    assert page is not None and page.progress is None and page.optimizer_steps is not None
    found = page.optimizer_steps
    assert (found.first_step, found.last_step, found.marks) == (1, steps, steps)
    assert page.beats.number >= steps - WATCHED_FROM + 1


def test_a_checkpoint_restores_the_optimizers_own_count(tmp_path: Path) -> None:
    saved = repr(str(tmp_path / "saved.pt"))
    make = "optimizer = torch.optim.AdamW(model.parameters())\n"
    page_after(tmp_path / "first", f"{make}train(optimizer, 80)\ntorch.save(optimizer.state_dict(), {saved})")
    script = f"{make}optimizer.load_state_dict(torch.load({saved}))\ntrain(optimizer, 5)"
    page = page_after(tmp_path / "second", script)
    assert page is not None and page.optimizer_steps is not None
    assert (page.optimizer_steps.first_step, page.optimizer_steps.last_step) == (81, 85)


def test_a_step_that_torch_compiles_is_not_seen_and_nothing_is_claimed(tmp_path: Path) -> None:
    # In one graph: the hook must be no reason for torch to leave it. torch's own optimizers have such reasons.
    script = """
class Optimizer(torch.optim.Optimizer):
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(parameter.grad, alpha=-0.01)
optimizer = Optimizer(model.parameters(), {})
train(optimizer, 30)
@torch.compile(backend="eager", fullgraph=True)
def step(): optimizer.step()
for _ in range(5):
    loss().backward(); step(); optimizer.zero_grad()
train(optimizer, 30)
"""
    page = page_after(tmp_path, script)
    assert page is not None and page.optimizer_steps is None and page.beats.number == 0


TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer, start = torch.optim.AdamW(model.parameters()), 0
if os.path.exists("saved.pt"):
    saved = torch.load("saved.pt")
    optimizer.load_state_dict(saved["optimizer"]); start = saved["step"]
for step in range(start, 60):
    model(torch.ones(4, 8)).sum().backward(); optimizer.step(); optimizer.zero_grad()
    if step == 39 and rank == 0:
        torch.save({"optimizer": optimizer.state_dict(), "step": step + 1}, "saving.pt")
        os.rename("saving.pt", "saved.pt")
    if step == 49 and first and rank == 1:
        happens()
dist.barrier()
os._exit(0)
"""


def report_of(run: Started) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((run.run_dir / "report.json").read_text())
    return report


def test_an_unmodified_script_that_fails_has_steps_and_those_that_were_repeated_in_the_report(start: Start) -> None:
    run = start("def happens(): raise ValueError('once')\n" + TRAIN, "--local-nodes", "2")
    assert run.wait(120) == 0, run.err
    report = report_of(run)
    first, second = report["rounds"]
    assert (first["optimizer_steps"], second["optimizer_steps"]) == (
        {"first": 1, "last": 50},
        {"first": 41, "last": 60},
    )
    assert (first["first_step"], report["last_step"], report["last_optimizer_step"]) == (None, None, 60)
    assert first["cost"]["steps_repeated"] == 9
    assert 0 < report["accounting"]["ratio"] < 1
    # Nothing that decides about restarts or requeues takes these for the script's steps.
    assert state(run)["reached"] is None
    assert "optimizer step" in run.out


def test_a_rank_of_an_unmodified_script_that_hangs_is_found(start: Start) -> None:
    quick = ("--heartbeat-timeout", "4", "--grace", "1", "--max-restarts", "0")
    run = start("def happens(): time.sleep(600)\n" + TRAIN, "--local-nodes", "2", *quick)
    assert run.wait(120) == 1, run.err
    failure = hung(run)
    assert "no optimizer step for" in failure["message"]
    assert failure["step"] is None
    assert "train.py" in run.out and "happens" in run.out
    assert len(history(run)) == 1


def test_switched_off_nothing_is_seen(start: Start) -> None:
    run = start("def happens(): pass\n" + TRAIN, "--local-nodes", "2", "--auto-progress", "off")
    assert run.wait(120) == 0, run.err
    assert report_of(run)["rounds"][0]["optimizer_steps"] is None
    assert "meta_path" not in run.err


ENDS_AT_ONCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4)
for _ in range(5): dist.all_reduce(x)
"""


def test_a_script_that_ends_right_after_a_collective_is_not_aborted(start: Start) -> None:
    """By a thread of torch's that still holds a tensor; torchrun's ranks are, in most jobs of four."""
    for _ in range(4):
        run = start(ENDS_AT_ONCE, "--nproc-per-node", "4", "--max-restarts", "0", "--warm-imports", "off")
        assert run.wait(120) == 0, run.err

"""Each example goes on after a killed rank and after a stop: two nodes on this machine, without a GPU.

Those whose framework is missing are skipped; `scripts/test --frameworks` installs it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.test_run import Started

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("--local-nodes", "2", "--nproc-per-node", "1", "--health", "off")
# Nodes share the machine's cores, and cannot share its GPUs.
PLAIN = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
LIMIT_S = 180.0


@dataclass(frozen=True)
class Example:
    """An example, what it needs, its first checkpoint's pattern, and whether its batches depend on the step alone."""

    name: str
    needs: str
    option: str
    first: str
    save_every: int = 20
    compiles: bool = False
    repeatable: bool = False

    @property
    def path(self) -> Path:
        return ROOT / "examples" / f"{self.name}.py"

    def arguments(self, steps: int) -> tuple[str, ...]:
        return (self.option, "saved", "--steps", str(steps), "--save-every", str(self.save_every))


EXAMPLES = [
    Example("ddp", "torch", "--checkpoint", "saved", repeatable=True),
    # torch gathers the plan of a distributed checkpoint by numpy.
    Example("fsdp2", "numpy", "--checkpoints", "saved/step-*/.metadata", repeatable=True),
    Example("lightning_trainer", "lightning", "--checkpoints", "saved/last.ckpt"),
    Example("hf_trainer", "transformers", "--checkpoints", "saved/checkpoint-*/trainer_state.json"),
    Example("accelerate_loop", "accelerate", "--checkpoints", "saved/step-*/whole"),
    # On CPUs it compiles an operator of its own, once for each user.
    Example("deepspeed_zero", "deepspeed", "--checkpoints", "saved/step-*/whole", compiles=True, repeatable=True),
]


def need(module: str, compiles: bool = False) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed: scripts/test --frameworks installs it")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if compiles and (shutil.which("c++") is None or not header.exists()):
        pytest.skip(f"{module} compiles an operator: c++ or {header} is missing")


@pytest.fixture(params=EXAMPLES, ids=lambda example: example.name)
def example(request: pytest.FixtureRequest) -> Example:
    chosen: Example = request.param
    need(chosen.needs, chosen.compiles)
    return chosen


StartOf = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartOf]:
    """Start a program under `ftslurm run` in the test's directory; whatever is left of it at the end is killed."""
    runs: list[Started] = []

    def start(program: Path, *arguments: str, options: tuple[str, ...] = ()) -> Started:
        arguments_of_run = (*OPTIONS, *options, str(program), *arguments)
        run = Started(tmp_path, *arguments_of_run, PWD_MARK=str(tmp_path), TMPDIR=str(tmp_path), **PLAIN)
        runs.append(run)
        return run

    yield start
    for run in runs:
        for pid, _ in run.marked():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        run.process.wait()


def rank(run: Started, number: int) -> int:
    """Return the pid of that rank in the newest round."""
    for pid, line in run.marked():
        if "boot/worker.py" in line and f"RANK={number}".encode() in environ(pid).split(b"\0"):
            return pid
    raise AssertionError(run.marked())


def environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def begun(run: Started) -> list[int]:
    """Return after which step each start went on, as rank 0 printed it."""
    return [int(step) for step in re.findall(r"^\[rank 0\] begins after step (\d+)", run.out, re.MULTILINE)]


def test_an_example_stays_readable(example: Example) -> None:
    lines = example.path.read_text().splitlines()
    assert len(lines) < 80
    assert sum("ftslurm." in line for line in lines) <= 3


def ended(run: Started) -> list[int]:
    return [int(step) for step in re.findall(r"ends after step (\d+)", run.out)]


def losses(run: Started) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"step (\d+): loss (\S+)", run.out)}


def until_saved(run: Started, example: Example) -> None:
    run.until(lambda: any(run.directory.glob(example.first)), LIMIT_S)


def wait(run: Started) -> int:
    """Wait for the end; excuse a rank that ended with an abort of torch's own, which plain Python shows, too."""
    code = run.wait(LIMIT_S)
    excuse_torch(run.out + run.err)
    return code


def excuse_torch(output: str) -> None:
    if "terminate called without an active exception" in output or "SIGABRT" in output:
        pytest.xfail("torch aborted when a rank that was done ended its process")


def test_after_a_killed_rank_it_goes_on_from_its_checkpoint_to_the_last_step(start: StartOf, example: Example) -> None:
    steps = 300
    run = start(example.path, *example.arguments(steps))
    run.until(lambda: begun(run) == [0], LIMIT_S)
    victim = rank(run, 1)
    until_saved(run, example)
    os.kill(victim, signal.SIGKILL)
    assert wait(run) == 0, run.out + run.err
    assert len(begun(run)) == 2
    resumed = begun(run)[1]
    assert resumed > 0
    assert resumed % example.save_every == 0
    assert ended(run) == [steps]
    output = " ".join(run.out.split())
    assert "succeeded after 1 recovered failure: 2 rounds, 2 nodes, 2 ranks" in output
    assert re.search(r"round 1: rank 1 on local\d: .*SIGKILL", output)


@pytest.mark.parametrize("example", [one for one in EXAMPLES if one.repeatable], ids=lambda one: one.name)
def test_a_resumed_run_computes_what_an_uninterrupted_one_does(
    start: StartOf, example: Example, tmp_path: Path
) -> None:
    need(example.needs, example.compiles)
    whole = start(example.path, *example.arguments(40))
    assert wait(whole) == 0, whole.err
    expected = losses(whole)
    (tmp_path / "saved").rename(tmp_path / "whole")
    for steps in (20, 40):
        part = start(example.path, *example.arguments(steps))
        assert wait(part) == 0, part.err
    assert begun(part) == [20]
    assert losses(part) == {40: expected[40]}


def test_asked_to_stop_it_saves_and_the_next_start_goes_on_there(start: StartOf, example: Example) -> None:
    run = start(example.path, *example.arguments(1_000_000))
    until_saved(run, example)
    run.process.send_signal(signal.SIGTERM)
    assert wait(run) == 75, run.out + run.err
    assert "no rank is to blame" in run.out
    assert "was interrupted: SIGTERM from outside; all 2 ranks left at step" in " ".join(run.out.split())
    [last] = ended(run)
    again = start(example.path, *example.arguments(last + 5))
    assert wait(again) == 0, again.out + again.err
    assert begun(again) == [last]
    assert ended(again) == [last + 5]


# What frameworks do themselves at SIGTERM, in programs that know nothing of ftslurm

LIGHTNING = """
import os, lightning, torch
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        open(f"up{os.environ['RANK']}", "w").close()
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = lightning.Trainer(num_nodes=2, devices=1, accelerator="cpu", strategy="ddp", max_epochs=-1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(4096, 4)), batch_size=8))
"""
JIT = """
import os, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

class Up(TrainerCallback):
    def on_step_end(self, *_, **__):
        open(f"up{os.environ['RANK']}", "w").close()

tokens = torch.arange(16).repeat(256, 1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(output_dir="saved", max_steps=1000000, save_strategy="no", report_to="none", use_cpu=True,
                              enable_jit_checkpoint=True, disable_tqdm=True)
Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in tokens], callbacks=[Up()]).train()
"""

# With the usual two groups of parameters. ZeRO steps torch's optimizer once for each of them.
DEEPSPEED = """
import os, sys, deepspeed, torch
from torch import nn
stage, steps = map(int, sys.argv[1:])
deepspeed.init_distributed()
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
groups = [{"params": [one for one in model.parameters() if one.ndim > 1]},
          {"params": [one for one in model.parameters() if one.ndim == 1], "weight_decay": 0.0}]
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups), config={
    "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": stage}})
if os.path.exists("saved/latest"):
    engine.load_checkpoint("saved")
begun = engine.global_steps
while engine.global_steps < steps:
    engine.backward(engine(torch.randn(8, 16)).square().mean())
    engine.step()
    if engine.global_steps == 40:
        engine.save_checkpoint("saved")
        open(f"up{os.environ['RANK']}", "w").close()
    if engine.global_steps == 50 and steps == 60 and begun == 0 and os.environ["RANK"] == "1":
        raise ValueError("once")
torch.distributed.barrier()
os._exit(0)
"""


def stopped_by_itself(start: StartOf, tmp_path: Path, script: str, *arguments: str, nodes: int = 2) -> None:
    (tmp_path / "train.py").write_text(script.replace("num_nodes=2", f"num_nodes={nodes}"))
    run = start(tmp_path / "train.py", *arguments, options=("--grace", "60", "--local-nodes", str(nodes)))
    run.until(lambda: all((tmp_path / f"up{number}").exists() for number in range(nodes)), LIMIT_S)
    run.process.send_signal(signal.SIGTERM)
    assert wait(run) == 143, run.out + run.err
    output = " ".join(run.out.split())
    assert "was stopped: SIGTERM from outside" in output
    assert "no rank is to blame" in output
    assert "kill" not in run.err


def test_a_trainer_of_lightning_that_ends_itself_at_sigterm_is_no_failure(start: StartOf, tmp_path: Path) -> None:
    need("lightning")
    stopped_by_itself(start, tmp_path, LIGHTNING)


def test_a_checkpoint_that_transformers_writes_at_sigterm_is_whole(start: StartOf, tmp_path: Path) -> None:
    need("transformers")
    stopped_by_itself(start, tmp_path, JIT, nodes=1)
    [checkpoint] = (tmp_path / "saved").glob("checkpoint-*")
    assert (checkpoint / "trainer_state.json").exists()
    assert not (checkpoint / "checkpoint-is-incomplete.txt").exists()


def test_ranks_of_transformers_that_save_at_different_steps_at_sigterm_are_not_blamed(
    start: StartOf, tmp_path: Path
) -> None:
    need("transformers")
    stopped_by_itself(start, tmp_path, JIT)


def test_ranks_of_deepspeed_that_end_at_sigterm_are_not_blamed(start: StartOf, tmp_path: Path) -> None:
    need("deepspeed", compiles=True)
    stopped_by_itself(start, tmp_path, DEEPSPEED, "1", "1000000")


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_an_unmodified_program_of_deepspeed_has_a_step_for_each_one_of_its_engine(
    start: StartOf, tmp_path: Path, stage: str
) -> None:
    need("deepspeed", compiles=True)
    (tmp_path / "train.py").write_text(DEEPSPEED)
    run = start(tmp_path / "train.py", stage, "60")
    assert wait(run) == 0, run.err
    first, second = json.loads((run.run_dir / "report.json").read_text())["rounds"]
    assert first["optimizer_steps"] == {"first": 1, "last": 50}
    assert second["optimizer_steps"] == {"first": 41, "last": 60}
    assert first["cost"]["steps_repeated"] == 9

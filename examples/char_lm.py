"""Trains a small character-level language model on Python's own sources, with DDP and checkpoints.

A plain torchrun-style script. It runs unmodified under ``torchrun``, under ``ftslurm run`` and in any
processes that have RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set:

    ftslurm run --local-nodes 2 --nproc-per-node 2 examples/char_lm.py --checkpoint-dir /tmp/char_lm

The text is the standard library of the running Python, so nothing is downloaded. Stopped and started again,
it goes on from its newest readable checkpoint, with the data order that it would have had without the stop.
Asked to stop (preemption, the time limit, Ctrl-C), it saves first, and no step is lost:

    ftslurm rehearse preempt -- examples/char_lm.py --checkpoint-dir /tmp/rehearsal --steps 100000
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sysconfig
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from ftslurm import progress, section, should_stop
except ImportError:  # ftslurm is a help here, not a requirement

    def progress(step: int) -> None:
        """Do nothing: without ftslurm no report needs the progress of a rank."""

    def should_stop(step: int) -> bool:
        """Go on: without ftslurm no stop is announced."""
        return False

    def section(name: str) -> contextlib.AbstractContextManager[Any]:
        """Do nothing: without ftslurm no time-out watches a section."""
        return contextlib.nullcontext()


CONTEXT = 64  # characters that the model sees at once
MAX_TEXT_BYTES = 3_000_000
VOCABULARY = 128  # ASCII, the same on every node, whatever its Python's sources hold
CHECKPOINTS_KEPT = 3
CHECKPOINT_NAME = re.compile(r"step-(\d{8})\.pt")


class CharModel(nn.Module):
    """One GRU layer between an embedding and a linear read-out: about 80,000 parameters."""

    def __init__(self, embedding: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.read_out = nn.Linear(hidden, VOCABULARY)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, time, VOCABULARY) for what follows each of ``characters`` (batch, time)."""
        states, _ = self.gru(self.embed(characters))
        logits: torch.Tensor = self.read_out(states)
        return logits


def read_text() -> torch.Tensor:
    """Return the standard library's top-level sources, in the order of their names, as ASCII codes."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= MAX_TEXT_BYTES:
            break
    codes = torch.frombuffer(text[:MAX_TEXT_BYTES], dtype=torch.uint8).long()
    return codes.where(codes < VOCABULARY, ord("?"))


def batch_at(text: torch.Tensor, step: int, args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's inputs and targets of ``step``: a function of the seed and the step, nothing else.

    All ranks draw the positions of the whole global batch and take their own share, so a resumed run sees
    what an uninterrupted one would have seen.
    """
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    positions = torch.randint(len(text) - CONTEXT - 1, (dist.get_world_size(), args.batch_size), generator=generator)
    windows = positions[dist.get_rank()].unsqueeze(1) + torch.arange(CONTEXT + 1)
    characters = text[windows]
    return characters[:, :-1], characters[:, 1:]


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return where the checkpoint of ``step`` is."""
    return directory / f"step-{step:08d}.pt"


def save_checkpoint(directory: Path, step: int, state: dict[str, Any]) -> None:
    """Publish ``state`` as the checkpoint of ``step``: whole or not at all, also when the power goes."""
    path = checkpoint_path(directory, step)
    temporary = path.with_suffix(".pt.tmp")
    with temporary.open("wb") as file:
        torch.save({"step": step, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    older = [other for other in checkpoints(directory) if other.name < path.name]
    for old in older[CHECKPOINTS_KEPT - 1 :]:
        old.unlink(missing_ok=True)


def checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints in ``directory``, newest first."""
    return sorted((p for p in directory.iterdir() if CHECKPOINT_NAME.fullmatch(p.name)), reverse=True)


def newest_readable(directory: Path) -> int:
    """Return the step of the newest checkpoint that can be read, or 0; others are named and passed over."""
    for path in checkpoints(directory):
        try:
            return int(torch.load(path, map_location="cpu", weights_only=True)["step"])
        except Exception as error:  # torch.load raises half a dozen types for a torn file
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            print(f"skipping the checkpoint {path}, which cannot be read: {reason}", flush=True)
    return 0


def resume(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Bring all ranks to the newest checkpoint and return the number of steps already done.

    Rank 0 chooses for all: what a directory seems to hold can differ between nodes for a while, and no two
    ranks may start from different steps.
    """
    step = torch.zeros(1, dtype=torch.int64, device=device)
    if dist.get_rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        step += newest_readable(directory)
    dist.broadcast(step, src=0)
    done = int(step.item())
    if done:
        path = checkpoint_path(directory, done)
        state = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        say(f"resumed from {path}")
    return done


def fail_if_asked(step: int, args: argparse.Namespace) -> None:
    """Raise on the rank and at the step asked for, before the first restart only, so that a restart helps."""
    first_round = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first_round and (dist.get_rank(), step) == (args.fail_rank, args.fail_at_step):
        raise RuntimeError(f"rank {args.fail_rank} was asked to fail at step {step} (--fail-rank, --fail-at-step)")


def say(line: str) -> None:
    """Print a line, once for the whole job."""
    if dist.get_rank() == 0:
        print(line, flush=True)


class Meter:
    """Says every ``--report-every`` steps how training goes: rank 0's mean loss, and all ranks' speed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.losses: list[float] = []
        self.since = time.monotonic()

    def add(self, step: int, loss: float) -> None:
        """Take in one step's loss."""
        self.losses.append(loss)
        if step % self.args.report_every and step != self.args.steps:
            return
        characters = len(self.losses) * dist.get_world_size() * self.args.batch_size * CONTEXT
        speed = characters / (time.monotonic() - self.since)
        mean = sum(self.losses) / len(self.losses)
        say(f"step {step:4d}/{self.args.steps}  loss {mean:.3f}  {speed:,.0f} characters/s")
        self.losses, self.since = [], time.monotonic()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train from the newest checkpoint to step ``args.steps``, leaving checkpoints on the way."""
    torch.manual_seed(args.seed)
    text = read_text()
    model = CharModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    done = resume(args.checkpoint_dir, model, optimizer, device)
    parallel = DistributedDataParallel(model)
    say(
        f"{dist.get_world_size()} ranks on {device.type}, {len(text):,} characters of text, "
        f"{sum(p.numel() for p in model.parameters()):,} parameters, steps {done + 1} to {args.steps}"
    )
    meter = Meter(args)

    def save(step: int) -> None:
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            with section("checkpoint"):
                save_checkpoint(args.checkpoint_dir, step, state)

    for step in range(done + 1, args.steps + 1):
        progress(step)
        if should_stop(step):  # on all ranks at the same step
            save(step - 1)
            say(f"asked to stop: saved the {step - 1} steps done; start it again to go on")
            return
        fail_if_asked(step, args)
        inputs, targets = (part.to(device) for part in batch_at(text, step, args))
        logits = parallel(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.add(step, loss.item())
        if step % args.checkpoint_every == 0 or step == args.steps:
            save(step)
    say(f"trained to step {max(done, args.steps)}; the checkpoints are in {args.checkpoint_dir}")


def choose_device(wanted: str) -> torch.device:
    """Return this rank's own GPU if every rank of this node can have one, else the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks
    if wanted == "cpu" or not enough:
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def parse_arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Train a small character-level language model.")
    add = parser.add_argument
    add("--steps", type=int, default=200, help="train to this step (default 200)")
    add("--batch-size", type=int, default=16, help="sequences per rank and step (default 16)")
    add("--learning-rate", type=float, default=8e-3, help="of AdamW (default 0.008)")
    add(
        "--checkpoint-dir",
        type=Path,
        default=Path("char_lm-checkpoints"),
        metavar="DIR",
        help="checkpoints go and are resumed here; all nodes must see it (default ./char_lm-checkpoints)",
    )
    add("--checkpoint-every", type=int, default=25, help="steps between checkpoints (default 25)")
    add("--report-every", type=int, default=10, help="steps between progress lines (default 10)")
    add("--seed", type=int, default=1, help="of the parameters and the data order (default 1)")
    add(
        "--device",
        choices=("auto", "cpu"),
        default="auto",
        help="auto: a GPU for each rank where there are enough, else the CPU (default auto)",
    )
    add("--fail-rank", type=int, metavar="RANK", help="this rank raises an error, before any restart")
    add("--fail-at-step", type=int, metavar="STEP", help="at this step")
    args = parser.parse_args()
    if (args.fail_rank is None) != (args.fail_at_step is None):
        parser.error("--fail-rank and --fail-at-step belong together")
    for name in ("steps", "batch_size", "checkpoint_every", "report_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return args


def main() -> None:
    """Join the other ranks, train, and leave in good order."""
    args = parse_arguments()
    torch.set_num_threads(1)  # the ranks share the machine's cores
    device = choose_device(args.device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(minutes=5))
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""DeepSpeed (ZeRO): resumes from its newest whole checkpoint, and stops at a common step on request.

ftslurm run --local-nodes 2 --nproc-per-node 1 examples/deepspeed_zero.py --checkpoints /tmp/zero        # or ftsrun
"""

import argparse
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import ftslurm

CONFIG = {"train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": 1}}


def batch_at(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's examples of a step, which depend on step and rank alone: a resumed run sees the same data."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    inputs = torch.randn(32, 16, generator=generator)
    return inputs.to(device), inputs.sum(1, keepdim=True).sin().to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, default=Path("zero"), help="directory that all nodes must see")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    args = parser.parse_args()

    deepspeed.init_distributed()
    is_first = dist.get_rank() == 0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    # torch's optimizer: DeepSpeed compiles its own ones.
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=CONFIG)
    # Not DeepSpeed's own file `latest`: rank 0 writes it while other ranks may still write their part.
    newest = max((path.parent.name for path in args.checkpoints.glob("step-*/whole")), default=None)
    if newest is not None:
        engine.load_checkpoint(args.checkpoints, newest)
    done = engine.global_steps
    if is_first:
        print(f"begins after step {done}", flush=True)

    for step in range(done + 1, args.steps + 1):
        inputs, targets = batch_at(step, engine.device)
        loss = nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        stops = ftslurm.should_stop(step)  # on all ranks at the same step
        if stops or step % args.save_every == 0 or step == args.steps:
            tag = f"step-{step:08d}"
            engine.save_checkpoint(args.checkpoints, tag, save_latest=False)  # returns when all ranks have saved
            if is_first:
                (args.checkpoints / tag / "whole").touch()
                print(f"step {step}: loss {loss.item():.6f}", flush=True)
        done = step
        if stops:
            break
    if is_first:
        print(f"ends after step {done}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Data-parallel training (DDP) that goes on where it was after a failure, a preemption or a stop before the time limit.

ftslurm run --local-nodes 2 --nproc-per-node 1 examples/ddp.py --checkpoint /tmp/ddp.pt
ftsrun examples/ddp.py --checkpoint /shared/ddp.pt        # in a batch script; torchrun takes it, too
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftslurm


def batch_at(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's examples of a step, which depend on step and rank alone: a resumed run sees the same data."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    inputs = torch.randn(32, 16, generator=generator)
    return inputs.to(device), inputs.sum(1, keepdim=True).sin().to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=Path("ddp.pt"), help="all nodes must see it")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=100)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    is_first = dist.get_rank() == 0

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    done = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    if is_first:
        print(f"begins after step {done}", flush=True)
    parallel = DistributedDataParallel(model)

    def save(step: int) -> None:
        if is_first:
            # Replaced as a whole, and only while no newer round of this job exists.
            with ftslurm.commit(args.checkpoint) as temporary:
                torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)

    for step in range(done + 1, args.steps + 1):
        if ftslurm.should_stop(step):  # on all ranks at the same step
            save(done)
            break
        inputs, targets = batch_at(step, device)
        loss = nn.functional.mse_loss(parallel(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = step
        if step % args.save_every == 0 or step == args.steps:
            save(step)
            if is_first:
                print(f"step {step}: loss {loss.item():.6f}", flush=True)
    if is_first:
        print(f"ends after step {done}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

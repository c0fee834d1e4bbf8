"""Sharded training (FSDP2) with sharded checkpoints (torch.distributed.checkpoint), resumed on any number of ranks.

ftslurm run --local-nodes 2 --nproc-per-node 1 examples/fsdp2.py --checkpoints /tmp/fsdp2        # needs numpy
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import ftslurm


def batch_at(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's examples of a step, which depend on step and rank alone: a resumed run sees the same data."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    inputs = torch.randn(32, 16, generator=generator)
    return inputs.to(device), inputs.sum(1, keepdim=True).sin().to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, default=Path("fsdp2"), help="directory that all nodes must see")
    parser.add_argument("--steps", type=int, default=1000)
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
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    # Rank 0 writes .metadata when all ranks have written their part: without it a checkpoint is incomplete.
    newest = max((path.parent for path in args.checkpoints.glob("step-*/.metadata")), default=None)
    done = 0
    if newest is not None:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
        done = int(newest.name.removeprefix("step-"))
    if is_first:
        print(f"begins after step {done}", flush=True)

    for step in range(done + 1, args.steps + 1):
        inputs, targets = batch_at(step, device)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stops = ftslurm.should_stop(step)  # on all ranks at the same step
        if stops or step % args.save_every == 0 or step == args.steps:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state}
            dcp.save(state, checkpoint_id=args.checkpoints / f"step-{step:08d}")
            if is_first:
                print(f"step {step}: loss {loss.item():.6f}", flush=True)
        done = step
        if stops:
            break
    if is_first:
        print(f"ends after step {done}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A training loop with accelerate: resumes from its newest whole checkpoint, and stops at a common step on request.

ftslurm run --local-nodes 2 --nproc-per-node 1 examples/accelerate_loop.py --checkpoints /tmp/accelerate
"""

import argparse
from itertools import count
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftslurm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checkpoints", type=Path, default=Path("accelerate"), help="directory that all nodes must see"
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=50)
    args = parser.parse_args()

    # Without `cpu`, ranks without a GPU train on their own, each one alone.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    inputs = torch.randn(4096, 16)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).sin()), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)

    # The file `whole` is written when all ranks have written their part.
    newest = max((path.parent for path in args.checkpoints.glob("step-*/whole")), default=None)
    done = saved = 0
    if newest is not None:
        accelerator.load_state(newest)
        done = saved = int(newest.name.removeprefix("step-"))
    accelerator.print(f"begins after step {done}", flush=True)

    def save(step: int) -> None:
        nonlocal saved
        if step > saved:
            directory = args.checkpoints / f"step-{step:08d}"
            accelerator.save_state(directory)
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (directory / "whole").touch()
            saved = step

    step = done
    for epoch in count(done // len(data)):
        data.set_epoch(epoch)
        skipped = done % len(data) if epoch == done // len(data) else 0
        for batch, targets in accelerator.skip_first_batches(data, skipped):
            step += 1
            stops = step > args.steps or ftslurm.should_stop(step)  # on all ranks at the same step
            if stops or (step - 1) % args.save_every == 0:
                save(step - 1)
            if stops:
                accelerator.print(f"ends after step {step - 1}", flush=True)
                accelerator.end_training()
                return
            loss = nn.functional.mse_loss(model(batch), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()


if __name__ == "__main__":
    main()

"""Lightning's Trainer: resumes from last.ckpt, and stops at a common step on request.

    ftslurm run --local-nodes 2 --nproc-per-node 1 examples/lightning_trainer.py --checkpoints /tmp/lightning

Lightning sees the variables of torchrun, and neither starts ranks nor asks Slurm.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftslurm


class Regression(lightning.LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class StopInTime(Callback):
    """Saves and ends the training when the job is about to end."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        module.print(f"begins after step {trainer.global_step}", flush=True)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if ftslurm.should_stop(trainer.global_step):  # on all ranks at the same step
            trainer.save_checkpoint(self.checkpoint)
            trainer.should_stop = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, default=Path("lightning"), help="directory that all nodes must see")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--save-every", type=int, default=20)
    args = parser.parse_args()

    lightning.seed_everything(0)
    inputs = torch.randn(4096, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    last = args.checkpoints / "last.ckpt"
    saves = ModelCheckpoint(args.checkpoints, "last", every_n_train_steps=args.save_every, enable_version_counter=False)
    trainer = lightning.Trainer(
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=args.steps,
        callbacks=[saves, StopInTime(last)],
        logger=False,
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=32, shuffle=True), ckpt_path=last if last.exists() else None)
    if trainer.is_global_zero:
        print(f"ends after step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()

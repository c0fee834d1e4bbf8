"""Hugging Face's Trainer: resumes from its newest whole checkpoint, and stops at a common step on request.

ftslurm run --local-nodes 2 --nproc-per-node 1 examples/hf_trainer.py --checkpoints /tmp/hf
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import ftslurm


class StopInTime(TrainerCallback):
    """Has the Trainer save and end when the job is about to end."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.is_world_process_zero:
            print(f"begins after step {state.global_step}", flush=True)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if ftslurm.should_stop(state.global_step):  # on all ranks at the same step
            control.should_save = control.should_training_stop = True


def newest(directory: Path) -> Path | None:
    """Return the newest whole checkpoint: trainer_state.json is written last."""
    whole = [path.parent for path in directory.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, default=Path("hf"), help="directory that all nodes must see")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    tokens = (torch.arange(16) + torch.arange(1024).unsqueeze(1)) % 64
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(args.checkpoints),
            max_steps=args.steps,
            save_steps=args.save_every,
            save_total_limit=3,
            report_to="none",
            use_cpu=not torch.cuda.is_available(),  # else ranks without a GPU train on their own, each one alone
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[StopInTime()],
    )
    trainer.train(resume_from_checkpoint=newest(args.checkpoints))
    if trainer.is_world_process_zero():
        print(f"ends after step {trainer.state.global_step}", flush=True)


if __name__ == "__main__":
    main()

"""Loads a checkpoint that cannot be used; argv[1] says why."""

import sys
from pathlib import Path

from ranks import train


class Config:
    """An object that torch.load refuses."""


def harm() -> None:
    import torch

    path, how = Path("last.pt"), sys.argv[1]
    model = torch.nn.Linear(4, 4)
    torch.save(Config() if how == "object" else torch.nn.Linear(8, 8).state_dict(), path)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    if how == "empty":
        path.write_bytes(b"")
    model.load_state_dict(torch.load(path))  # here


train(harm)

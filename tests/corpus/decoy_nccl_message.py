"""An exception whose text mentions NCCL, a time-out and a peer, raised by the script."""

from ranks import train

TEXT = "option backend: expected gloo or nccl, not 'NCCL error: connection reset by peer, timed out'"


def step() -> None:
    raise ValueError(TEXT)  # here


train(step)

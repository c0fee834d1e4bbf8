"""An exception whose text mentions NCCL, a time-out and a peer, raised by the script."""

from ranks import train


def step() -> None:
    raise ValueError(
        "option backend: expected gloo or nccl, not 'NCCL error: connection reset by peer, timed out'"
    )  # here


train(step)

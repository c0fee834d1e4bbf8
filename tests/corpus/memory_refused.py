"""An allocation that no host can grant."""

from ranks import train


def allocate() -> None:
    bytearray(1 << 46)  # here


train(allocate)

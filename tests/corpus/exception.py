"""An exception in a training step."""

from ranks import train


def step() -> None:
    raise ValueError("row 4711 has no label")  # here


train(step)

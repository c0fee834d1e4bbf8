"""A key that is called nan."""

from ranks import train


def step() -> None:
    {"a": 1}["nan"]  # here


train(step)

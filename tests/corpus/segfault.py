"""Native code reads address 0."""

import ctypes

from ranks import train


def step() -> None:
    ctypes.string_at(0)  # here


train(step)

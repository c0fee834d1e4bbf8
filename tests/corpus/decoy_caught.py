"""Prints the traceback of an error that it has dealt with, then fails for another reason."""

import traceback

from ranks import train


def step() -> None:
    try:
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    except MemoryError:
        traceback.print_exc()
    raise ValueError("row 4711 has no label")  # here


train(step)

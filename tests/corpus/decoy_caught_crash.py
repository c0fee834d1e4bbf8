"""Prints the traceback of an error that it has dealt with, then crashes."""

import ctypes
import traceback

from ranks import train


def step() -> None:
    try:
        open("/nothing/here")
    except OSError:
        traceback.print_exc()
    ctypes.string_at(0)  # here


train(step)

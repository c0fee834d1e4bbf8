"""A library that is not there, or that destroys the heap; argv[1] says which."""

import ctypes
import sys

from ranks import train


def harm() -> None:
    if sys.argv[1:] == ["heap"]:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(ctypes.addressof(ctypes.create_string_buffer(4096)) + 8)
    ctypes.CDLL("no_such_library.so.3")  # here


train(harm)

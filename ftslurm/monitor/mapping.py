"""A file of a rank mapped into its memory: eight-byte words that the agent reads, or writes, at any time."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Words(Protocol):
        """A page as signed integers of eight bytes: aligned, so that a reader never gets a half-written one."""

        def __getitem__(self, at: int, /) -> int: ...

        def __setitem__(self, at: int, value: int, /) -> None: ...


_PROT_READ_WRITE, _MAP_SHARED = 3, 1


def map_shared(fd: int, size: int, path: str) -> Any:
    """Map a file for reading and writing; return its memory, a writable buffer.

    Not the mmap module: before 3.13 it keeps a descriptor, and closes that number at exit. This keeps none, so that
    scripts which close all of theirs harm nothing.

    Raises:
        OSError: it cannot be mapped.
        ImportError: this Python has no ctypes.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, size, _PROT_READ_WRITE, _MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    memory: Any = (ctypes.c_char * size).from_address(address)
    return memory

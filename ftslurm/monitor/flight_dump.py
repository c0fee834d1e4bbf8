"""The record of collectives that a rank, or torch itself, has left in the rank's record directory before its end.

A rank that an exception ends leaves a JSON document (`ftslurm.monitor.flight_server.leave`). Torch writes a pickle when
a collective of NCCL's times out, before it aborts the process (TORCH_NCCL_DUMP_ON_TIMEOUT). A pickle may call anything
when it is read: here it may hold nothing but numbers, texts, lists and dictionaries.
"""

from __future__ import annotations

import io
import os
import stat

from ftslurm.dataclasses import dataclass
from ftslurm.monitor import flight
from ftslurm.monitor.flight_server import DUMP, TORCH_DUMP
from ftslurm.records.codec import BadFile
from ftslurm.records.flight import Trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LIMIT = 8 * 1024 * 1024
"""Bytes of a file that is read."""


@dataclass(frozen=True)
class Left:
    """What was left: a file's content, and whether torch wrote it (a pickle) or the rank (JSON)."""

    data: bytes
    by_torch: bool
    written_ns: int


def find(directory: str, rank: int) -> Left | None:
    """Return what the rank of that record directory has left; None: nothing that can be read."""
    for name, by_torch in ((DUMP, False), (f"{TORCH_DUMP}{rank}", True)):
        try:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and 0 < status.st_size <= LIMIT:
                return Left(file.read(LIMIT), by_torch, status.st_mtime_ns)
    return None


def aborted_by_torch(directory: str, rank: int) -> bool:
    """Return whether torch has written its record before it aborted that rank: a collective timed out."""
    return os.path.lexists(os.path.join(directory, f"{TORCH_DUMP}{rank}"))


def read(left: Left, where: str) -> Trace:
    """Return the reduced content; `BadFile`: it is of another form."""
    return flight.reduce(loads(left.data, where), where) if left.by_torch else flight.read(left.data, where)


def loads(data: bytes, where: str) -> object:
    """Return the plain values in a pickle.

    Raises:
        BadFile: it is damaged, or asks for anything but plain values.
    """
    import pickle

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> NoReturn:
            raise pickle.UnpicklingError(f"asks for {module}.{name}")

    try:
        return Plain(io.BytesIO(data)).load()
    except Exception as error:
        raise BadFile(f"{where}: no plain pickle ({type(error).__name__}: {error})") from None

"""Classification of a stack: waiting for other ranks or not, in which library, at which line of user code (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.faulthandler_text import Frame, Thread

WAITS, MAY_WAIT, WORKS = "waits", "may-wait", "works"
BUILD_LOCK = "wait for the lock of an extension's build"

_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen|/ftslurm/(worker|boot|monitor)\b|/torchinductor_|^\?\?\?$"
)


class _Row(NamedTuple):
    """One thing that a frame tells; without a name, the function's is taken."""

    kind: str
    file: re.Pattern[str]
    function: re.Pattern[str]
    name: str


def _rows(*rows: tuple[str, str, str, str]) -> tuple[_Row, ...]:
    return tuple(_Row(kind, re.compile(file), re.compile(function), name) for kind, file, function, name in rows)


# What frames of libraries below the user's innermost frame tell; the first match from the inside out counts.
_BELOW = _rows(
    # All other ranks must arrive: a rank that is elsewhere is the cause.
    (WAITS, r"/torch/distributed/(distributed_c10d|_functional_collectives|rendezvous)\.py$", r"[a-z]\w*", ""),
    (WAITS, r"/torch/distributed/elastic/utils/store\.py$", r"barrier|synchronize|get_all", "store barrier"),
    (WAITS, r"/horovod/.*/mpi_ops\.py$", r"synchronize|wait|\w*(allreduce|allgather|broadcast|alltoall)\w*", ""),
    # The device or native threads must finish, and those may wait for the other ranks.
    (MAY_WAIT, r"/torch/(cuda|accelerator|xpu|npu|hpu)/(__init__|streams)\.py$", r"synchronize|wait\w*", ""),
    (MAY_WAIT, r"/torch/autograd/(graph|__init__)\.py$", r"_engine_run_backward|backward|grad", "backward"),
    (MAY_WAIT, r"/torch/nn/parallel/distributed\.py$", r"_sync\w*|_pre_forward|_verify\w*", "DDP"),
    (MAY_WAIT, r"/torch/distributed/fsdp/", r"\w*(unshard|all_gather|reduce_scatter|wait)\w*", "FSDP"),
    # Another process must finish, which may have been killed, see `ftslurm.agent.build_locks`.
    (MAY_WAIT, r"/torch/utils/file_baton\.py$", r"wait", BUILD_LOCK),
    # Work of this rank alone.
    (
        WORKS,
        r"/torch/_(dynamo/convert_frame|inductor/(compile_fx|codecache|async_compile))\.py$",
        r".*",
        "torch.compile",
    ),
    (WORKS, r"/torch/optim/", r"step\w*|_\w+", "optimizer"),
)
# What a frame tells wherever it stands, own frames below it or not.
_ANYWHERE = _rows(
    (WORKS, r"/torch/utils/data/", r".*", "DataLoader"),
    (WORKS, r"/torch/distributed/checkpoint/", r".*", "checkpoint"),
    (WORKS, r"/torch/serialization\.py$", r"save|load", "torch.save/load"),
)
# What tells only how, not what for: if nothing else does.
_HOW = _rows(
    (WORKS, r"/(socket|ssl)\.py$|/(urllib3?|http|requests|botocore|aiohttp)/", r".*", "network"),
    (WORKS, r"/subprocess\.py$", r".*", "subprocess"),
    (WORKS, r"/multiprocessing/", r"(?!_?bootstrap|run|spawn_main|_main|_launch).*", "multiprocessing"),
    (WORKS, r"/(queue|threading)\.py$|/concurrent/futures/", r"(?!_?bootstrap\w*|run).*", "thread wait"),
)
_THREAD_WAIT = "thread wait"


@dataclass(frozen=True)
class Activity:
    """Classification of a stack.

    Attributes:
        kind: `WAITS` for other ranks, `MAY_WAIT` for them (nobody sees what a device waits for), or `WORKS`.
        activity: "all_reduce", "DataLoader", else the name of the user's innermost function.
        place: the user's own innermost frame, outside of libraries; without one, the innermost; None: no frames.
    """

    kind: str
    activity: str
    place: Frame | None


def classify(frames: Sequence[Frame]) -> Activity:
    """Judge a stack. ``frames``: outermost first."""
    below: list[Frame] = []
    place = frames[-1] if frames else None
    for frame in reversed(frames):
        if not is_library(frame.file):
            place = frame
            break
        below.append(frame)
    # Waiting is only what stands below the user's own code: a model that computes inside of DDP's forward works.
    for rows, looked_at in ((_BELOW, below), (_ANYWHERE, frames[::-1]), (_HOW, below)):
        found = [(row, frame) for frame in looked_at if (row := _row(rows, frame.file, frame.function)) is not None]
        # Of collectives made of others (broadcast_object_list), the one that the user called.
        outermost = [(row, frame) for row, frame in found if row.kind == WAITS][-1:]
        for row, frame in outermost or found[:1]:
            return Activity(row.kind, row.name or frame.function, place)
    return Activity(WORKS, place.function if place is not None else "", place)


@lru_cache(maxsize=65536)
def _row(rows: tuple[_Row, ...], file: str, function: str) -> _Row | None:
    return next((row for row in rows if row.file.search(file) and row.function.fullmatch(function)), None)


@lru_cache(maxsize=65536)
def is_library(file: str) -> bool:
    """Whether a file belongs to Python, an installed package or ftslurm."""
    return _LIBRARY.search(file) is not None


def telling_thread(threads: Sequence[Thread]) -> Thread | None:
    """Return the thread that tells what the process is doing: the main one, unless that waits for another one."""
    main = next((thread for thread in threads if thread.main), None)
    if main is None or classify(main.frames).activity != _THREAD_WAIT:
        return main
    others = [thread for thread in threads if not thread.main]
    judged = [(classify(thread.frames), thread) for thread in others]
    for does, thread in judged:
        if does.kind == WAITS:
            return thread
    for does, thread in judged:
        if does.activity != _THREAD_WAIT and does.place is not None and not is_library(does.place.file):
            return thread
    return main


__all__ = ["MAY_WAIT", "WAITS", "WORKS", "Activity", "classify", "is_library", "telling_thread"]

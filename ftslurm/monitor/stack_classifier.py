"""Classification of a stack: waiting for other ranks or not, in which library, at which line of user code (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.faulthandler_text import Frame, Thread

WAITS, MAY_WAIT, WORKS, ENDS = "waits", "may-wait", "works", "ends"
_THREAD_WAIT = "thread wait"
# Methods in C that return when the device, or all ranks, are done: loss.item(), work.wait(), store.wait(...).
_C_WAIT = re.compile(r"\.(item|cpu|tolist|numpy|synchronize|wait|barrier)$")
_NETWORK = "network"
NO_CALLS: Mapping[tuple[str, int], str] = {}
_MODULE = re.compile(r"^.*/(?:(?:site|dist)-packages|lib(?:64)?/python3[^/]*)/|^<frozen (?=.*>$)|^.*/(?=[^/]+$)")
IMPORT = "an import"
JOINS_CHILD = "join of a child process"
BUILD_LOCK = "wait for the lock of an extension's build"
_RECORDER = "/ftslurm/failures/recorder.py"

_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen|/torchinductor_|^\?\?\?$"
    r"|/ftslurm/(worker|boot|monitor|failures|records|lean_dataclasses|import_hook|fencing|peer)\b"
)


class _Row(NamedTuple):
    """What a frame indicates; without a name, the function's is taken."""

    kind: str
    file: re.Pattern[str]
    function: re.Pattern[str]
    name: str


def _rows(*rows: tuple[str, str, str, str]) -> tuple[_Row, ...]:
    return tuple(_Row(kind, re.compile(file), re.compile(function), name) for kind, file, function, name in rows)


# What frames of libraries below the user's innermost frame indicate; the first match from the inside out counts.
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
_IMPORTS = _rows((WORKS, r"^<frozen importlib\._bootstrap", r"_find_and_load|_gcd_import", IMPORT))
# What a frame indicates wherever it stands, own frames below it or not.
_ANYWHERE = _rows(
    (WORKS, r"^<frozen importlib\._bootstrap", r"_find_and_load|_gcd_import", IMPORT),
    (WORKS, r"/torch/utils/data/", r".*", "DataLoader"),
    (WORKS, r"/torch/distributed/checkpoint/", r".*", "checkpoint"),
    (WORKS, r"/torch/serialization\.py$", r"save|load", "torch.save/load"),
)
# What shows only how it waits, not for what: used if nothing else matches.
_HOW = _rows(
    (WORKS, r"/(socket|ssl)\.py$|/(urllib3?|http|requests|botocore|aiohttp)/", r".*", _NETWORK),
    (WORKS, r"/subprocess\.py$", r".*", ""),
    (WORKS, r"/multiprocessing/", r"(?!_?bootstrap|run|spawn_main|_main|_launch).*", ""),
    (WORKS, r"/(queue|threading)\.py$|/concurrent/futures/", r"(?!_?bootstrap\w*|run).*", _THREAD_WAIT),
)


_JOINS = ("join", "_wait_for_tstate_lock", "_shutdown")
"""Functions of `threading` that wait for the end of a thread."""


@dataclass(frozen=True)
class Activity:
    """Classification of a stack.

    Attributes:
        kind: `WAITS` for other ranks, `MAY_WAIT` for them (what a device waits for cannot be observed), `WORKS`, or
            `ENDS`: the script is over, its process is not.
        activity: "all_reduce", "DataLoader", else what the user's code called ("queue.get"), or its innermost function.
        place: the user's own innermost frame, outside of libraries; without one, the innermost; None: no frames.
        of_thread: it waits for another thread of its own process.
        raised: the type of the exception that ended the script.
    """

    kind: str
    activity: str
    place: Frame | None
    of_thread: bool = False
    raised: str = ""


def classify(frames: Sequence[Frame], calls: Mapping[tuple[str, int], str] = NO_CALLS) -> Activity:
    """Judge a stack.

    Args:
        frames: outermost first.
        calls: the only call in a line of the user's code, by file and line; functions in C have no frame of their own.
    """
    below: list[Frame] = []
    place = frames[-1] if frames else None
    for frame in reversed(frames):
        if not is_library(frame.file):
            place = frame
            break
        below.append(frame)
    if any(_row(_IMPORTS, frame.file, frame.function) is not None for frame in below):
        return Activity(WORKS, IMPORT, place)  # of what the library needs for it
    # Waiting is only what stands below the user's own code: a model that computes inside of DDP's forward works.
    for rows, looked_at in ((_BELOW, below), (_ANYWHERE, frames[::-1]), (_HOW, below)):
        found = [(row, frame) for frame in looked_at if (row := _row(rows, frame.file, frame.function)) is not None]
        # Of collectives made of others (broadcast_object_list), the one that the user called.
        outermost = [(row, frame) for row, frame in found if row.kind == WAITS][-1:]
        for row, frame in outermost or found[:1]:
            name = row.name or frame.function
            # A pool or a process waits by a thread's means, too.
            of_thread = name == _THREAD_WAIT and not any(other.name == "" for other, _ in found)
            return Activity(row.kind, _name(below[-1]) if rows is _HOW and name != _NETWORK else name, place, of_thread)
    if place is None:
        return Activity(WORKS, "", None)
    called = _name(below[-1]) if below and below[-1] is not frames[0] else calls.get((place.file, place.line))
    waits = not below and called is not None and _C_WAIT.search(called) is not None
    return Activity(MAY_WAIT if waits else WORKS, called or place.function, place)


def _name(frame: Frame) -> str:
    """``queue.get``: a function of a library with its module."""
    module = _MODULE.sub("", frame.file).removesuffix(".py").removesuffix("/__init__").strip("/").replace("/", ".")
    return f"{module}.{frame.function}" if module and not frame.function.startswith("<") else frame.function


def user_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames of the user's own code: what differs within libraries is no different path of the script."""
    return tuple(frame for frame in frames if not is_library(frame.file))


@lru_cache(maxsize=65536)
def _row(rows: tuple[_Row, ...], file: str, function: str) -> _Row | None:
    return next((row for row in rows if row.file.search(file) and row.function.fullmatch(function)), None)


@lru_cache(maxsize=65536)
def is_library(file: str) -> bool:
    """Whether a file belongs to Python, an installed package or ftslurm."""
    return _LIBRARY.search(file) is not None


def telling_thread(threads: Sequence[Thread], calls: Mapping[tuple[str, int], str] = NO_CALLS) -> Thread | None:
    """Return the thread that shows what the process is doing: the main one, unless that waits for another one.

    Only a join shows for which one it waits: else a thread that sleeps, as one that watches the program, is not it.

    Args:
        threads: of the process.
        calls: see `classify`.
    """
    main = next((thread for thread in threads if thread.main), None)
    if main is None or not classify(main.frames).of_thread:
        return main
    others = [thread for thread in threads if not thread.main]
    judged = [(classify(thread.frames, calls), thread) for thread in others]
    if not any(frame.function in _JOINS for frame in main.frames):
        judged = [(does, thread) for does, thread in judged if does.activity != "time.sleep"]
    for does, thread in judged:
        if does.kind == WAITS:
            return thread
    for does, thread in judged:
        if not does.of_thread and does.place is not None and not is_library(does.place.file):
            return thread
    return main


def ending(threads: Sequence[Thread]) -> Activity | None:
    """Return the activity of a process whose script is over; None: it is not, or that is unknown.

    Then ftslurm records the exception that ended it, or the main thread has left the script: for `threading._shutdown`,
    where `place` is in a thread that it waits for, for what runs at exit, or for code without frames of Python.
    """
    main = next((thread for thread in threads if thread.main), None)
    if main is None or main.cut:
        return None
    if any(frame.file.endswith(_RECORDER) and frame.function == "exception" for frame in main.frames):
        return Activity(ENDS, "", None, raised="an exception")
    if main.begun or (main.frames and not _is_called_at_exit(main.frames[0])):
        return None
    waits = bool(main.frames) and main.frames[0].function == "_shutdown"
    if any(
        frame.function == "_exit_function" and frame.file.endswith("/multiprocessing/util.py") for frame in main.frames
    ):
        return Activity(ENDS, JOINS_CHILD, None)
    places = [classify(thread.frames).place for thread in threads if not thread.main] if waits else []
    return Activity(ENDS, "", next((one for one in places if one is not None and not is_library(one.file)), None))


def _is_called_at_exit(outermost: Frame) -> bool:
    """Whether Python's own end has called it: a script has the frame of a module, a thread that of its start."""
    function = outermost.function
    return is_library(outermost.file) and function != "<module>" and not function.startswith("_bootstrap")

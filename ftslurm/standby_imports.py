"""The imports of a standby worker: which modules, how much CPU time they may take, and what makes one unusable.

A standby worker has none of its rank's variables, and the GPUs belong to the ranks that train beside it. A module that
reads such a variable or opens a GPU when it is imported is found by that, and named; what reads variables in C, or
starts services, is in `NOT_AHEAD`.

Imports only what is built in: what is in ``sys.modules`` here is there for the user's program, too.
"""

from __future__ import annotations

import os
import sys
import time

from ftslurm.round_variables import is_of_the_round

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

NOT_AHEAD = frozenset(
    (
        # They start MPI, a runtime of their own or a service when they are imported, or open the GPUs.
        *("mpi4py", "horovod", "deepspeed", "jax", "jaxlib", "tensorflow", "cupy", "cudf", "rmm", "pycuda"),
        *("torch_xla", "habana_frameworks", "intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"),
        *("bitsandbytes", "transformer_engine", "vllm", "ray", "nvshmem", "amdsmi", "pyrsmi", "numba"),
        # They read the rank when they are imported, some of them in C.
        *("lightning", "lightning_fabric", "pytorch_lightning", "lightning_utilities", "composer", "colossalai"),
        # It knows its agent by variables of the round.
        "ftslurm",
    )
)
"""Top-level modules that `auto` never imports ahead; so is what imports one of them."""
PRIVATE_LIMIT = 512 << 20
"""Bytes of memory of its own with which a standby worker imports no more."""
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/infiniband/")


def read_list(path: str) -> tuple[list[str], dict[str, str]]:
    """Return the modules and `changed_variables` that a rank has listed, see `ftslurm.monitor.imports`."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        modules, _, variables = file.read().partition("\n\n")
    pairs = (line.rpartition("=") for line in variables.splitlines())
    return modules.split(), {name: value for name, _, value in pairs}


def import_ahead(modules: Iterable[str], share: float, report: Callable[[str, BaseException], None]) -> str | None:
    """Import the modules; those that cannot be imported are reported and left out.

    Args:
        modules: their names, dots allowed.
        share: of one CPU's time that the imports may take, at most 1.
        report: gets a module and what it raised.

    Returns:
        Why this process cannot become a worker: the module, a space, what it does; None: it can.
    """
    brake = _Brake(share)
    reads = _watch_environment()
    before = _devices()
    if share < 1:
        sys.meta_path.insert(0, brake)
    try:
        for name in modules:
            if name in sys.modules:
                continue
            try:
                __import__(name)
            except BaseException as error:  # A module may end its program, too.
                report(name, error)
            if reads:
                return f"{name} reads {reads[0]} when it is imported"
            if opened := _devices() - before:
                return f"{name} opens {min(opened)} when it is imported"
            if _private_bytes() > PRIVATE_LIMIT:
                break
    finally:
        os.environ.__class__ = _PLAIN
        sys.meta_path = [entry for entry in sys.meta_path if entry is not brake]
    return None


class _Brake:
    """An entry of `sys.meta_path` that finds nothing, and sleeps so long that the imports have only their share.

    Not by nice or SCHED_IDLE: without a privilege no process leaves these again (sched(7)), and it is to be a worker.
    """

    def __init__(self, share: float) -> None:
        self._pause = 1 / share - 1
        self._used_s = time.thread_time()

    def find_spec(self, _name: str, _path: object = None, _target: object = None) -> None:
        time.sleep((time.thread_time() - self._used_s) * self._pause)
        self._used_s = time.thread_time()


_PLAIN: Any = type(os.environ)


def _watch_environment() -> list[str]:
    """Return a list that gets the round's variables that are asked for from now on, and are not there yet.

    Those that are there (the run's directory) are the same for the rank. A walk over the whole environment is no sign:
    it is mostly a copy for a child process, or, as in numpy, a search for names of the module's own.
    """
    names: list[str] = []

    class Watched(_PLAIN):  # type: ignore[misc]
        def __getitem__(self, name: str) -> str:
            try:
                value: str = super().__getitem__(name)
            except KeyError:
                if isinstance(name, str) and is_of_the_round(name):
                    names.append(name)
                raise
            return value

    os.environ.__class__ = Watched
    return names


def _devices() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(_DEVICES):
            found.add(target)
    return found


def _private_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

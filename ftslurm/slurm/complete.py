"""Ends a job with an exit code, as the end of its batch script would: libslurm's slurm_complete_job, by its owner.

No command of Slurm's does that. Measured on 22.05 and 24.11 with a job whose batch host is down (sbatch and srun both
with --no-kill; its other nodes still run the step):

- The job stays RUNNING when all its tasks have ended, also when the batch host is back. scancel --batch does nothing.
- scancel, with any --signal=KILL or --full, makes it CANCELLED; a new time limit TIMEOUT; scontrol requeue starts it
  again; scontrol update takes no change of its nodes.
- slurm_complete_job makes it COMPLETED, with an exit code FAILED, or requeues it where RequeueExit says so. Its owner
  may, no administrator is needed. Tasks that are left get SIGTERM, and SIGKILL after KillWait.

Runs in a process of its own: the library loads plugins, and ends the process when it finds no configuration.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ALREADY_DONE = 2021
"""ESLURM_ALREADY_DONE of slurm_errno.h: the job is ending or has ended."""

_LINKED = re.compile(r"(/\S*/libslurm(?:full)?\S*\.so\S*)")
_PLACES = ("libslurm.so*", "slurm*/libslurmfull.so")


class LibraryMissing(Exception):
    """No library of Slurm's can be used; the text says why."""


def wait_status(exit_code: int) -> int:
    """Return the status, as of wait(2), of a batch script that has ended with `exit_code`."""
    return (exit_code & 0xFF) << 8


def libraries(scontrol: str, linked: str) -> Iterator[str]:
    """Yield the paths where Slurm's library may be, the likeliest first.

    Args:
        scontrol: path of the command whose Slurm is meant.
        linked: what ldd says of it; some builds link the library statically.
    """
    yield from _LINKED.findall(linked)
    for command in dict.fromkeys((Path(scontrol), Path(scontrol).resolve())):
        prefix = command.parent.parent
        for place in _PLACES:
            for folder in ("lib64", "lib", "lib/*-linux-gnu"):
                yield from sorted(str(path) for path in prefix.glob(f"{folder}/{place}"))


def load(paths: Iterable[str]) -> ctypes.CDLL:
    """Return the first library that can be loaded and has the function.

    Raises:
        LibraryMissing: none of them.
    """
    tried = []
    for path in dict.fromkeys(paths):
        try:
            # Global: its plugins take their symbols from it.
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL, use_errno=True)
            library.slurm_complete_job.argtypes = (ctypes.c_uint32, ctypes.c_uint32)
            return library
        except (OSError, AttributeError) as error:
            tried.append(str(error))
    raise LibraryMissing("; ".join(tried) or "no libslurm.so and no libslurmfull.so beside scontrol")


def complete(library: ctypes.CDLL, job_id: int, exit_code: int) -> None:
    """End the job; one that has ended already is fine.

    Raises:
        OSError: Slurm refused, with its own words.
    """
    if hasattr(library, "slurm_init"):
        library.slurm_init(None)
    if library.slurm_complete_job(job_id, wait_status(exit_code)) == 0:
        return
    number = ctypes.get_errno()
    if number != ALREADY_DONE:
        library.slurm_strerror.restype = ctypes.c_char_p
        raise OSError(number, (library.slurm_strerror(number) or b"?").decode(errors="replace"))


def main(arguments: list[str]) -> int:
    """Complete job `arguments[0]` (a number, of an array's task its own) with exit code `arguments[1]`."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return _complain("scontrol is not on PATH")
    try:
        done = subprocess.run(["ldd", scontrol], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        linked = done.stdout
    except OSError:
        linked = ""
    try:
        complete(load(libraries(scontrol, linked)), int(arguments[0]), int(arguments[1]))
    except LibraryMissing as error:
        return _complain(f"Slurm's library cannot be used: {error}")
    except OSError as error:
        return _complain(str(error.strerror))
    return 0


def _complain(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Not by way of the library's own clean-up, whose threads may wait for Slurm.
    os._exit(code)

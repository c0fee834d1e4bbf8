"""Ends a job with an exit code, as the end of its batch script would: libslurm's slurm_complete_job, run by its owner.

No Slurm command does that. Measured on 22.05 and 24.11 with a job whose batch host is down (sbatch and srun both
with --no-kill; its other nodes still run the step):

- The job stays RUNNING when all its tasks have ended, also when the batch host is back. scancel --batch does nothing.
- scancel, with any --signal=KILL or --full, makes it CANCELLED; a new time limit TIMEOUT; scontrol requeue starts it
  again; scontrol update takes no change of its nodes.
- slurm_complete_job makes it COMPLETED, with an exit code FAILED, or requeues it as RequeueExit demands. The job's
  owner may call it, no administrator is needed. Remaining tasks get SIGTERM, and SIGKILL after KillWait.

Runs in a process of its own: the library loads plugins, and ends the process if it finds no configuration.
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
_PATTERNS = ("libslurm.so*", "slurm*/libslurmfull.so")


class LibraryMissing(Exception):
    """No Slurm library can be used; the text has the reason."""


def wait_status(exit_code: int) -> int:
    """Return the wait(2) status of a batch script that has ended with `exit_code`."""
    return (exit_code & 0xFF) << 8


def libraries(scontrol: str, linked: str) -> Iterator[str]:
    """Yield candidate paths of Slurm's library, the most likely first.

    Args:
        scontrol: path of the scontrol of that Slurm.
        linked: ldd's output for it; some builds link the library statically.
    """
    yield from _LINKED.findall(linked)
    for command in dict.fromkeys((Path(scontrol), Path(scontrol).resolve())):
        prefix = command.parent.parent
        for pattern in _PATTERNS:
            for folder in ("lib64", "lib", "lib/*-linux-gnu"):
                yield from sorted(str(path) for path in prefix.glob(f"{folder}/{pattern}"))


def load(paths: Iterable[str]) -> ctypes.CDLL:
    """Return the first library that can be loaded and has the function.

    Raises:
        LibraryMissing: none can.
    """
    tried = []
    for path in dict.fromkeys(paths):
        try:
            # Global: its plugins resolve their symbols from it.
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL, use_errno=True)
            library.slurm_complete_job.argtypes = (ctypes.c_uint32, ctypes.c_uint32)
            return library
        except (OSError, AttributeError) as error:
            tried.append(str(error))
    raise LibraryMissing("; ".join(tried) or "no libslurm.so and no libslurmfull.so beside scontrol")


def complete(library: ctypes.CDLL, job_id: int, exit_code: int) -> None:
    """End the job; one that has already ended is fine.

    Raises:
        OSError: Slurm refused, with Slurm's message.
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
    """Complete job `arguments[0]` (a number; for an array task its own number) with exit code `arguments[1]`."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return _error("scontrol is not on PATH")
    try:
        done = subprocess.run(["ldd", scontrol], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        linked = done.stdout
    except OSError:
        linked = ""
    try:
        complete(load(libraries(scontrol, linked)), int(arguments[0]), int(arguments[1]))
    except LibraryMissing as error:
        return _error(f"Slurm's library cannot be used: {error}")
    except OSError as error:
        return _error(str(error.strerror))
    return 0


def _error(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Skip the library's clean-up, whose threads may wait for Slurm.
    os._exit(code)

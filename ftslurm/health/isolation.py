"""Isolation of Slurm's programs: no environment, module or command that a user could have written.

slurmd runs HealthCheckProgram, Prolog and Epilog as root, the latter two with variables of the job. This module imports
only modules that are loaded anyway: it decides where the rest is imported from.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_KEPT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
)
_KEPT_PREFIXES = ("SLURM_", "SLURMD_")
"""slurmd gives its programs no variable of the job's environment by such a name (slurm.conf(5), prolog_epilog)."""


def isolate() -> str | None:
    """Leave the current directory; reduce this process's environment and, as root, its paths to root's own files.

    Returns:
        None, or why this must not run as root: one line.
    """
    os.chdir("/")
    if any(name.startswith("LD_") for name in os.environ):
        # The dynamic loader has read them already, and libraries would be loaded by them: begin again without.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], kept)
    for name in set(os.environ) - set(kept_environment(os.environ)):
        del os.environ[name]
    if os.geteuid() != 0:
        return None
    os.environ["PATH"] = os.pathsep.join(only_roots(os.environ.get("PATH", "").split(os.pathsep)))
    sys.path[:] = only_roots(sys.path)
    for directory in dict.fromkeys((os.path.dirname(os.path.dirname(__file__)), os.path.dirname(os.__file__))):
        if problem := writable_by(directory):
            return f"{problem}: root runs only files that no other user can write; install Python and ftslurm elsewhere"
    return None


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that checks and Slurm's commands need."""
    return {name: value for name, value in environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def only_roots(paths: Iterable[str]) -> list[str]:
    """Return the paths, with links resolved, that are absolute and writable only by root."""
    real = [os.path.realpath(path) for path in paths if os.path.isabs(path)]
    return [path for path in dict.fromkeys(real) if writable_by(path) is None]


def writable_by(path: str) -> str | None:
    """Return the users other than root that can replace a path: "/opt/x belongs to user 1000"; None: none.

    A missing path cannot be created by others if only root can write to the directories above it.
    """
    place = os.path.realpath(path)
    while True:
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            status = None
        except OSError as error:
            return f"{place}: {error.strerror}"
        # In a sticky directory (/tmp) others can create names, but not replace root's.
        if status is not None and (found := _writers(status, sticky_is_safe=place != os.path.realpath(path))):
            return f"{place} {found}"
        if place == "/":
            return None
        place = os.path.dirname(place)


def _writers(status: os.stat_result, sticky_is_safe: bool) -> str | None:
    if status.st_uid != 0:
        return f"belongs to user {status.st_uid}"
    if sticky_is_safe and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "may be written by all users"
    if status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        return f"may be written by group {status.st_gid}"
    return None

"""A directory of runs: which one a command means, and the user's own runs in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.sharedfs.bounded_read import MAX_ENTRIES
from ftslurm.sharedfs.rundir import RUNS_FOLDER
from ftslurm.terminal import UsageError

MARKERS = ("state", "run.json")
"""A run directory has one of these; the first that exists is enough. Run directories of all versions have both."""


@dataclass(frozen=True)
class RunFolder:
    """A run directory of this user's own.

    Attributes:
        name: in the directory of the runs, the run's name.
        path: absolute.
        written_ns: when its state was last changed, by the file server's clock.
    """

    name: str
    path: str
    written_ns: int


@dataclass(frozen=True)
class Runs:
    """The runs in a directory.

    Attributes:
        directory: absolute path.
        own: this user's, the last changed first.
        foreign: number of directories of other users, and of links.
        cut: whether the directory has more entries than are read.
    """

    directory: str
    own: tuple[RunFolder, ...]
    foreign: int
    cut: bool


def directory_of(argument: str | None, environ: Mapping[str, str], cwd: str) -> str:
    """Return the absolute path that a command means; nothing is read.

    Args:
        argument: None: $FTSLURM_SHARED_DIR, ./ftslurm-runs.
    """
    return os.path.normpath(os.path.join(cwd, argument or environ.get("FTSLURM_SHARED_DIR") or RUNS_FOLDER))


def runs_directory(path: str) -> str:
    """Return the directory of runs: `path`, or the `ftslurm-runs` in it.

    Raises:
        UsageError: there is none, or it is a run itself.
    """
    inner = os.path.join(path, RUNS_FOLDER)
    if os.path.basename(path) != RUNS_FOLDER and os.path.isdir(inner):
        path = inner
    if not os.path.isdir(path):
        found = "is not a directory" if os.path.exists(path) else "is not there"
        raise UsageError(f"expected a directory of runs, but {path} {found}; give it as an argument")
    if os.path.isfile(os.path.join(path, "run.json")):
        raise UsageError(f"{path} is one run, expected the directory that holds runs: {os.path.dirname(path)}")
    return path


def find_runs(directory: str, uid: int) -> Runs:
    """Return the runs in a directory; links are not followed.

    Raises:
        UsageError: it cannot be read.
    """
    own: list[RunFolder] = []
    foreign, cut = 0, False
    try:
        with os.scandir(directory) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_ENTRIES:
                    cut = True
                    break
                if entry.name.startswith("."):
                    continue
                try:
                    facts = entry.stat(follow_symlinks=False)
                except OSError:
                    # Removed meanwhile.
                    continue
                if stat.S_ISLNK(facts.st_mode) or (stat.S_ISDIR(facts.st_mode) and facts.st_uid != uid):
                    foreign += 1
                elif stat.S_ISDIR(facts.st_mode) and (written_ns := _written_ns(entry.path)) is not None:
                    own.append(RunFolder(entry.name, entry.path, written_ns))
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from None
    own.sort(key=lambda run: (-run.written_ns, run.name))
    return Runs(directory, tuple(own), foreign, cut)


def _written_ns(path: str) -> int | None:
    """Return when a run's state was last changed; None if the directory is no run."""
    for marker in MARKERS:
        try:
            return os.lstat(os.path.join(path, marker)).st_mtime_ns
        except OSError:
            continue
    return None

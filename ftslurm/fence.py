"""A fence for the script's own data: nothing of a round that is over may replace what a newer round wrote.

A rank that was frozen, or whose node lost sight of the cluster, may wake up when its round is long over and go on
writing its checkpoint. `fence` lets the script ask before it makes the data visible.

What it cannot do: no filesystem has a rename that fails when a token is old, so between the last look at the state and
the rename a moment remains (one look and one rename long) in which a round may end unseen. The rename itself is atomic:
readers see the old or the new checkpoint, never a mixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ftslurm.dataclasses import dataclass


class RoundIsOver(RuntimeError):
    """The round that this process belongs to is over: what it knows may be old."""


@dataclass(frozen=True)
class Fence:
    """This process's round, and whether it is still the current one.

    Attributes:
        run_dir: the run directory; empty outside ftslurm, where every check passes.
        attempt, round: as the agent gave them to this process.
    """

    run_dir: str
    attempt: str
    round: int

    @property
    def token(self) -> int:
        """A number that grows with every round, also over requeues: put it into names or metadata of what you write."""
        return self.round

    def check(self) -> None:
        """Return while this process's round is the current one.

        It reads the run's state from the shared directory (about a millisecond; as long as the filesystem takes).

        Raises:
            RoundIsOver: a newer round or attempt exists, or the run was closed; the text says which.
            OSError: the state cannot be read, so nothing is known; do not write.
        """
        if not self.run_dir:
            return
        from ftslurm.rendezvous.state import RUNNING, State
        from ftslurm.sharedfs.cell import FencedCell
        from ftslurm.sharedfs.filesystem import PosixFileSystem
        from ftslurm.sharedfs.rundir import RunDirectory

        path = RunDirectory(self.run_dir).state
        newest = FencedCell(PosixFileSystem(owner=os.geteuid()), path).get()
        if newest is None:
            raise RoundIsOver(f"{path} holds no state any more; this is round {self.round}")
        state = State.decode(newest.value, path)
        if (state.attempt, state.round) != (self.attempt, self.round):
            newer = f"round {state.round} of {state.attempt} has begun"
            raise RoundIsOver(f"round {self.round} of attempt {self.attempt} is over: {newer}")
        if state.phase != RUNNING:
            raise RoundIsOver(f"round {self.round} of attempt {self.attempt} has ended (the run is {state.phase})")


def fence() -> Fence:
    """Return the fence of this process's round; outside ftslurm one that never stops anything."""
    environment = os.environ
    number = environment.get("FTSLURM_ROUND", "")
    if not number.isdigit() or not environment.get("FTSLURM_RUN_DIR"):
        return Fence("", "", 0)
    return Fence(environment["FTSLURM_RUN_DIR"], environment.get("FTSLURM_ATTEMPT", ""), int(number))


@contextmanager
def commit(path: str | os.PathLike[str]) -> Iterator[str]:
    """Write a file or directory under a temporary name and give it its name only while the round is current.

    ```
    with ftslurm.commit("checkpoints/last.pt") as temporary:
        torch.save(state, temporary)
    ```

    The temporary lies beside `path`, hidden, with the round in its name. A file's bytes are on the disk (fsync) before
    the rename. An existing file is replaced; an existing directory is not (rename(2) refuses unless it is empty): give
    each directory a name of its own.

    Yields:
        The temporary name; nothing exists there yet.

    Raises:
        RoundIsOver: the round ended meanwhile; `path` is untouched. The temporary stays, also after any other error:
            its name says which round left it.
        OSError: it could not be written or renamed; `path` is untouched.
    """
    guard = fence()
    directory, name = os.path.split(os.fspath(path))
    temporary = os.path.join(directory, f".{name}.round{guard.token}.{os.getpid()}.tmp")
    yield temporary
    _sync(temporary)
    guard.check()
    os.rename(temporary, path)
    _sync(directory or ".")


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

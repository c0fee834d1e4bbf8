"""Fencing of the script's own data: a past round must not replace data of a newer round.

A rank that was frozen, or whose node lost sight of the cluster, may wake up when its round is long over and go on
writing its checkpoint. `commit` makes the data visible only while no newer round exists, whatever happens in between;
see `ftslurm.sharedfs.commits` for how. `fence` lets a script ask.

A round may commit until the next one is formed: also while it is being stopped (scancel, a time limit, preemption) and
after another rank has failed. Nothing newer exists then, and the next round starts from what was committed. Whether
the data is whole after a peer's failure only the script can know.

What remains: the fence is as good as the file server's order of operations. A client whose cache shows an old state
although it has just opened the directory anew (which no measurement showed), together with a registration that comes
after the newer round's revocation, would let a late commit pass. And a target on a node's own disk is revoked by that
node alone, so it is not fenced against a node that was lost.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ftslurm.dataclasses import dataclass

# None of them later: what a signal handler calls must not have to be imported, see `ftslurm.__getattr__`.
from ftslurm.monitor.client import excuse
from ftslurm.monitor.link import write_line
from ftslurm.records.state import PendingCommit, State
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.commits import Commits, temporary_of
from ftslurm.sharedfs.filesystem import FileSystem, PosixFileSystem
from ftslurm.sharedfs.publish import random_nonce
from ftslurm.sharedfs.replace import Stranded, remove, replace
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.text import duration

_T = TypeVar("_T")

PATIENCE_S = 30.0
"""For so long (seconds) a commit goes on trying while the run directory refuses it, for example for a full disk."""
RETRY_S = 0.5
NOTICE_S = 3.0
"""Seconds after which a line on stderr names what a commit waits for."""
EXCUSED_S = 5.0
"""So long (seconds) one try may take before it counts as the rank's own silence."""


class RoundIsOver(RuntimeError):
    """A newer round exists than the one that this process belongs to: what it knows may be old."""


@dataclass(frozen=True)
class Fence:
    """This process's round, and whether it is still the newest one.

    Attributes:
        run_dir: the run directory; empty outside ftslurm, where every check passes.
        attempt, round: as the agent gave them to this process.
        node: where this process runs.
    """

    run_dir: str
    attempt: str
    round: int
    node: str = ""

    @property
    def token(self) -> int:
        """A number that grows with every round, also over requeues: put it into names or metadata of what you write."""
        return self.round

    def check(self) -> None:
        """Return while no newer round or attempt than this process's exists.

        It reads the run's state from the shared directory (about a millisecond; as long as the filesystem takes).

        Raises:
            RoundIsOver: there is a newer one, which the text names.
            OSError: the state cannot be read, so nothing is known; do not write.
        """
        if self.run_dir:
            check(_filesystem(), self)


def check(fs: FileSystem, fence: Fence) -> None:
    """Do what `Fence.check` does, on a filesystem of the caller's choice."""
    path = RunDirectory(fence.run_dir).state
    newest = FencedCell(fs, path).get()
    if newest is None:
        raise RoundIsOver(f"{path} holds no state any more; this is round {fence.round}")
    state = State.decode(newest.value, path)
    if (state.attempt, state.round) != (fence.attempt, fence.round):
        newer = f"round {state.round} of {state.attempt}"
        if state.round == fence.round:
            newer = f"attempt {state.attempt}"
        raise RoundIsOver(f"round {fence.round} of attempt {fence.attempt} is over: {newer} has begun")


def fence() -> Fence:
    """Return the fence of this process's round; outside ftslurm one that never stops anything."""
    environment = os.environ
    number = environment.get("FTSLURM_ROUND", "")
    run_dir = environment.get("FTSLURM_RUN_DIR")
    if not number.isdigit() or not run_dir:
        return Fence("", "", 0)
    return Fence(run_dir, environment.get("FTSLURM_ATTEMPT", ""), int(number), environment.get("FTSLURM_NODE", "?"))


@contextmanager
def commit(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Iterator[str]:
    """Write a file or directory under a temporary name and give it its name only while no newer round exists.

    ```
    with ftslurm.commit("checkpoints/last.pt") as temporary:
        torch.save(state, temporary)
    ```

    The temporary lies beside `path`, hidden, with the round in its name. A file's bytes are on the disk (fsync) before
    the rename. A file replaces a file, a directory replaces a directory with all that is in it; neither replaces the
    other. A symbolic link stays one, as with `open(path, "wb")`: what it leads to is written, and the temporary lies
    beside that. While the run directory refuses (a full disk), the commit waits for up to 30 s, which
    no time-out of a watchdog counts, and a line on stderr states that.

    At every moment `path` is the old one or the new one, whole. But where the filesystem cannot exchange two
    directories (NFS: renameat2(2) fails with EINVAL), an existing directory is first renamed to a hidden name that ends
    with `.old`. A kill right after that leaves nothing under `path`, until the end of the round is noticed or the next
    round starts: both give the old directory its name again. Outside ftslurm nothing does.

    Yields:
        The temporary's absolute path, as text; nothing exists there yet. It is removed after any error; that of a
        process which was killed is removed when the next round starts.

    Raises:
        RoundIsOver: a newer round exists; `path` is as that round left it.
        OSError: it could not be written or renamed; `path` is untouched, unless the text names where old and new lie.
    """
    guard = fence()
    target = _resolved(path)
    temporary = temporary_of(target, guard.token, random_nonce())
    pending = PendingCommit(guard.round, guard.node, temporary, target)
    commits = Commits(_filesystem(), RunDirectory(guard.run_dir)) if guard.run_dir else None
    # Early, so that what a killed process leaves is found. If that fails now there is time until the data is written.
    registration = _try_to_register(commits, pending)
    waiting = Waiting(f"the commit of {target} waits for the run directory {guard.run_dir}")
    obsolete: str | None = temporary
    try:
        yield temporary
        _sync(temporary)
        if commits is not None and registration is None:
            registration = _patiently(lambda: commits.register(pending), waiting)
        _patiently(guard.check, waiting)
        obsolete = _rename(temporary, target, guard)
        _sync(os.path.dirname(target))
    except Stranded:
        obsolete = None
        raise
    finally:
        gone = obsolete is None or remove(obsolete)
        # What another node still has open may stay for now (NFS): the end of the round removes what is registered.
        if commits is not None and registration is not None and gone:
            commits.finished(registration)


def _resolved(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Return the absolute path of what `open` would write."""
    target = os.fsdecode(path)
    if not target:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)
    target = os.path.abspath(target)
    if os.path.islink(target):
        target = os.path.realpath(target)
        if os.path.islink(target):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), target)
    return target


def _try_to_register(commits: Commits | None, pending: PendingCommit) -> str | None:
    if commits is None:
        return None
    try:
        return commits.register(pending)
    except OSError:
        return None


def _rename(temporary: str, target: str, guard: Fence) -> str | None:
    try:
        return replace(temporary, target)
    except FileNotFoundError:
        # A newer round has revoked it between the check and the rename; else it is the script's own doing.
        guard.check()
        raise


class Waiting:
    """Notice of a waiting commit, printed once on the standard error when the wait is long.

    Args:
        what: description of the wait.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._printed = False

    def notify(self, waited_s: float, error: OSError) -> None:
        """Print the wait of `waited_s` seconds so far and the newest `error`."""
        if waited_s >= NOTICE_S and not self._printed:
            # Where the standard error is a log in the very directory that is full, the next try may get through.
            self._printed = write_line(
                f"{self._what}, which has failed for {duration(waited_s)}; it gives up after {duration(PATIENCE_S)}: "
                f"{error}"
            )


def _patiently(call: Callable[[], _T], waiting: Waiting) -> _T:
    """Call until it succeeds, for `PATIENCE_S`; to the agent this wait is no hang of the rank."""
    began = time.monotonic()
    while True:
        try:
            return call()
        except OSError as error:
            waited_s = time.monotonic() - began
            if waited_s >= PATIENCE_S:
                raise
            waiting.notify(waited_s, error)
        excuse(EXCUSED_S)
        time.sleep(RETRY_S)


def _filesystem() -> FileSystem:
    return PosixFileSystem(owner=os.geteuid())


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

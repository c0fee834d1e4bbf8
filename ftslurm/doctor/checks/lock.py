"""Locks: does a lock exclude other nodes, and is it released at once when its holder is killed?

ftslurm uses locks only to avoid useless work of competitors: one that does not exclude costs time, not safety. A lock
that outlives its holder costs more time, repeatedly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.contended import ContendedCheck, Meeting, last_value
from ftslurm.health.barrier import make_directory, wait_for, write_file
from ftslurm.health.children import Child, stop
from ftslurm.health.timed_filesystem import TimedFileSystem, Work
from ftslurm.health.verdict import Json, NodeFinding, node_findings
from ftslurm.records.health import FAIL, NOTE, WARN

if TYPE_CHECKING:
    from ftslurm.health.children import Send

TURN_S = 5.0
RELEASE_S = 8.0
LIMIT_S = 3 * TURN_S + RELEASE_S
SLOW_S = 2.0


@dataclass(frozen=True)
class Lock:
    """One node's observation of another one's lock; None: not observed.

    Attributes:
        holder: the node whose process held it and was killed.
        excluded: it could not be acquired while it was held.
        released_s: seconds from the holder's death until it could be acquired; -1: not within RELEASE_S.
        problem: why there is no result.
    """

    holder: str
    excluded: bool | None = None
    released_s: float | None = None
    problem: str | None = None


NO_FILELOCK = "the Python package filelock is not installed here: pip install filelock"


def hold(fs: TimedFileSystem, directory: str, node: str) -> Json:
    """Hold this node's lock in a process, wait until the other node has tried it, kill the holder."""
    path = os.path.join(directory, f"{node}.lock")
    holder = Child(lambda send: _hold(path, send), LIMIT_S)
    holder.start()
    problem = fs.during(f"lock {path}", holder.wait_for_value)
    write_file(fs, os.path.join(directory, f"held.{node}"), held=problem is None, problem=problem)
    if problem is None:
        wait_for(fs, os.path.join(directory, f"tried.{node}"), time.monotonic() + TURN_S)
    stop([holder])
    write_file(fs, os.path.join(directory, f"killed.{node}"))
    return {}


def _hold(path: str, send: Send) -> None:
    """The holder process: it sends why it could not acquire the lock, or None, and then holds it."""
    try:
        from filelock import FileLock

        _need_flock(path)
        lock = FileLock(path, timeout=TURN_S, mode=0o600)
        lock.acquire()
    except ImportError:
        send(NO_FILELOCK)
    except BaseException as error:  # any error must be reported to the other process
        send(f"{type(error).__name__}: {error}"[:400])
    else:
        send(None)
        time.sleep(LIMIT_S)


def _need_flock(path: str) -> None:
    """Raise OSError where there is no flock: FileLock would fall back to a lock file that outlives its holder."""
    import fcntl

    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def take(fs: TimedFileSystem, directory: str, holder: str) -> Json:
    """Try `holder`'s lock while it is held, then again when the holder was killed."""
    try:
        from filelock import FileLock, Timeout
    except ImportError:
        return {"holder": holder, "problem": NO_FILELOCK}
    path = os.path.join(directory, f"{holder}.lock")
    held = wait_for(fs, os.path.join(directory, f"held.{holder}"), time.monotonic() + 2 * TURN_S)
    if held is None or not held["held"]:
        return {"holder": holder, "problem": str(held["problem"]) if held else None}
    lock = FileLock(path, mode=0o600)
    try:
        fs.during(f"lock {path}", lambda: lock.acquire(timeout=0))
        excluded = False
        lock.release()
    except Timeout:
        excluded = True
    write_file(fs, os.path.join(directory, f"tried.{holder}"))
    if wait_for(fs, os.path.join(directory, f"killed.{holder}"), time.monotonic() + TURN_S, 0.005) is None:
        return {"holder": holder, "excluded": excluded}
    began = time.monotonic()
    try:
        # Not recorded: it waits by itself, in short calls.
        lock.acquire(timeout=RELEASE_S, poll_interval=0.01)
        released = time.monotonic() - began
        lock.release()
    except Timeout:
        released = -1.0
    return {"holder": holder, "excluded": excluded, "released_s": released}


def _works(meeting: Meeting, seconds: float) -> list[Work]:
    directory = meeting.session.path("lock")
    before, own, _ = meeting.neighbours()

    def hold_own(fs: TimedFileSystem) -> Json:
        make_directory(fs, directory)
        meeting.wait(fs, "lock")
        return hold(fs, directory, own)

    return [hold_own, meeting.after("lock", lambda fs: take(fs, directory, before))]


CHECK = ContendedCheck("lock", _works, last_value, extra_s=LIMIT_S)


def judge(by_node: Mapping[str, Lock]) -> list[NodeFinding]:
    """Judge each node's view of another one's lock."""
    return node_findings(CHECK.name, by_node, _judge)


def _judge(facts: Lock) -> list[tuple[str, str, str]]:
    if facts.problem is not None:
        advice = "ftslurm works without locks, with more work in vain; your own programs may need them"
        return [(WARN, f"there are no locks here ({facts.problem})", advice)]
    found = []
    if facts.excluded is False:
        text = f"a lock held on {facts.holder} could be had here at the same time"
        advice = "ftslurm's state does not rest on locks; other programs' may (NFS: mount without nolock, local_lock)"
        found.append((WARN, text, advice))
    if facts.released_s is not None and facts.released_s < 0:
        text = f"{facts.holder}'s lock was still held {RELEASE_S:g} s after its holder was killed"
        advice = "restart the lock service (NFSv3: rpc.statd, lockd) or choose another filesystem"
        found.append((FAIL, text, advice))
    elif facts.released_s is not None and facts.released_s > SLOW_S:
        text = f"{facts.holder}'s lock was free only {facts.released_s:.1f} s after its holder was killed"
        found.append((NOTE, text, "a rival waits that long, once"))
    return found

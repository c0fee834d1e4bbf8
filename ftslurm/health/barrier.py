"""Joining and barriers of the nodes: small files in one sub-directory of the directory under test."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ftslurm.dataclasses import dataclass
from ftslurm.health.verdict import Json
from ftslurm.records.codec import encode
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.ownership import ForeignFile, check_own_directory
from ftslurm.sharedfs.publish import publish, publish_once, read_object

SCHEMA, VERSION = "ftslurm/session", 1
POLL_S = 0.02
LISTING_S = 0.5
TRIES = 5
PERMANENT_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR})
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a file",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}
T = TypeVar("T")
TURN_S = 0.5


class JoinedTooLate(Exception):
    """The other nodes began without this node."""


class BarrierTimeout(Exception):
    """The first node, which releases the barriers, did not release this one."""


class SessionPathTaken(ForeignFile):
    """The session's directory cannot be created or trusted: something else is in its place."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


@dataclass(frozen=True)
class Session:
    """One run of a command on all nodes of a step.

    Attributes:
        root: the sub-directory, absolute.
        node: this node.
        expected: all nodes that were started, in Slurm's order.
    """

    root: str
    node: str
    expected: tuple[str, ...]

    def path(self, *names: str) -> str:
        """Return a path inside the session's directory."""
        return os.path.join(self.root, *names)


def document(**fields: object) -> bytes:
    """Return a small file's content."""
    return encode({"schema": SCHEMA, "version": VERSION, **fields})


def write_file(fs: FileSystem, path: str, **fields: object) -> None:
    """Publish a small file for the other nodes.

    Repeated on errors: a lost reply makes a completed call look failed, and single errors are counted by the probes.
    """
    _retry(lambda: publish(fs, path, document(**fields)))


def make_directory(fs: FileSystem, path: str) -> None:
    """Create a directory, repeated on single errors."""
    _retry(lambda: fs.makedirs(path))


def enter_session(fs: FileSystem, root: str) -> None:
    """Create a session's directory, or verify the one created by another node.

    Raises:
        SessionPathTaken: it is not a directory of this user alone; its content is untrusted.
        OSError: it cannot be created.
    """
    try:
        make_directory(fs, root)
        check_own_directory(root)
    except (FileExistsError, ForeignFile) as error:
        raise SessionPathTaken(error.errno, _path_holder(root) or error.strerror, root) from None


def _path_holder(root: str) -> str | None:
    """Return what is in a session directory's place; None: a directory of this user alone."""
    try:
        facts = os.lstat(root)
    except OSError:
        return None
    own = facts.st_uid == os.geteuid()
    if own and stat.S_ISDIR(facts.st_mode):
        return None
    what = _KINDS.get(stat.S_IFMT(facts.st_mode), "a device")
    return f"{what} of uid {facts.st_uid} is in the place of the session's directory (you are uid {os.geteuid()})"


def read_file(fs: FileSystem, path: str) -> Json | None:
    """Read a small file as agents do, directory first; None if it does not exist (yet)."""

    def read() -> Json | None:
        fs.refresh(os.path.dirname(path))
        try:
            return read_object(fs, path, SCHEMA, VERSION)
        except FileNotFoundError:
            return None

    return _retry(read)


def _retry(call: Callable[[], T]) -> T:
    for _ in range(TRIES - 1):
        try:
            return call()
        except OSError as error:
            if error.errno in PERMANENT_ERRORS:
                raise
            time.sleep(POLL_S)
    return call()


def wait_for(fs: FileSystem, path: str, deadline: float, poll_s: float = POLL_S) -> Json | None:
    """Read a small file as soon as it exists; None if it does not exist at `deadline` (monotonic seconds)."""
    while True:
        found = read_file(fs, path)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(poll_s)


def join(fs: FileSystem, session: Session, wait_s: float) -> list[str]:
    """Publish this node's arrival; return the participating nodes, in order, once that is decided.

    The first node waits for all for `wait_s` seconds. If it is missing itself, the next ones decide in turn; a plan is
    published once, by any of them.

    Raises:
        JoinedTooLate: this node is not among them.
        OSError: the filesystem prevents it.
    """
    joined, plan = session.path("joined"), session.path("plan.json")
    enter_session(fs, session.root)
    make_directory(fs, joined)
    write_file(fs, os.path.join(joined, f"{session.node}.json"), node=session.node)
    position = session.expected.index(session.node)
    mine = time.monotonic() + wait_s + min(position, 10) * TURN_S
    arrivals = _Arrivals(fs, joined, session.expected)
    while (plan_file := read_file(fs, plan)) is None:
        here = arrivals.present() if position == 0 or time.monotonic() > mine else []
        if here and (len(here) == len(session.expected) or time.monotonic() > mine):
            _publish_plan(fs, plan, here)
            _note_unlisted(fs, session, arrivals)
            continue
        time.sleep(POLL_S)
    nodes = [str(node) for node in plan_file["nodes"]]
    if session.node not in nodes:
        raise JoinedTooLate(f"{session.node} arrived after the others had begun")
    return nodes


def _publish_plan(fs: FileSystem, plan: str, nodes: Sequence[str]) -> None:
    try:
        publish_once(fs, plan, document(nodes=nodes), durable=False)
    except OSError:
        # Links may be broken here; the doctor must be able to report that.
        if read_file(fs, plan) is None:
            write_file(fs, plan, nodes=nodes)


def pass_barrier(
    fs: FileSystem, session: Session, nodes: Sequence[str], step: str, wait_s: float, post: bool = True
) -> None:
    """Wait until all are at `step`, at most `wait_s` seconds; only the first node reads all, the others only its file.

    Args:
        nodes: those that take part.
        step: a unique name.
        wait_s: seconds; a hanging node must not block the rest. It is awaited once, not at every barrier.
        post: whether this process publishes for its node (its other processes only wait).

    Raises:
        BarrierTimeout: the first node did not release the barrier in time.
    """
    directory = session.path("barriers", step)
    opened, absent = os.path.join(directory, "released.json"), session.path("barriers", "absent.json")
    deadline = time.monotonic() + wait_s
    make_directory(fs, directory)
    if post:
        write_file(fs, os.path.join(directory, f"{session.node}.json"), node=session.node)
    if not post or session.node != nodes[0]:
        # Longer than the first node's own time-out, or all would leave just before the release.
        if wait_for(fs, opened, deadline + 1) is None:
            raise BarrierTimeout(f"{nodes[0]} did not release the barrier within {wait_s:g} s")
        return
    known = read_file(fs, absent)
    given_up = known["nodes"] if known is not None else []
    awaited = [node for node in nodes if node not in given_up]
    arrivals = _Arrivals(fs, directory, awaited)
    if not until(arrivals.complete, deadline):
        here = arrivals.present()
        write_file(fs, absent, nodes=[*given_up, *(node for node in awaited if node not in here)])
    _note_unlisted(fs, session, arrivals)
    write_file(fs, opened)


def until(true: Callable[[], bool], deadline: float) -> bool:
    """Wait until it is true, at most until `deadline` (monotonic seconds)."""
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


class _Arrivals:
    """The nodes with a file of their name in a directory: by its listing, and by name where the listing lacks it.

    On NFS a listing was observed to stay stale for more than a minute while the files could be opened by name.
    """

    def __init__(self, fs: FileSystem, directory: str, nodes: Sequence[str]) -> None:
        self._fs = fs
        self._directory = directory
        self._nodes = nodes
        self._by_name = time.monotonic() + LISTING_S
        self._here: set[str] = set()
        self.unlisted: list[str] = []

    def present(self) -> list[str]:
        """Read again; return the present nodes, in order."""
        self._fs.refresh(self._directory)
        listed = set(self._fs.listdir(self._directory))
        self._here.update(node for node in self._nodes if f"{node}.json" in listed)
        missing = [node for node in self._nodes if node not in self._here]
        if missing and time.monotonic() > self._by_name:
            found = [node for node in missing if read_file(self._fs, self._file(node)) is not None]
            self._here.update(found)
            self.unlisted += found
            self._by_name = time.monotonic() + LISTING_S
        return [node for node in self._nodes if node in self._here]

    def complete(self) -> bool:
        """Read again; return whether all are present."""
        return len(self.present()) == len(self._nodes)

    def _file(self, node: str) -> str:
        return os.path.join(self._directory, f"{node}.json")


def _note_unlisted(fs: FileSystem, session: Session, arrivals: _Arrivals) -> None:
    if arrivals.unlisted:
        write_file(fs, session.path("unlisted.json"), nodes=arrivals.unlisted)


def unlisted(fs: FileSystem, session: Session) -> list[str]:
    """Return the nodes whose files could be opened although the first node's listing lacked them."""
    known = read_file(fs, session.path("unlisted.json"))
    return [str(node) for node in known["nodes"]] if known is not None else []


def publish_result(fs: FileSystem, session: Session, result: Json) -> None:
    """Publish this node's result."""
    make_directory(fs, session.path("results"))
    write_file(fs, session.path("results", f"{session.node}.json"), **result)


def collect(fs: FileSystem, session: Session, nodes: Sequence[str], wait_s: float) -> dict[str, Json]:
    """Return the results of all nodes that publish one within `wait_s` seconds."""
    directory = session.path("results")
    deadline = time.monotonic() + wait_s
    make_directory(fs, directory)
    until(_Arrivals(fs, directory, nodes).complete, deadline)
    found = {node: read_file(fs, os.path.join(directory, f"{node}.json")) for node in nodes}
    return {node: result for node, result in found.items() if result is not None}

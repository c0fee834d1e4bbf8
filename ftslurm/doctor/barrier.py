"""Joining and barriers of the nodes: small files in one sub-directory of the directory under test."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.findings import WARNING, WRONG, Finding, Json, some
from ftslurm.sharedfs.filesystem import FileSystem, ForeignFile
from ftslurm.sharedfs.ownership import check_own_directory
from ftslurm.sharedfs.publish import encode, publish, publish_once, read_object

SCHEMA, VERSION = "ftslurm/doctor", 1
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


class TooLate(Exception):
    """The other nodes began without this node."""


class LeftAlone(Exception):
    """The first node, which releases the barriers, did not release this one."""


class Occupied(ForeignFile):
    """The session's directory cannot be created or trusted: something else is in its place."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


@dataclass(frozen=True)
class Session:
    """One run of the doctor over all nodes.

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


def tell(fs: FileSystem, path: str, **fields: object) -> None:
    """Publish a small file for the other nodes.

    Repeated on errors: a lost reply makes a completed call look failed, and single errors are counted by the probes.
    """
    _insist(lambda: publish(fs, path, document(**fields)))


def make(fs: FileSystem, path: str) -> None:
    """Create a directory, repeated on single errors."""
    _insist(lambda: fs.makedirs(path))


def enter(fs: FileSystem, root: str) -> None:
    """Create a session's directory, or verify the one created by another node.

    Raises:
        Occupied: it is not a directory of this user alone; its content is untrusted.
        OSError: it cannot be created.
    """
    try:
        make(fs, root)
        check_own_directory(root)
    except (FileExistsError, ForeignFile) as error:
        raise Occupied(error.errno, _occupant(root) or error.strerror, root) from None


def _occupant(root: str) -> str | None:
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


def look(fs: FileSystem, path: str) -> Json | None:
    """Read a small file as agents do, directory first; None if it does not exist (yet)."""

    def read() -> Json | None:
        fs.refresh(os.path.dirname(path))
        try:
            return read_object(fs, path, SCHEMA, VERSION)
        except FileNotFoundError:
            return None

    return _insist(read)


def _insist(call: Callable[[], T]) -> T:
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
        found = look(fs, path)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(poll_s)


def arrive(fs: FileSystem, session: Session, version: str, wait_s: float) -> list[str]:
    """Publish this node's arrival; return the participating nodes, in order, once that is decided.

    The first node waits for all for `wait_s` seconds. If it is missing itself, the next ones decide in turn; a plan is
    published once, by any of them.

    Raises:
        TooLate: this node is not among them.
        OSError: the filesystem prevents it.
    """
    hello, plan = session.path("hello"), session.path("plan.json")
    enter(fs, session.root)
    make(fs, hello)
    tell(fs, os.path.join(hello, f"{session.node}.json"), node=session.node, ftslurm=version)
    position = session.expected.index(session.node)
    mine = time.monotonic() + wait_s + min(position, 10) * TURN_S
    roll = _Roll(fs, hello, session.expected)
    while (settled := look(fs, plan)) is None:
        here = roll.call() if position == 0 or time.monotonic() > mine else []
        if here and (len(here) == len(session.expected) or time.monotonic() > mine):
            _settle(fs, plan, here)
            _note_unlisted(fs, session, roll)
            continue
        time.sleep(POLL_S)
    nodes = [str(node) for node in settled["nodes"]]
    if session.node not in nodes:
        raise TooLate(f"{session.node} arrived after the others had begun")
    return nodes


def _settle(fs: FileSystem, plan: str, nodes: Sequence[str]) -> None:
    try:
        publish_once(fs, plan, document(nodes=nodes), durable=False)
    except OSError:
        # Links may be broken here; the doctor must be able to report that.
        if look(fs, plan) is None:
            tell(fs, plan, nodes=nodes)


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
        LeftAlone: the first node did not release the barrier in time.
    """
    directory = session.path("gates", step)
    opened, absent = os.path.join(directory, "open.json"), session.path("gates", "absent.json")
    deadline = time.monotonic() + wait_s
    make(fs, directory)
    if post:
        tell(fs, os.path.join(directory, f"{session.node}.json"), node=session.node)
    if not post or session.node != nodes[0]:
        # Longer than the first node's own time-out, or all would leave just before the release.
        if wait_for(fs, opened, deadline + 1) is None:
            raise LeftAlone(f"{nodes[0]} did not release the barrier within {wait_s:g} s")
        return
    known = look(fs, absent)
    given_up = known["nodes"] if known is not None else []
    awaited = [node for node in nodes if node not in given_up]
    roll = _Roll(fs, directory, awaited)
    if not until(roll.complete, deadline):
        here = roll.call()
        tell(fs, absent, nodes=[*given_up, *(node for node in awaited if node not in here)])
    _note_unlisted(fs, session, roll)
    tell(fs, opened)


def until(true: Callable[[], bool], deadline: float) -> bool:
    """Wait until it is true, at most until `deadline` (monotonic seconds)."""
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


class _Roll:
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

    def call(self) -> list[str]:
        """Read again; return the present nodes, in order."""
        self._fs.refresh(self._directory)
        listed = set(self._fs.listdir(self._directory))
        self._here.update(node for node in self._nodes if f"{node}.json" in listed)
        missing = [node for node in self._nodes if node not in self._here]
        if missing and time.monotonic() > self._by_name:
            found = [node for node in missing if look(self._fs, self._file(node)) is not None]
            self._here.update(found)
            self.unlisted += found
            self._by_name = time.monotonic() + LISTING_S
        return [node for node in self._nodes if node in self._here]

    def complete(self) -> bool:
        """Read again; return whether all are present."""
        return len(self.call()) == len(self._nodes)

    def _file(self, node: str) -> str:
        return os.path.join(self._directory, f"{node}.json")


def _note_unlisted(fs: FileSystem, session: Session, roll: _Roll) -> None:
    if roll.unlisted:
        tell(fs, session.path("unlisted.json"), nodes=roll.unlisted)


def unlisted(fs: FileSystem, session: Session) -> list[str]:
    """Return the nodes whose files could be opened although the first node's listing lacked them."""
    known = look(fs, session.path("unlisted.json"))
    return [str(node) for node in known["nodes"]] if known is not None else []


def judge_listing(first: str, nodes: Sequence[str]) -> list[Finding]:
    """A stale listing hides files from every program that searches a directory."""
    if not nodes:
        return []
    text = f"a listing lacked {some(nodes)}'s file for more than {LISTING_S:g} s, although it could be opened by name"
    advice = "open other nodes' files by name, not from a listing; NFS: try lookupcache=none or a newer kernel"
    return [Finding(WARNING, "listing", (first,), text, advice)]


def publish_result(fs: FileSystem, session: Session, result: Json) -> None:
    """Publish this node's result."""
    make(fs, session.path("results"))
    tell(fs, session.path("results", f"{session.node}.json"), **result)


def collect(fs: FileSystem, session: Session, nodes: Sequence[str], wait_s: float) -> dict[str, Json]:
    """Return the results of all nodes that publish one within `wait_s` seconds."""
    directory = session.path("results")
    deadline = time.monotonic() + wait_s
    make(fs, directory)
    until(_Roll(fs, directory, nodes).complete, deadline)
    found = {node: look(fs, os.path.join(directory, f"{node}.json")) for node in nodes}
    return {node: result for node, result in found.items() if result is not None}


def versions(fs: FileSystem, session: Session, nodes: Sequence[str]) -> dict[str, str]:
    """Return each node's ftslurm version."""
    found = {node: look(fs, session.path("hello", f"{node}.json")) for node in nodes}
    return {node: str(word["ftslurm"]) for node, word in found.items() if word is not None}


def judge(
    expected: Sequence[str], present: Sequence[str], reported: Sequence[str], directory: str, wait_s: float
) -> list[Finding]:
    """Findings for the nodes that never joined and those that joined and fell silent."""
    found = []
    missing = tuple(node for node in expected if node not in present)
    if missing:
        text = f"did not join in {directory} within {wait_s:g} s"
        advice = (
            "either the task did not start there, or the directory is another one there (not mounted?): compare "
            f"`srun -w {missing[0]} stat -f {directory}` with `srun -w {present[0] if present else 'NODE'} stat -f …`"
        )
        found.append(Finding(WRONG, "meet", missing, text, advice))
    silent = tuple(node for node in present if node not in reported)
    if silent:
        text = "took part and then published no result"
        advice = f"the filesystem hangs there or the node died; try `srun -w {silent[0]} ls {directory}`"
        found.append(Finding(WRONG, "meet", silent, text, advice))
    return found


def judge_versions(by_node: dict[str, str]) -> list[Finding]:
    """Different versions of ftslurm on the nodes of one job are incompatible."""
    if len(set(by_node.values())) < 2:
        return []
    kinds = {version: [n for n, v in by_node.items() if v == version] for version in sorted(set(by_node.values()))}
    text = "; ".join(f"ftslurm {version} on {some(nodes, 3)}" for version, nodes in kinds.items())
    return [Finding(WRONG, "meet", (), text, "install the same version on all nodes")]

"""Registrations of commits in progress, and how the next round's nodes revoke them."""

from __future__ import annotations

import errno
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ftslurm.agent.actions import Assignment
from ftslurm.agent.revocation import OTHERS_S, Revocation
from ftslurm.records.state import Master, PendingCommit
from ftslurm.sharedfs.commits import REVOKED, REVOKED_SUFFIX, Commits, Revoked, temporary_of
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.clock import VirtualClock
from ftslurm.testing.memoryfs import BEFORE, MemoryFileSystem, Operation

RUN = RunDirectory("/runs/r")


@dataclass
class Shelf:
    """A run directory, checkpoints beside it, and clients of both."""

    fs: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        for directory in (RUN.commits, "/data"):
            self.fs.makedirs(directory)

    def nonce(self) -> str:
        return f"{next(self.numbers):04x}"

    def commits(self, fs: MemoryFileSystem | None = None) -> Commits:
        return Commits(fs or self.fs, RUN, self.nonce)

    def begin(self, round_: int, node: str = "n1", target: str = "/data/last.pt", written: bool = True) -> str:
        """Begin a commit; return its temporary."""
        temporary = temporary_of(target, round_, self.nonce())
        self.commits().register(PendingCommit(round_, node, temporary, target))
        if written:
            self.fs.create(temporary, b"%d" % round_, durable=False)
        return temporary

    def names(self) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.fs.files())


def everybody(node: str) -> bool:
    return True


def test_a_revoked_commit_can_no_longer_be_finished_and_is_returned_for_deletion() -> None:
    shelf = Shelf()
    temporary = shelf.begin(3)
    revoked, others = shelf.commits().revoke(4, everybody)
    assert others == 0
    assert [one.path for one in revoked] == [temporary + REVOKED_SUFFIX]
    with pytest.raises(FileNotFoundError):
        shelf.fs.rename(temporary, "/data/last.pt")
    assert all(path.startswith((f"{RUN.commits}/{REVOKED}", "/data/.last.pt.round3")) for path in shelf.fs.files())


def test_commits_of_the_round_itself_and_of_newer_ones_are_left_alone() -> None:
    shelf = Shelf()
    shelf.begin(4)
    shelf.begin(11)
    before = shelf.fs.files()
    assert shelf.commits().revoke(4, everybody) == ([], 0)
    assert shelf.fs.files() == before


def test_a_finished_commit_leaves_nothing_to_revoke() -> None:
    shelf = Shelf()
    commits = shelf.commits()
    commits.finished(commits.register(PendingCommit(3, "n1", "/data/.x.round3.1.tmp", "/data/x")))
    assert commits.revoke(4, everybody) == ([], 0)
    assert shelf.names() == []


def test_a_temporary_that_does_not_exist_yet_is_revoked_before_it_is_written() -> None:
    shelf = Shelf()
    shelf.begin(3, written=False)
    assert len(shelf.commits().revoke(4, everybody)[0]) == 1


def test_a_revocation_that_was_interrupted_is_completed_by_the_next_one() -> None:
    shelf = Shelf()
    temporary = shelf.begin(3)

    def stop(when: str, operation: Operation) -> None:
        if when == BEFORE and operation.name == "rename" and operation.path.startswith(RUN.commits):
            raise OSError(errno.EIO, "server gone", operation.path)

    with pytest.raises(OSError, match="server gone"):
        shelf.commits(shelf.fs.client(stop)).revoke(4, everybody)
    revoked, _ = shelf.commits().revoke(4, everybody)
    assert [one.path for one in revoked] == [temporary + REVOKED_SUFFIX]
    again, _ = shelf.commits().revoke(9, everybody)
    assert again == revoked, "what has not been deleted yet is returned again"


def test_each_of_several_concurrent_revocations_returns_only_after_the_commit_is_revoked() -> None:
    shelf = Shelf()
    temporaries = [shelf.begin(3) for _ in range(3)]
    others = iter([shelf.commits() for _ in range(20)])

    def race(when: str, operation: Operation) -> None:
        if when == BEFORE and operation.name in ("rename", "read"):
            next(others).revoke(4, everybody)

    shelf.commits(shelf.fs.client(race)).revoke(4, everybody)
    for temporary in temporaries:
        with pytest.raises(FileNotFoundError):
            shelf.fs.rename(temporary, "/data/last.pt")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_where_nothing_may_be_renamed_no_commit_can_be_finished_either(number: int) -> None:
    shelf = Shelf()
    shelf.begin(3)

    def refuse(when: str, operation: Operation) -> None:
        if when == BEFORE and operation.name == "rename" and operation.path.startswith("/data"):
            raise OSError(number, "refused", operation.path)

    assert shelf.commits(shelf.fs.client(refuse)).revoke(4, everybody)[1] == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"schema": "ftslurm/commit", "version": 1}',
        json.dumps({"schema": "ftslurm/commit", "version": 1, "temporary": "/data/model.pt"}).encode(),
        json.dumps({"schema": "ftslurm/commit", "version": 1, "temporary": "data/.x.round1.1.tmp"}).encode(),
        json.dumps({"schema": "ftslurm/commit", "version": 1, "temporary": ["/data/.x.tmp"]}).encode(),
    ],
)
def test_a_registration_that_is_damaged_or_names_no_temporary_moves_nothing(content: bytes) -> None:
    shelf = Shelf()
    shelf.fs.create("/data/model.pt", b"precious", durable=False)
    shelf.fs.create(f"{RUN.commits}/000003.n1.0001.json", content, durable=False)
    assert shelf.commits().revoke(4, everybody) == ([], 0)
    assert shelf.names() == ["model.pt"]


@pytest.mark.parametrize("name", ["x.json", "000003.json", "abc.n1.1.json", "000003.n1.1.txt", ".000003.n1.1.json"])
def test_other_files_among_the_registrations_are_left_alone(name: str) -> None:
    shelf = Shelf()
    shelf.fs.create(f"{RUN.commits}/{name}", b"{}", durable=False)
    assert shelf.commits().revoke(4, everybody) == ([], 0)
    assert shelf.names() == [name]


def test_a_nodes_name_may_hold_dots() -> None:
    shelf = Shelf()
    shelf.begin(3, node="n1.cluster.example")
    assert shelf.commits().left_by("n1.cluster.example", 3)
    assert not shelf.commits().left_by("n1", 3)


# Which node revokes what


def part(node: str, round_: int = 4, nodes: tuple[str, ...] = ("n1", "n2", "n3")) -> Assignment:
    place = nodes.index(node)
    return Assignment(round_, "7.0", place, len(nodes), 2 * place, 2, 2 * len(nodes), Master("n1", 1), 0, 3, nodes)


class Nodes:
    """The three nodes of round 4, each with its revocation; while one waits, the others act."""

    def __init__(self, shelf: Shelf) -> None:
        self.clock = VirtualClock()
        self.shelf = shelf
        self.waits = 0
        self.others: list[str] = []
        self.revocations = {
            node: Revocation(shelf.commits(), node, self.clock.now, self.sleep) for node in part("n1").nodes
        }
        self.done: dict[str, list[Revoked]] = {}

    def sleep(self, seconds: float) -> None:
        self.waits += 1
        self.clock.advance(seconds)
        if self.others:
            self.revoke(self.others.pop(0))

    def revoke(self, node: str) -> None:
        self.done[node] = self.revocations[node].revoke(part(node))


def test_each_node_revokes_its_own_ranks_commits_and_waits_for_the_others() -> None:
    shelf = Shelf()
    for node in ("n1", "n2", "n3"):
        shelf.begin(3, node)
    nodes = Nodes(shelf)
    nodes.others = ["n2", "n3"]
    nodes.revoke("n1")
    assert {node: len(found) for node, found in nodes.done.items()} == {"n1": 1, "n2": 1, "n3": 1}


def test_a_lost_nodes_commits_are_shared_out() -> None:
    shelf = Shelf()
    for number in range(30):
        shelf.begin(3, f"lost{number}")
    nodes = Nodes(shelf)
    nodes.others = ["n2", "n3"]
    nodes.revoke("n1")
    shares = [len(found) for found in nodes.done.values()]
    assert sum(shares) == 30 and min(shares) > 0


def test_a_node_that_does_not_get_round_to_it_is_not_waited_for_without_end() -> None:
    shelf = Shelf()
    shelf.begin(3, "n2")
    nodes = Nodes(shelf)
    nodes.revoke("n1")
    assert len(nodes.done["n1"]) == 1
    assert nodes.clock.now() >= OTHERS_S


def test_where_nothing_is_left_no_process_waits() -> None:
    nodes = Nodes(Shelf())
    nodes.revoke("n1")
    assert nodes.waits == 0


def real(tmp_path: Path) -> tuple[Commits, Path]:
    run = RunDirectory(str(tmp_path / "run"))
    Path(run.commits).mkdir(parents=True)
    (tmp_path / "data").mkdir()
    return Commits(PosixFileSystem(), run), tmp_path / "data"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_was_revoked_is_deleted_once_the_round_may_begin(tmp_path: Path, kind: str) -> None:
    import threading

    commits, data = real(tmp_path)
    temporary = Path(temporary_of(str(data / "step-9"), 3, "1"))
    commits.register(PendingCommit(3, "n1", str(temporary), str(data / "step-9")))
    if kind == "file":
        temporary.write_text("half")
    else:
        (temporary / "shards").mkdir(parents=True)
        (temporary / "shards" / "0").write_text("half")
    (data / "step-8").write_text("whole")
    clock = VirtualClock()
    reports: list[str | None] = []
    Revocation(commits, "n1", clock.now, clock.advance).start(part("n1"), reports.append)
    for thread in threading.enumerate():
        if thread.name == "revocation":
            thread.join(30)
    assert reports == [None]
    assert [path.name for path in data.iterdir()] == ["step-8"]
    assert list((tmp_path / "run" / "commits").iterdir()) == []

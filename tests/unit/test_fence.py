"""The fence for the script's own data."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ftslurm
import ftslurm.fencing
import ftslurm.sharedfs.replace
from ftslurm.records.state import RUNNING, State
from ftslurm.rendezvous.closing import close
from ftslurm.rendezvous.fold import begin
from ftslurm.rendezvous.observation import RunSpec
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.commits import Commits
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory


def running(round_: int, attempt: str = "7.0") -> State:
    state = begin(None, RunSpec("r", attempt, ("n1",), 1, 1, 3), "n1", "aa", 0)
    return replace(state, phase=RUNNING, round=round_)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in round 3, and this process as one of its workers."""
    (tmp_path / "state").mkdir()
    (tmp_path / "commits").mkdir()
    monkeypatch.setenv("FTSLURM_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("FTSLURM_ROUND", "3")
    monkeypatch.setenv("FTSLURM_ATTEMPT", "7.0")
    monkeypatch.setenv("FTSLURM_NODE", "n1")
    publish(tmp_path, running(3))
    return tmp_path


def publish(run_dir: Path, state: State) -> None:
    cell = FencedCell(PosixFileSystem(), str(run_dir / "state"))
    newest = cell.get()
    _, won = cell.set(state.encode(), newest.token if newest else None)
    assert won


def test_a_fence_lets_the_current_round_pass_and_its_token_is_the_round(run_dir: Path) -> None:
    ftslurm.fence().check()
    assert ftslurm.fence().token == 3


@pytest.mark.parametrize(
    "state",
    [
        replace(running(3), phase="forming"),
        close(running(3), "stopped", "SIGTERM from outside", 143, 0),
        close(running(3), "failed", "rank 1 on n1 failed", 1, 0),
    ],
)
def test_a_round_that_is_being_stopped_may_commit_as_long_as_there_is_no_newer_one(
    run_dir: Path, tmp_path: Path, state: State
) -> None:
    publish(run_dir, state)
    with ftslurm.commit(tmp_path / "last.pt") as temporary:
        Path(temporary).write_text("the last step")
    assert (tmp_path / "last.pt").read_text() == "the last step"


@pytest.mark.parametrize("state", [running(4), running(3, "7.1"), close(running(4), "stopped", "why", 143, 0)])
def test_a_fence_stops_a_rank_of_which_a_newer_round_or_attempt_exists(run_dir: Path, state: State) -> None:
    guard = ftslurm.fence()
    publish(run_dir, state)
    with pytest.raises(ftslurm.RoundIsOver, match="round 3 of attempt"):
        guard.check()


def test_a_script_may_commit_before_it_asks_for_the_fence(tmp_path: Path) -> None:
    script = "import ftslurm\nwith ftslurm.commit('x') as temporary:\n    open(temporary, 'w')\nftslurm.fence().check()"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FTSLURM_")}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, timeout=60)


def test_outside_ftslurm_a_fence_never_stops_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTSLURM_ROUND", raising=False)
    ftslurm.fence().check()


def test_a_commit_gives_the_name_only_at_its_end(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "last.pt"
    target.write_text("old")
    with ftslurm.commit(target) as temporary:
        Path(temporary).write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


def test_a_commit_of_a_round_that_is_over_leaves_the_checkpoint_as_it_was(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "last.pt"
    target.write_text("of round 4")

    def save_late() -> None:
        with ftslurm.commit(target) as temporary:
            Path(temporary).write_text("of round 3")
            publish(run_dir, running(4))

    with pytest.raises(ftslurm.RoundIsOver):
        save_late()
    assert target.read_text() == "of round 4"
    assert leftovers(tmp_path) == []


def leftovers(directory: Path) -> list[str]:
    """Return the temporaries and registrations in a directory that is the run's and the checkpoints'."""
    hidden = [path.name for path in directory.iterdir() if path.name.startswith(".")]
    return sorted(hidden + [path.name for path in (directory / "commits").iterdir()])


def test_a_rank_that_is_frozen_between_its_check_and_its_rename_is_fenced_out(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "last.pt"
    target.write_text("old")
    rename = os.rename

    def freeze(source: str, to: str) -> None:
        if to == str(target):
            # Meanwhile: the next round forms, and its nodes revoke before they start their ranks.
            monkeypatch.setattr(os, "rename", rename)
            publish(run_dir, running(4))
            revoke(run_dir, 4)
            target.write_text("of round 4")
        rename(source, to)

    def save() -> None:
        with ftslurm.commit(target) as temporary:
            Path(temporary).write_text("of round 3")
            monkeypatch.setattr(os, "rename", freeze)

    with pytest.raises(ftslurm.RoundIsOver, match="round 4"):
        save()
    assert target.read_text() == "of round 4"


def revoke(run_dir: Path, before_round: int) -> None:
    Commits(PosixFileSystem(), RunDirectory(str(run_dir))).revoke(before_round, lambda node: True)


@pytest.mark.parametrize("kind", ["file", "directory", "nothing"])
def test_a_script_that_fails_while_it_saves_leaves_nothing_behind(
    run_dir: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save() -> None:
        with ftslurm.commit("here/step-7") as temporary:
            if kind == "directory":
                Path(temporary).mkdir()
                (Path(temporary) / "rank0").write_text("half")
            elif kind == "file":
                Path(temporary).write_text("half")
            raise ValueError("the script's own")

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="the script's own"):
        save()
    assert list((tmp_path / "here").iterdir()) == []
    assert leftovers(tmp_path) == []


def test_a_run_directory_that_refuses_for_a_moment_costs_no_checkpoint(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter([True, True, True])
    create = PosixFileSystem.create

    def refuse(self: PosixFileSystem, path: str, data: bytes, durable: bool) -> None:
        if next(refusals, False):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        create(self, path, data, durable)

    monkeypatch.setattr(PosixFileSystem, "create", refuse)
    monkeypatch.setattr(ftslurm.fencing, "RETRY_S", 0.0)
    with ftslurm.commit(tmp_path / "last.pt") as temporary:
        Path(temporary).write_text("x")
    assert (tmp_path / "last.pt").read_text() == "x"


def test_a_run_directory_that_goes_on_refusing_is_an_error_of_the_save(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: PosixFileSystem, path: str, data: bytes, durable: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    def save() -> None:
        with ftslurm.commit(tmp_path / "last.pt") as temporary:
            Path(temporary).write_text("x")

    monkeypatch.setattr(PosixFileSystem, "create", refuse)
    monkeypatch.setattr(ftslurm.fencing, "PATIENCE_S", 0.0)
    with pytest.raises(OSError, match="No space left"):
        save()
    assert not (tmp_path / "last.pt").exists()


def test_a_commit_takes_a_directory_too(run_dir: Path, tmp_path: Path) -> None:
    with ftslurm.commit(tmp_path / "step-100") as temporary:
        Path(temporary).mkdir()
        (Path(temporary) / "rank0").write_text("x")
    assert (tmp_path / "step-100/rank0").read_text() == "x"


# Directories in the place of others


def save_directory(target: Path | bytes, content: str) -> None:
    with ftslurm.commit(target) as temporary:
        Path(temporary).mkdir()
        (Path(temporary) / content).write_text(content)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["exchange", "no exchange"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How directories are replaced: at one moment, or as on NFS."""

    def refuse(one: str, other: str) -> None:
        raise OSError(errno.EINVAL, "Invalid argument", one)

    if request.param == "no exchange":
        monkeypatch.setattr(ftslurm.sharedfs.replace, "exchange", refuse)
    return str(request.param)


def test_a_commit_replaces_a_directory_with_all_that_is_in_it(run_dir: Path, tmp_path: Path, way: str) -> None:
    for content in ("first", "second", "third"):
        save_directory(tmp_path / "last", content)
        assert names(tmp_path / "last") == [content]
        assert leftovers(tmp_path) == []


@pytest.mark.parametrize("frozen", ["before the first call", "before the last call"])
def test_a_late_commit_of_a_directory_leaves_the_newer_rounds_as_it_was(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, frozen: str
) -> None:
    target = tmp_path / "last"
    save_directory(target, "of round 2")
    rename, exchange = os.rename, ftslurm.sharedfs.replace.exchange

    def freeze() -> None:
        monkeypatch.setattr(os, "rename", rename)
        publish(run_dir, running(4))
        revoke(run_dir, 4)
        (target / "of round 4").touch()

    def freeze_before_rename(source: str, to: str) -> None:
        if to == str(target) and (frozen == "before the first call" or not target.exists()):
            freeze()
        rename(source, to)

    def freeze_before_exchange(one: str, other: str) -> None:
        if frozen == "before the last call":
            freeze()
        exchange(one, other)

    monkeypatch.setattr(os, "rename", freeze_before_rename)
    if way == "exchange":
        monkeypatch.setattr(ftslurm.sharedfs.replace, "exchange", freeze_before_exchange)
    with pytest.raises(ftslurm.RoundIsOver, match="round 4"):
        save_directory(target, "of round 3")
    assert names(target) == ["of round 2", "of round 4"]


@pytest.mark.parametrize("step", ["before the first", "between them", "after the second"])
def test_what_a_kill_leaves_of_a_replacement_in_two_steps_is_put_in_order_when_the_round_is_over(
    run_dir: Path, tmp_path: Path, step: str
) -> None:
    target = tmp_path / "last"
    save_directory(target, "old")
    script = f"""
import errno, os, sys
import ftslurm.fencing, ftslurm.sharedfs.replace
def refuse(one, other):
    raise OSError(errno.EINVAL, "", one)
ftslurm.sharedfs.replace.exchange = refuse
ftslurm.sharedfs.replace.os = os_ = type(os)("os")
os_.__dict__.update(os.__dict__)
def rename(source, to):
    if {step!r} == "before the first" and to.endswith(".old"):
        os._exit(9)
    if {step!r} == "between them" and not os.path.exists(to) and not to.endswith(".old"):
        os._exit(9)
    os.rename(source, to)
def remove(path):
    os._exit(9)
os_.rename = rename
ftslurm.fencing.remove = remove
with ftslurm.commit({str(target)!r}) as temporary:
    os.mkdir(temporary)
    open(temporary + "/new", "w").close()
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 9
    assert target.exists() == (step != "between them")
    commits = Commits(PosixFileSystem(), RunDirectory(str(run_dir)))
    for revoked in commits.revoke(4, lambda node: True)[0]:
        assert ftslurm.sharedfs.replace.remove(revoked.path)
        commits.finished(revoked.registration)
    assert names(target) == ["new" if step == "after the second" else "old"]
    assert leftovers(tmp_path) == []


def test_where_neither_directory_can_be_given_the_name_the_error_names_the_places_of_both(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "last"
    save_directory(target, "old")
    rename = os.rename

    def fail(source: str, to: str) -> None:
        if to == str(target) and not target.exists():
            raise OSError(errno.EIO, "Input/output error", source)
        rename(source, to)

    def refuse(one: str, other: str) -> None:
        raise OSError(errno.EINVAL, "Invalid argument", one)

    monkeypatch.setattr(ftslurm.sharedfs.replace, "exchange", refuse)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="the old directory is now .*, the new one ") as caught:
        save_directory(target, "new")
    old, new = str(caught.value.strerror).rpartition("now ")[2].split(", the new one ")
    assert (names(Path(old)), names(Path(new))) == (["old"], ["new"])
    revoke(run_dir, 4)
    assert names(Path(new)) == ["new"]


@pytest.mark.parametrize("old", ["file", "directory"])
def test_a_file_never_replaces_a_directory_nor_a_directory_a_file(run_dir: Path, tmp_path: Path, old: str) -> None:
    target = tmp_path / "last"
    if old == "file":
        target.write_text("old")
    else:
        save_directory(target, "old")

    def save() -> None:
        with ftslurm.commit(target) as temporary:
            if old == "file":
                Path(temporary).mkdir()
            else:
                Path(temporary).write_text("new")

    with pytest.raises((IsADirectoryError, NotADirectoryError)):
        save()
    assert target.read_text() == "old" if old == "file" else names(target) == ["old"]
    assert leftovers(tmp_path) == []


# Paths, as `open` takes them


def save_file(path: str | bytes | os.PathLike[str], content: str) -> None:
    with ftslurm.commit(path) as temporary:
        Path(temporary).write_text(content)


def test_a_path_may_be_bytes_also_such_that_are_no_text(run_dir: Path, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/last-\xff.pt"
    save_file(path, "x")
    with open(path) as file:
        assert file.read() == "x"


@pytest.mark.parametrize("name", ["x" * 255, "x" * 230, "é" * 127])
def test_a_name_as_long_as_the_filesystem_allows_can_be_committed_and_revoked(
    run_dir: Path, tmp_path: Path, name: str
) -> None:
    save_file(tmp_path / name, "x")
    assert (tmp_path / name).read_text() == "x"

    def save_late() -> None:
        with ftslurm.commit(tmp_path / name) as temporary:
            Path(temporary).write_text("late")
            publish(run_dir, running(4))
            revoke(run_dir, 4)

    with pytest.raises(FileNotFoundError):
        save_late()
    assert (tmp_path / name).read_text() == "x"


@pytest.mark.parametrize("leads", ["to a file", "to a directory", "nowhere yet"])
def test_a_symbolic_link_stays_and_what_it_leads_to_is_written(run_dir: Path, tmp_path: Path, leads: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "real", tmp_path / "last"
    link.symlink_to("elsewhere/real")
    if leads == "to a directory":
        save_directory(target, "old")
        save_directory(link, "new")
        assert names(target) == ["new"]
    else:
        if leads == "to a file":
            target.write_text("old")
        save_file(link, "new")
        assert target.read_text() == "new"
    assert link.is_symlink()
    assert names(tmp_path / "elsewhere") == ["real"]


def test_a_link_that_leads_to_itself_and_an_empty_path_are_errors_as_for_open(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", ""):
        with pytest.raises(OSError) as ours:
            save_file(path, "x")
        with pytest.raises(OSError) as opens:
            os.close(os.open(path, os.O_WRONLY))
        assert ours.value.errno == opens.value.errno

"""Publish and compare-and-swap, their process killed between every two system calls."""

from __future__ import annotations

import itertools
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftslurm.sharedfs import filesystem
from ftslurm.sharedfs.cell import FencedCell, Versioned
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import publish, publish_once

OLD, NEW, OTHER = (content * 1000 for content in (b"old ", b"new ", b"other "))
WON, LOST, FAILED = 0, 1, 2
CALLS = frozenset(("open", "write", "fsync", "close", "fstat", "read", "link", "rename", "unlink", "listdir"))


class StoppingCalls:
    """The module `os` for the filesystem, whose caller stops before the call number `stop_at`, from 0.

    A write writes half of what it is given, so that there are stops within a file's content.
    """

    def __init__(self, stop_at: int) -> None:
        self._left = stop_at

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            self._left -= 1
            if name == "write":
                data = arguments[1]
                arguments = (arguments[0], data[: len(data) // 2 + 1])
            return real(*arguments, **options)

        return call


def stopped(work: Callable[[], bool], stop_at: int) -> int | None:
    """Run `work` in a child until it stops before its system call number `stop_at`; None: it came to its end."""
    pid = os.fork()
    if pid == 0:
        code = FAILED
        try:
            filesystem.os = StoppingCalls(stop_at)  # type: ignore[attr-defined]
            code = WON if work() else LOST
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return pid
    assert os.waitstatus_to_exitcode(status) in (WON, LOST)
    return None


def ended(pid: int, number: int) -> int:
    """Send the signal to the child and return how it ended."""
    os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_at_every_point(work: Callable[[], bool], before: Callable[[], None], after: Callable[[str], None]) -> int:
    """Kill `work` between every two of its system calls, calling `before` and `after` each time; return how often."""
    for point in itertools.count():
        before()
        pid = stopped(work, point)
        if pid is None:
            after("at its end")
            return point
        try:
            after(f"stopped before call {point}")
        finally:
            assert ended(pid, signal.SIGKILL) == -signal.SIGKILL
        after(f"killed before call {point}")
    raise AssertionError("unreachable")


def clear(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def visible(directory: Path) -> list[str]:
    """Return the names that are not hidden, having held the hidden ones to be one temporary or none."""
    names = sorted(path.name for path in directory.iterdir())
    hidden = [name for name in names if name.startswith(".")]
    assert len(hidden) <= 1, hidden
    assert all(name.endswith(".tmp") for name in hidden), hidden
    return [name for name in names if not name.startswith(".")]


def filled(directory: Path, count: int) -> None:
    """Put `count` generations into the cell, the last with OLD."""
    clear(directory)
    for token in range(count):
        assert FencedCell(PosixFileSystem(), str(directory)).set(OLD, token or None)[1]


def win(directory: Path, count: int) -> bool:
    """Set NEW as the successor of generation `count` and return whether this writer won."""
    newest, won = FencedCell(PosixFileSystem(), str(directory)).set(NEW, count or None)
    assert newest.value == (NEW if won else OTHER)
    return won


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_killed_set_leaves_the_old_or_the_new_value_and_the_next_writer_goes_on(tmp_path: Path, count: int) -> None:
    old = Versioned(OLD, count) if count else None
    new = Versioned(NEW, count + 1)
    known = {f"{token + 1:012d}.json" for token in range(count + 1)} | {"current"}
    seen = []

    def cell() -> FencedCell:
        return FencedCell(PosixFileSystem(), str(tmp_path))

    def look(where: str) -> None:
        value = cell().get()
        assert value in (old, new), where
        newer = cell().get_newer(count)
        assert newer == (new if value == new else None), where
        assert cell().get_newer(count, thorough=False) in (None, newer), where
        assert set(visible(tmp_path)) <= known, where
        seen.append(value)

    def after(where: str) -> None:
        look(where)
        if where.startswith("stopped"):
            return
        value = cell().get()
        following = Versioned(OTHER, (value.token if value else 0) + 1)
        assert cell().set(OTHER, value.token if value else None) == (following, True), where
        assert cell().get() == following, where

    assert kill_at_every_point(lambda: win(tmp_path, count), lambda: filled(tmp_path, count), after) >= 15
    # One call makes all the difference: all points before it leave the old value, all after it the new one.
    assert [value for value, _ in itertools.groupby(seen)] == [old, new]


@pytest.mark.parametrize("count", [0, 2])
def test_a_set_that_loses_changes_nothing_wherever_it_is_killed(tmp_path: Path, count: int) -> None:
    def before() -> None:
        filled(tmp_path, count)
        assert FencedCell(PosixFileSystem(), str(tmp_path)).set(OTHER, count or None)[1]

    def after(where: str) -> None:
        assert FencedCell(PosixFileSystem(), str(tmp_path)).get() == Versioned(OTHER, count + 1), where
        assert len(visible(tmp_path)) == count + 2, where

    assert kill_at_every_point(lambda: not win(tmp_path, count), before, after) >= 15


@pytest.mark.parametrize("count", [0, 2])
def test_a_writer_stopped_anywhere_wins_only_what_no_other_won_meanwhile(tmp_path: Path, count: int) -> None:
    winners = []
    for point in itertools.count():
        filled(tmp_path, count)
        pid = stopped(lambda: win(tmp_path, count), point)
        if pid is None:
            break
        try:
            newest, rival_won = FencedCell(PosixFileSystem(), str(tmp_path)).set(OTHER, count or None)
        finally:
            returncode = ended(pid, signal.SIGCONT)
        assert newest == Versioned(OTHER if rival_won else NEW, count + 1), point
        assert returncode == (LOST if rival_won else WON), point
        assert FencedCell(PosixFileSystem(), str(tmp_path)).get() == newest, point
        winners.append(rival_won)
    assert [rival_won for rival_won, _ in itertools.groupby(winners)] == [True, False]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("old", [None, OLD])
def test_a_killed_publish_leaves_the_old_or_the_new_content(tmp_path: Path, old: bytes | None, durable: bool) -> None:
    path = tmp_path / "record.json"
    seen = set()

    def before() -> None:
        clear(tmp_path)
        if old is not None:
            path.write_bytes(old)

    def after(where: str) -> None:
        content = path.read_bytes() if path.exists() else None
        assert content in (old, NEW), where
        seen.add(content)
        assert set(visible(tmp_path)) <= {path.name}, where
        if not where.startswith("stopped"):
            publish(PosixFileSystem(), str(path), OTHER)
            assert path.read_bytes() == OTHER, where

    def work() -> bool:
        publish(PosixFileSystem(), str(path), NEW, durable)
        return True

    assert kill_at_every_point(work, before, after) >= 12
    assert seen == {old, NEW}


@pytest.mark.parametrize("old", [None, OLD])
def test_a_killed_publish_once_leaves_what_won_or_nothing(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "run.json"
    seen = set()

    def before() -> None:
        clear(tmp_path)
        if old is not None:
            path.write_bytes(old)

    def after(where: str) -> None:
        content = path.read_bytes() if path.exists() else None
        assert content in ((old,) if old is not None else (None, NEW)), where
        seen.add(content)
        assert set(visible(tmp_path)) <= {path.name}, where
        if not where.startswith("stopped"):
            publish_once(PosixFileSystem(), str(path), OTHER)
            assert path.read_bytes() == (content if content is not None else OTHER), where

    def work() -> bool:
        publish_once(PosixFileSystem(), str(path), NEW)
        return True

    assert kill_at_every_point(work, before, after) >= 12
    assert seen == ({None, NEW} if old is None else {old})

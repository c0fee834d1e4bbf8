"""The lock that a killed rank leaves in the build directory of a C++ extension, by torch's own class and without it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import test_run
from test_run import Start

from ftslurm.agent.build_locks import NOTES, BuildLocks

start = test_run.start

BUILDS = """
import os, sys, time
from torch.utils.file_baton import FileBaton
if {below_a_shell} and "BELOW" not in os.environ:
    import subprocess
    sys.exit(subprocess.call([sys.executable, __file__], env=dict(os.environ, BELOW="1")))
baton = FileBaton("ext/lock")
first = os.environ["FTSLURM_ROUND"] == "1"
if first and os.environ["RANK"] == "1":
    while not os.path.exists("ext/lock"):
        time.sleep(0.01)
    sys.exit(1)
if baton.try_acquire():
    time.sleep(600 if first else 0)
    baton.release()
else:
    baton.wait()
"""


@pytest.mark.parametrize("below_a_shell", [False, True])
def test_ranks_of_the_next_round_do_not_wait_for_one_that_was_killed_while_it_built(
    start: Start, tmp_path: Path, below_a_shell: bool
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "ext").mkdir()
    run = start(BUILDS.format(below_a_shell=below_a_shell), "--nproc-per-node", "2", "--grace", "2")
    assert run.wait() == 0, run.err
    assert f"removed {tmp_path}/ext/lock, which a killed rank left while it built a C++ extension" in run.err


KILLED = """
import os, time
from torch.utils.file_baton import FileBaton
baton = FileBaton("ext/lock")
if os.environ["FTSLURM_ROUND"] != "1":
    if baton.try_acquire():
        baton.release()
    else:
        baton.wait()
elif os.environ["RANK"] == "0":
    baton.try_acquire()
    time.sleep(600)
else:
    baton.wait()
"""


@pytest.mark.parametrize("victim", ["rank", "agent"])
def test_nor_for_one_that_another_process_killed_alone_or_with_its_agent(
    start: Start, tmp_path: Path, victim: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "ext").mkdir()
    run = start(KILLED, "--nproc-per-node", "2", TMPDIR=str(tmp_path))
    run.until(lambda: any("lock" in path.read_text() for path in tmp_path.glob(f"ftslurm-*/{NOTES}")))
    (node,) = run.run_dir.glob("rounds/000001/nodes/*.json")
    agent = int(json.loads(node.read_text())["agent_pid"])
    builder = next(pid for pid, _ in run.marked() if holds(pid, tmp_path / "ext" / "lock"))
    os.kill(builder if victim == "rank" else agent, signal.SIGKILL)
    run.until(lambda: "which a killed rank left while it built a C++ extension" in run.err)
    assert run.wait() == 0, run.err


def holds(pid: int, path: Path) -> bool:
    try:
        return str(path) in {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False


def test_the_lock_of_a_build_that_outlives_its_rank_goes_with_it(
    locks: BuildLocks, lines: list[str], tmp_path: Path
) -> None:
    ninja = tmp_path / "ninja"
    shutil.copy("/bin/sleep", ninja)
    (tmp_path / "lock").touch()
    with subprocess.Popen([str(ninja), "600"], cwd=tmp_path) as build:
        until(lambda: Path(f"/proc/{build.pid}/comm").read_text().strip() == "ninja")
        locks.scan_builders([build.pid, os.getpid()])
        build.kill()
    locks.remove()
    until(lambda: not (tmp_path / "lock").exists())


HOLDS = """
import fcntl, os, sys, time
path, flags, locks = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "locks"
fd = os.open(path, flags | os.O_CREAT, 0o600)
if locks:
    fcntl.flock(fd, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""
READ, WRITE = "0", "2"


@contextmanager
def holder(path: Path, flags: str = READ, locks: str = "") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDS, str(path), flags, locks]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def locks(lines: list[str], tmp_path: Path) -> BuildLocks:
    return BuildLocks(str(tmp_path), time.monotonic, lines.append)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def removed_after(locks: BuildLocks, lines: list[str], other: Path) -> None:
    """Wait until the locks were removed, by one that certainly is."""
    with holder(other) as process:
        locks.scan([process.pid])
    locks.remove()
    until(lambda: any(str(other) in line for line in lines))


def test_what_a_dead_process_held_at_the_last_read_goes_also_if_its_zombie_was_examined(
    locks: BuildLocks, lines: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        locks.scan([process.pid])
        process.kill()
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ")[1].startswith("Z"))
        locks.scan([process.pid])
    locks.remove()
    until(lambda: not path.exists())


@pytest.mark.parametrize(
    ("name", "flags", "held"), [("lock", WRITE, ""), ("lock", READ, "locks"), ("lockfile", READ, "")]
)
def test_other_programs_lock_files_stay(
    locks: BuildLocks, lines: list[str], tmp_path: Path, name: str, flags: str, held: str
) -> None:
    path = tmp_path / "other" / name
    path.parent.mkdir()
    with holder(path, flags, held) as process:
        locks.scan([process.pid])
    removed_after(locks, lines, tmp_path / "lock")
    assert path.exists()


def test_a_lock_that_another_process_has_taken_since_stays(locks: BuildLocks, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "other" / "lock"
    path.parent.mkdir()
    with holder(path) as process:
        locks.scan([process.pid])
        path.rename(path.with_name("done"))
        path.touch()
    removed_after(locks, lines, tmp_path / "lock")
    assert path.exists()


def test_a_lock_with_something_in_it_is_no_lock(locks: BuildLocks, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "other" / "lock"
    path.parent.mkdir()
    path.write_text("mine")
    with holder(path) as process:
        locks.scan([process.pid])
    removed_after(locks, lines, tmp_path / "lock")
    assert path.exists()

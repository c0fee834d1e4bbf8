"""A shared directory that stops answering: only what waits for it waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_run
from sample_runs.builder import RunBuilder
from test_run import Start, Started

start = test_run.start

SCRIPTS = Path(__file__).parents[2] / "scripts"
STEPPING = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (mark("stop requested"), os._exit(0)))
log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def mark(what): os.write(log, f"{time.monotonic()} {what} {os.environ['FTSLURM_ROUND']}\\n".encode())
for step in range(6000):
    mark("step")
    time.sleep(0.05)
    if os.path.exists("done"):
        break
"""


def faulty_mount(*arguments: object) -> subprocess.Popen[str]:
    """Mount a directory by `chaos_parts.faulty_mount`; skip the test where the system refuses the mount."""
    command = [sys.executable, "-m", "chaos_parts.faulty_mount", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    if server.stdout.readline() != "mounted\n":
        err = server.communicate()[1]
        assert "Operation not permitted" in err, err
        pytest.skip(f"FUSE cannot be used here: {err.strip().splitlines()[-1]}")
    return server


class Directory:
    """A mounted directory that can be made to hang."""

    def __init__(self, base: Path) -> None:
        self.path = base / "shared"
        self._control = base / "hang"
        (base / "backing").mkdir()
        self.path.mkdir()
        self._server = faulty_mount(base / "backing", self.path, self._control)

    def hang(self, how: str = "") -> None:
        self._control.write_text(f"hang {how}")

    def fault(self, kind: str) -> None:
        """Begin a fault of `chaos_parts.faulty_mount`."""
        self._control.write_text(kind)

    def answer(self) -> None:
        self._control.unlink(missing_ok=True)

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Directory]:
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        pytest.skip("a hanging directory needs /dev/fuse and root")
    directory = Directory(tmp_path)
    yield directory
    directory.close()


def marks(run: Started, what: str) -> list[float]:
    path = run.directory / "log"
    return [float(line.split()[0]) for line in (path.read_text() if path.exists() else "").splitlines() if what in line]


def going(start: Start, shared: Directory) -> Started:
    """Return a run of two nodes with two workers each, under way."""
    nodes = ("--local-nodes", "2", "--nproc-per-node", "2", "--heartbeat", "0.2", "--node-timeout", "2")
    run = start(STEPPING, *nodes, "--grace", "2", "--max-restarts", "1", FTSLURM_SHARED_DIR=str(shared.path))
    run.until(lambda: len(marks(run, "step")) > 20)
    return run


def test_workers_go_on_while_the_directory_hangs_and_no_node_is_lost(start: Start, shared: Directory) -> None:
    run = going(start, shared)
    shared.hang()
    time.sleep(5)
    assert time.monotonic() - max(marks(run, "step")) < 1
    shared.answer()
    (run.directory / "done").touch()
    assert run.wait(30) == 0, run.err
    assert "succeeded: 1 round" in run.out, run.out


def test_sigterm_stops_the_workers_and_the_agents_leave_while_the_directory_hangs(
    start: Start, shared: Directory
) -> None:
    run = going(start, shared)
    shared.hang()
    time.sleep(0.5)
    signalled = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    # All but the one that prints the report from the directory.
    run.until(lambda: len(run.marked()) <= 2, 25)
    assert len(marks(run, "stop requested")) == 4
    assert max(marks(run, "stop requested")) - signalled < 2
    shared.answer()
    # The agents' last records found no way into the directory, so the report cannot know them.
    assert run.wait(20) in (1, 143), run.err + run.out
    assert run.err.count("has not responded") == 2, run.err
    assert "Traceback" not in run.err
    assert run.marked() == []


def test_a_worker_that_fails_while_the_directory_hangs_is_reported_when_it_answers_again(
    start: Start, shared: Directory
) -> None:
    run = going(start, shared)
    shared.hang()
    worker = next(pid for pid, line in run.marked() if "boot/worker" in line or "ftslurm.worker" in line)
    os.kill(worker, signal.SIGKILL)
    time.sleep(1)
    shared.answer()
    run.until(lambda: "round 2: 4 ranks" in run.err, 20)
    assert "killed by SIGKILL; restart 1 of 1" in run.err
    (run.directory / "done").touch()
    assert run.wait(20) == 0, run.err


def test_an_agent_that_prepares_a_round_while_the_directory_hangs_still_leaves(start: Start, shared: Directory) -> None:
    run = going(start, shared)
    worker = next(pid for pid, line in run.marked() if "boot/worker" in line or "ftslurm.worker" in line)
    os.kill(worker, signal.SIGKILL)
    shared.hang()
    time.sleep(1)
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: len(run.marked()) <= 2, 25)
    shared.answer()
    assert run.wait(20) in (1, 143), run.err + run.out


def test_a_worker_that_cannot_be_killed_does_not_keep_an_agent_that_was_requested_to_leave(
    start: Start, shared: Directory
) -> None:
    shared.hang("hard")
    script = f"open('up0', 'w').close()\nopen({str(shared.path / 'checkpoint')!r}, 'w')"
    run = start(script, "--grace", "0.5")
    run.until((run.directory / "up0").exists)
    time.sleep(0.3)
    run.process.terminate()
    try:
        # The guardian tries for another ten seconds.
        assert run.wait(40) == 143, run.err
        assert "killed, but hanging in the kernel" in run.err
        assert "SIGTERM from outside" in run.out
    finally:
        shared.answer()
    run.until(lambda: run.marked() == [], 5)


def test_commands_that_read_a_hanging_directory_end_with_one_line(shared: Directory) -> None:
    run = RunBuilder(shared.path).round().fail(1, ValueError("x")).stop().close("failed", "x").write()
    shared.hang()
    where = ["--shared-dir", str(shared.path)]
    commands = [
        ["status", str(run)],
        ["status", "--watch", "1", *where],
        ["report", str(run)],
        ["report", "123", "--offline", *where],
        ["report", "--logs", str(run)],
        ["logs", str(run)],
        ["logs", "-f", *where],
        ["nodes", "list", *where],
        ["nodes", "exclude", "n1", *where],
    ]
    began = time.monotonic()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-m", "ftslurm.cli", *command], **pipes) for command in commands]
    doctor = subprocess.Popen([sys.executable, "-m", "ftslurm.cli", "doctor", str(shared.path)], **pipes)
    try:
        for command, process in zip(commands, started, strict=True):
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out, err.count("\n")) == (1, "", 1), (command, out, err)
            assert err.startswith(f"ftslurm {command[0]}: {shared.path}"), err
            assert "has not answered for 8 s: its filesystem hangs" in err, err
        out, _ = doctor.communicate(timeout=60)
        assert doctor.returncode == 1
        assert "its filesystem hangs" in out
        assert time.monotonic() - began < 25
    finally:
        shared.answer()
        for process in (*started, doctor):
            process.kill()
            process.wait()

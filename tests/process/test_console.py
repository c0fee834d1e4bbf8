"""What the user sees, written in the background whatever the files and the terminal do."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
import test_run
from test_run import Start

from ftslurm.agent import output
from ftslurm.agent.output import Console
from ftslurm.kernel import FileNotifier

start = test_run.start


def test_a_log_file_that_hangs_does_not_hold_up_the_agents_own_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "hangs")
    console = Console("n1")
    console.follow(str(tmp_path / "hangs"), "", 1)
    console.log("the shared directory has not responded")
    console.drain(0.3)
    assert capfd.readouterr().err == "ftslurm: n1: the shared directory has not responded\n"


def test_output_is_shown_without_inotify_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: FileNotifier, path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileNotifier, "add", refused)
    console = Console("n1")
    (tmp_path / "log").write_text("one\n")
    console.follow(str(tmp_path / "log"), "[rank 0] ", 1)
    console.drain(5)
    with (tmp_path / "log").open("a") as file:
        file.write("two\n")
    time.sleep(2 * output.POLL_S)
    assert capfd.readouterr().out == "[rank 0] one\n[rank 0] two\n"


def test_a_file_that_never_stops_growing_leaves_the_others_their_turn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quiet").write_text("seen\n")
    monkeypatch.setattr(output, "LONGEST_LINE", 1 << 10)
    console = Console("n1")
    console.follow("/dev/zero", "", 1)
    console.follow(str(tmp_path / "quiet"), "quiet: ", 2)
    end = time.monotonic() + 10
    while (seen := capfd.readouterr().err) == "" and time.monotonic() < end:
        time.sleep(0.05)
    assert seen == "quiet: seen\n"
    # The thread goes on for ever: let it go on into nothing.
    monkeypatch.setattr(output, "_read", lambda fd: b"")


def test_a_hundred_megabytes_without_a_newline_are_copied_in_bounded_memory(start: Start) -> None:
    script = """
import os, re
for _ in range(100):
    os.write(1, bytes(range(11, 256)) * 4280)
agent = open(f"/proc/{os.getppid()}/status").read()
open("peak", "w").write(re.search(r"VmHWM:\\s+(\\d+)", agent)[1])
"""
    run = start(script)
    assert run.wait(60) == 0, run.err
    log = run.run_dir / "rounds/000001/ranks/00000/stdout.log"
    assert log.stat().st_size == 100 * 245 * 4280
    assert int((run.directory / "peak").read_text()) < 60_000
    assert len(run.err) < 10_000

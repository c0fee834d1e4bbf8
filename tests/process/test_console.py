"""What the user sees, written in the background whatever the files and the terminal do."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_run
from test_run import Start

from ftslurm import terminal
from ftslurm.agent import output
from ftslurm.agent.output import Console, LinesAtOnce
from ftslurm.agent.terminal import Terminal, last_state
from ftslurm.kernel import FileNotifier

start = test_run.start


class Seen:
    """What has been written to stdout and stderr so far; unlike `capfd`, it may be read while a thread writes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self) -> str:
        return self._path.read_bytes().decode()

    def until(self, enough: Callable[[str], bool], seconds: float = 30) -> str:
        """Return the text once it is enough, at the latest after some seconds."""
        end = time.monotonic() + seconds
        while not enough(seen := self.text()) and time.monotonic() < end:
            time.sleep(0.05)
        return seen


@contextlib.contextmanager
def captured(directory: Path) -> Iterator[Seen]:
    # Not a fixture: pytest's own capture takes the descriptors back between a test's set-up and its body.
    saved = {fd: os.dup(fd) for fd in (1, 2)}
    with (directory / "seen").open("ab", buffering=0) as file:
        for fd in saved:
            os.dup2(file.fileno(), fd)
    try:
        yield Seen(directory / "seen")
    finally:
        for fd, copy in saved.items():
            os.dup2(copy, fd)
            os.close(copy)


def test_a_log_file_that_hangs_does_not_hold_up_the_agents_own_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "hangs")
    console = Console("n1")
    console.follow(str(tmp_path / "hangs"), "", 1)
    console.log("the shared directory has not responded")
    console.drain(0.3)
    assert capfd.readouterr().err == "ftslurm: n1: the shared directory has not responded\n"


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (terminal.ERROR, ["error"]),
        (terminal.WARNING, ["error", "warning"]),
        (terminal.INFO, ["error", "warning", "info"]),
        (terminal.DEBUG, ["error", "warning", "info", "debug"]),
    ],
)
def test_lines_below_the_level_are_left_out_and_the_ranks_output_never_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, level: int, shown: list[str]
) -> None:
    monkeypatch.setattr(terminal, "_least_level", level)
    (tmp_path / "log").write_text("step 1\n")
    console = Console("n1")
    console.follow(str(tmp_path / "log"), "[rank 0] ", 1)
    # When the console has failed, its lines are written at once.
    for lines in (console, LinesAtOnce("n1")):
        lines.error("error")
        lines.warn("warning")
        lines.log("info")
        lines.debug("debug")
        console.drain(5)
    out, err = capfd.readouterr()
    assert out == "[rank 0] step 1\n"
    assert err.splitlines() == [f"ftslurm: n1: {text}" for text in (*shown, *shown)]


def test_a_reader_that_is_slow_gets_all_and_of_one_that_stands_still_the_files_are_named(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(30_000))
    (tmp_path / "log").write_text(text)
    reads, writes = os.pipe()
    program = (
        "import sys; from ftslurm.agent.output import Console; console = Console('n1'); "
        f"console.follow({str(tmp_path / 'log')!r}, '', 1); console.drain(0.5); import os; os._exit(0)"
    )
    for slow in (True, False):
        with subprocess.Popen([sys.executable, "-c", program], stdout=writes, stderr=subprocess.PIPE) as console:
            seen = b""
            while slow and len(seen) < len(text):
                time.sleep(0.05)
                seen += os.read(reads, 1 << 13)
            assert console.stderr is not None
            err = console.stderr.read().decode()
        if slow:
            assert seen.decode() == text
            assert err == ""
        else:
            assert "the output is blocked: not shown here: " in err and str(tmp_path / "log") in err
    os.close(reads)
    os.close(writes)


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


def test_a_line_of_the_agent_comes_after_what_the_ranks_had_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    console = Console("n1")
    for number in range(20):
        path = tmp_path / f"log{number}"
        path.touch()
        console.follow(str(path), "", 2)
        console.drain(5)
        path.write_text(f"last of {number}\n")
        console.log(f"rank {number} failed")
    console.drain(5)
    expected = [line for n in range(20) for line in (f"last of {n}", f"ftslurm: n1: rank {n} failed")]
    assert capfd.readouterr().err.splitlines() == expected


@contextlib.contextmanager
def endless(directory: Path) -> Iterator[str]:
    """Give a file that takes long to read: sparse."""
    path = directory / "endless"
    path.touch()
    os.truncate(path, 1 << 31)
    try:
        yield str(path)
    finally:
        # The thread would go on through further tests.
        os.truncate(path, 0)


def test_a_line_of_the_agent_does_not_wait_for_a_file_that_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "LONGEST_LINE", 1 << 10)
    with captured(tmp_path) as seen, endless(tmp_path) as path:
        console = Console("n1")
        console.follow(path, "", 1)
        for number in range(50):
            console.log(f"line {number}")
        shown = seen.until(lambda text: "line 49\n" in text)
    assert [line for line in shown.splitlines() if "line" in line] == [f"ftslurm: n1: line {n}" for n in range(50)]


def test_a_file_that_never_stops_growing_leaves_the_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quiet").write_text("last\n")
    monkeypatch.setattr(output, "LONGEST_LINE", 1 << 10)
    with captured(tmp_path) as seen, endless(tmp_path) as path:
        console = Console("n1")
        console.follow(path, "", 1)
        console.follow(str(tmp_path / "quiet"), "quiet: ", 2)
        assert "quiet: last\n" in seen.until(lambda text: "quiet: last\n" in text)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", b"plain"),
        (b"from Windows\r", b"from Windows"),
        (b"\r 10%|#   |\r 20%|##  |", b" 20%|##  |"),
        (b"step 1\rstep 2\r", b"step 2"),
        (b"\r\r", b""),
        (b"\x1b[31mred\x1b[0m", b"\x1b[31mred\x1b[0m"),
        (b"\n\x1b[Aone bar\x1b[K\x1b[2K", b"\none bar"),
        (b"", b""),
    ],
)
def test_of_a_progress_bar_its_last_state_is_shown(line: bytes, shown: bytes) -> None:
    assert last_state(line) == shown


def test_a_progress_bar_is_shown_while_it_goes_on_but_not_each_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftslurm.agent.terminal.BAR_IN_FILE_S", 0.5)
    path = tmp_path / "log"
    path.write_text("\r  0%|    | 0/9\r 11%|#   | 1/9")
    with captured(tmp_path) as seen:
        console = Console("n1")
        console.follow(str(path), "[rank 0] ", 1)
        first = seen.until(lambda text: "\n" in text)
        assert first == "[rank 0]  11%|#   | 1/9\n"
        began = time.monotonic()
        with path.open("a") as file:
            for done in range(200):
                file.write(f"\r {done}%")
                file.flush()
                time.sleep(0.01)
            states = seen.text().count("\n") - 1
            assert 1 < states <= 2 + (time.monotonic() - began) / 0.5
            file.write("\rdone\nnext\n")
        console.drain(5)
        shown = seen.text()
    assert shown.endswith("[rank 0] done\n[rank 0] next\n")
    assert all(line.startswith("[rank 0] ") for line in shown.splitlines())
    assert "\r" not in shown


def test_on_a_terminal_a_progress_bar_is_one_line_and_other_lines_take_its_place() -> None:
    main, other = os.openpty()
    saved = os.dup(2)
    os.dup2(other, 2)
    try:
        terminal = Terminal()
        terminal.show_bar(2, b"[rank 0] 1%")
        terminal.show_bar(2, b"[rank 0] 2%")
        terminal.write(2, b"ftslurm: n1: round 2\n")
        seen = b""
        while not seen.endswith(b"\n"):
            seen += os.read(main, 4096)
        assert seen == b"[rank 0] 1%\r\x1b[K[rank 0] 2%\r\x1b[Kftslurm: n1: round 2\r\n"
    finally:
        os.dup2(saved, 2)
        for fd in (saved, main, other):
            os.close(fd)


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

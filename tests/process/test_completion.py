"""The completion scripts in real shells, as a user types."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

CLI = [sys.executable, "-m", "ftslurm"]
SHELLS = {
    "bash": (["bash", "--norc", "-i"], "PS1='ready> '; bind 'set bell-style none'; source {script}\n"),
    "zsh": (["zsh", "-f", "-i"], "PS1='ready> '; autoload -U compinit; compinit -u -D; source {script}\n"),
    "fish": (["fish", "--no-config", "-i"], "function fish_prompt; echo -n 'ready> '; end; source {script}\n"),
}
CASES = [
    ("ftslurm hist", "history"),
    ("ftslurm status --wat", "--watch"),
    ("ftslurm run --rejoin at-", "at-once"),
    ("ftsrun --max-rest", "--max-restarts"),
    ("ftslurm nodes pass", "pass-on"),
    ("ftslurm completion zs", "zsh"),
    ("ftslurm logs job-47", "job-4711"),
    ("ftslurm run train.p", "train.py"),
    ("ftslurm report --form", "--format"),
    ("ftslurm report --format markd", "markdown"),
]


class Terminal:
    """A shell on a terminal."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TERM": "xterm", "COLUMNS": "200"}
            os.execvpe(command[0], command, environment)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, pattern: str, seconds: float = 30) -> None:
        """Read until the screen has the pattern since the last call; the bound is for a hang."""
        end = time.monotonic() + seconds
        self.seen = ""
        while not re.search(pattern, self.seen):
            assert time.monotonic() < end, f"{pattern!r} not in {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                data = os.read(self.fd, 65536)
                # Some shells ask where the cursor is.
                if b"\x1b[6n" in data:
                    os.write(self.fd, b"\x1b[1;1R")
                if b"\x1b[c" in data or b"\x1b[0c" in data:
                    os.write(self.fd, b"\x1b[?1;2c")
                text = re.sub(
                    r"\x1b\][^\x07]*\x07|\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[()=>][0-9A-B]?|\x08",
                    "",
                    data.decode(errors="replace"),
                )
                self.seen += text

    def close(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_commands_options_values_and_runs_are_completed(shell: str, tmp_path: Path) -> None:
    command, prepare = SHELLS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(subprocess.run([*CLI, "completion", shell], capture_output=True, text=True, check=True).stdout)
    (tmp_path / "ftslurm-runs" / "job-4711").mkdir(parents=True)
    (tmp_path / "train.py").touch()
    terminal = Terminal(command, tmp_path)
    try:
        terminal.until(r"[>#$%]\s*$")
        terminal.type(prepare.format(script=script))
        terminal.until(r"ready>\s*$")
        for typed, expected in CASES:
            terminal.type(typed)
            terminal.until(re.escape(typed.split()[-1]))
            terminal.type("\t")
            rest = expected.removeprefix(typed.split()[-1])
            terminal.until(re.escape(rest))
            terminal.type("\x15\r")
            terminal.until(r"ready>\s*$")
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_the_script_is_valid_in_its_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    text = subprocess.run([*CLI, "completion", shell], capture_output=True, text=True, check=True).stdout
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

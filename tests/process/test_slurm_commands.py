"""How Slurm's commands are run: what is not there, what hangs, what prints nonsense."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftslurm.slurm.commands import CommandSlurm
from ftslurm.slurm.errors import SlurmCommandMissing, SlurmError, SlurmOutputError, SlurmTimeout


def slurm_with(tmp_path: Path, script: str, timeout_s: float = 10) -> CommandSlurm:
    """Make a CommandSlurm whose scontrol is this shell script."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n{script}\n")
    scontrol.chmod(0o755)
    return CommandSlurm({"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout_s)


def test_a_missing_command_is_named_with_the_path_that_was_searched(tmp_path: Path) -> None:
    with pytest.raises(SlurmCommandMissing, match=f"scontrol was not found on PATH='{tmp_path}'"):
        CommandSlurm({"PATH": str(tmp_path)}).kill_wait_s()


def test_a_command_that_cannot_be_started_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "scontrol").chmod(0o755)
    with pytest.raises(SlurmCommandMissing, match=r"`scontrol show config` could not be started: .*Exec format error"):
        CommandSlurm({"PATH": str(tmp_path)}).kill_wait_s()


def test_a_command_that_hangs_is_ended_after_the_time_out(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(SlurmTimeout, match=r"did not answer within 200 ms"):
        slurm_with(tmp_path, "exec sleep 60", 0.2).kill_wait_s()
    assert time.monotonic() - began < 10


def test_bytes_that_are_no_text_are_an_error_and_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(SlurmOutputError, match="KillWait"):
        slurm_with(tmp_path, "printf '\\377\\376\\000'").kill_wait_s()


def test_a_command_that_is_killed_is_an_error_with_the_signal(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="killed by signal 9"):
        slurm_with(tmp_path, "kill -9 $$").kill_wait_s()


def test_commands_get_no_input_and_an_environment_that_fixes_their_format(tmp_path: Path) -> None:
    script = 'test "$LC_ALL $SLURM_TIME_FORMAT" = "C %s" && ! read -r line && echo "KillWait = 33 sec"'
    assert slurm_with(tmp_path, script).kill_wait_s() == 33


def test_importing_the_slurm_layer_does_not_load_subprocess() -> None:
    code = "import sys, ftslurm.slurm.commands; sys.exit('subprocess' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=60).returncode == 0

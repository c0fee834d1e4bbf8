"""No command imports anything from the current directory, where other users' files may lie."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, time
import ftslurm
ftslurm.progress(1)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("boom")
"""
# Found in a command's directory: says that it was imported, and by whom.
TRAP = """
import os, sys
with open(os.environ["SPRUNG"], "a") as file:
    file.write(f"{__name__} {sys.orig_argv}\\n")
raise ImportError("imported from the current directory")
"""
OTHERS = ("ftslurm", "filelock", "pynvml", "torch", "numpy", "yaml", "distutils")


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A directory in which each name that Python could look for is a trap."""
    directory = tmp_path / "trapped"
    directory.mkdir()
    for name in (*sys.stdlib_module_names, *OTHERS):
        (directory / f"{name}.py").write_text(TRAP)
    return directory


def run(trapped: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ftslurm in the directory, by its installed script."""
    console = "import sys; sys.path[:1] = []; from ftslurm.cli import console; console()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM", "PYTHON"))}
    environment.update(SPRUNG=str(trapped.parent / "sprung"), PYTHONPATH=str(Path(__file__).parents[2]))
    command = [sys.executable, "-c", console, *map(str, arguments)]
    return subprocess.run(command, cwd=trapped, env=environment, capture_output=True, text=True, timeout=120)


def sprung(trapped: Path) -> str:
    """What was imported from the directory."""
    path = trapped.parent / "sprung"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    "options",
    [
        ("--local-nodes", "2"),
        ("--nproc-per-node", "2"),
        ("--local-nodes", "2", "--warm-imports", "json,decimal"),
        ("--nproc-per-node", "auto", "--max-restarts", "1"),
    ],
    ids=" ".join,
)
def test_no_part_of_a_run_imports_from_the_current_directory(trapped: Path, options: tuple[str, ...]) -> None:
    program = trapped.parent / "train.py"
    program.write_text(PROGRAM)
    done = run(trapped, "run", "--rdzv-id", "r", "--max-restarts", "1", "--health-every", "1", *options, program)
    assert done.returncode == 0, done.stderr
    assert not sprung(trapped)
    for command in (("report", "r"), ("report", "r", "--json"), ("report", "r", "-o", "r.html"), ("status", "r")):
        assert run(trapped, *command).returncode == 0
    assert not sprung(trapped)


def test_no_command_beside_a_run_imports_from_the_current_directory(trapped: Path) -> None:
    for command in (
        ("health",),
        ("health", "--list"),
        ("doctor", "--seconds", "0.5"),
        ("doctor", "--seconds", "0.5", "--local-nodes", "2"),
        ("nodes", "list"),
        ("nodes", "exclude", "n1"),
        ("nodes", "allow", "n1"),
        ("template",),
        ("report", "no-such-run"),
        ("report", "--logs", "."),
        ("prepare", "--no-python", "true"),
        ("--version",),
    ):
        assert "Traceback" not in run(trapped, *command).stderr
        assert not sprung(trapped)


def test_what_is_run_as_a_module_imports_nothing_from_the_current_directory(trapped: Path) -> None:
    from ftslurm.boot import module_command

    environment = {**os.environ, "SPRUNG": str(trapped.parent / "sprung")}
    command = module_command(sys.executable, "ftslurm.slurm.complete", "1", "0")
    subprocess.run(command, cwd=trapped, env=environment, capture_output=True, timeout=60)
    assert not sprung(trapped)


def test_python_m_ftslurm_does_not_search_the_current_directory(tmp_path: Path) -> None:
    """By then, Python itself has searched it for what runpy imports."""
    here, program = tmp_path / "here", tmp_path / "train.py"
    here.mkdir()
    for name in ("numbers", "decimal", "json", "argparse", "filelock", "shutil"):
        (here / f"{name}.py").write_text(TRAP)
    program.write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM", "PYTHON"))}
    environment.update(SPRUNG=str(tmp_path / "sprung"), PYTHONPATH=str(Path(__file__).parents[2]))
    run = ("run", "--rdzv-id", "r", "--local-nodes", "1", "--nproc-per-node", "1", str(program))
    for arguments in (run, ("report", "r")):
        command = [sys.executable, "-m", "ftslurm", *arguments]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "sprung").exists()


def test_python_m_ftslurm_in_a_directory_that_is_gone_says_so(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m ftslurm report r"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert "the current directory is gone" in done.stderr
    assert "Traceback" not in done.stderr

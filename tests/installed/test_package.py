"""The sdist has the whole repository; the wheel, in an environment without anything else, has all that a user needs."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import pythons
from installed_package import ROOT, clean_environment

WHEEL_LIMIT = 1_400_000
"""In bytes. So that nothing large comes in unnoticed; nine tenths are the text of the modules."""
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="session")
def bin_folder(environment_of: Callable[[str], str]) -> Path:
    """Return the folder of commands of an environment that has the wheel, with what that needs."""
    return Path(environment_of(OWN)).parent


def call(*command: str | Path, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd, env=clean_environment(**extra), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_sdist_has_each_file_of_the_repository(built: tuple[Path, Path], source: Path) -> None:
    with tarfile.open(built[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    ours = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    ours = {name for name in ours if ".egg-info/" not in name}
    assert ours - names == set()
    assert {name for name in names - ours if ".egg-info/" not in name} <= {"PKG-INFO"}


def test_the_wheel_has_no_file_outside_the_package_but_its_commands_and_templates(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
    dist_info = re.compile(r"ftslurm-[^/]*\.dist-info/")
    outside = {name for name in names if not name.startswith("ftslurm/") and not dist_info.match(name)}
    templates = [path.name for path in ROOT.glob("sbatch_templates/*.sbatch")]
    assert {re.sub(r"^ftslurm-[^/]*\.data/", "", name) for name in outside} == {
        "scripts/ftsrun", "scripts/ftslurm", *(f"data/share/ftslurm/sbatch_templates/{name}" for name in templates),
    }  # fmt: skip


def test_the_wheel_has_each_module_and_stays_small(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "ftslurm").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {"ftslurm/py.typed", "ftslurm/report/page.css"} <= names
    assert built[1].stat().st_size <= WHEEL_LIMIT


def test_the_metadata_is_complete(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        found = email.message_from_bytes(wheel.read(name))
    assert found["Requires-Python"] == ">=3.10"
    assert found["Summary"] and found["Keywords"] and found["Description-Content-Type"] == "text/markdown"
    assert "Apache-2.0" in (found["License"] or found["License-Expression"])
    classifiers = found.get_all("Classifier") or []
    assert {f"Programming Language :: Python :: {version}" for version in pythons.SUPPORTED} <= set(classifiers)
    assert "Typing :: Typed" in classifiers
    needed = [line for line in found.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert sorted(re.split(r"[^a-z-]", line)[0] for line in needed) == ["filelock", "nvidia-ml-py"]


def test_the_commands_work_from_the_environment(bin_folder: Path, tmp_path: Path) -> None:
    version = call(bin_folder / "ftslurm", "--version", cwd=tmp_path)
    module = call(bin_folder / "python", "-m", "ftslurm", "--version", cwd=tmp_path)
    assert version.returncode == module.returncode == 0, version.stderr + module.stderr
    assert version.stdout == module.stdout != ""
    (tmp_path / "train.py").touch()
    plan = call(bin_folder / "ftsrun", "--dry-run", "train.py", cwd=tmp_path, SLURM_JOB_ID="1", SLURM_JOB_NUM_NODES="1")
    assert str(bin_folder) in plan.stdout, plan.stderr


@pytest.mark.parametrize("path", sorted(ROOT.glob("sbatch_templates/*.sbatch")), ids=lambda path: path.stem)
def test_each_template_is_found(bin_folder: Path, path: Path, tmp_path: Path) -> None:
    found = call(bin_folder / "ftslurm", "template", path.stem, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "#SBATCH" in found.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_for_each_shell_is_printed(bin_folder: Path, shell: str, tmp_path: Path) -> None:
    found = call(bin_folder / "ftslurm", "completion", shell, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "--max-restarts" in found.stdout or "max-restarts" in found.stdout
    if shutil.which(shell):
        (tmp_path / "script").write_text(found.stdout)
        assert call(shell, "-n", tmp_path / "script", cwd=tmp_path).returncode == 0


CONSUMER = """
import ftslurm

ftslurm.progress(3)
with ftslurm.section("step"):
    pass
stop: bool = ftslurm.should_stop(3)
"""


@pytest.mark.parametrize(
    ("more", "errors"),
    [("", []), ("ftslurm.progress('three')\n", ["arg-type"]), ("ftslurm.progres(3)\n", ["attr-defined"])],
)
def test_a_users_mypy_knows_the_types(bin_folder: Path, tmp_path: Path, more: str, errors: list[str]) -> None:
    (tmp_path / "train.py").write_text(CONSUMER + more)
    found = call(
        sys.executable, "-m", "mypy", "--strict", "--python-executable", bin_folder / "python", "train.py", cwd=tmp_path
    )
    assert re.findall(r"error: .*\[([a-z-]+)\]", found.stdout) == errors, found.stdout + found.stderr


def test_the_demo_runs_from_the_sdist(built: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    # An environment of its own, which takes torch from the one of the tests.
    done = call(root / "scripts" / "demo", cwd=tmp_path, PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 3" in done.stdout and (root / ".venv" / "bin" / "ftslurm").exists(), done.stdout

"""The built package, and an environment with it of each Python that is here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import pythons
from installed_package import ROOT, clean_environment

LEFT_OUT = (".*", "build", "dist", "*.egg-info", "__pycache__", "ftslurm-runs", "shared")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout: building leaves files behind, and would package what an earlier build left."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "ftslurm", ignore=ignored))


def ignored(folder: str, names: list[str]) -> set[str]:
    found = shutil.ignore_patterns(*LEFT_OUT)(folder, names)
    return set(found) - {".ci", ".gitignore"}


@pytest.fixture(scope="session")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the sdist, and the wheel that was built from the sdist alone."""
    pytest.importorskip("build", reason="the package `build` is not installed")
    place = tmp_path_factory.mktemp("dist")
    # The whole output: setuptools' warnings are of interest.
    command = [sys.executable, "-m", "build", "--outdir", str(place), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=600, check=False)
    if done.returncode and "No matching distribution found for setuptools" in done.stdout + done.stderr:
        pytest.skip("setuptools cannot be downloaded here")
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = place.glob("*.tar.gz"), place.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="session")
def environment_of(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function from a version to the Python of an environment that has the wheel and nothing else."""
    made: dict[str, str] = {}
    found = pythons.find()

    def get(version: str) -> str:
        if version not in found:
            pytest.skip(f"Python {version} is not here")
        if version not in made:
            place = tmp_path_factory.mktemp(f"python{version}-") / "venv"
            try:
                made[version] = pythons.make_environment(found[version], place, str(built[1]))
            except RuntimeError as error:
                pytest.skip(f"no environment of Python {version} with ftslurm can be made here: {error}")
        return made[version]

    return get

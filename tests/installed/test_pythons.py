"""On each supported Python that is here: every module imports, quick pure tests pass, a killed rank is recovered."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import pythons
from installed_package import ROOT, clean_environment

VERSIONS = pythons.SUPPORTED
IMPORT_ALL = """
import importlib, pkgutil, ftslurm
for module in pkgutil.walk_packages(ftslurm.__path__, "ftslurm."):
    # Programs, which would run.
    if module.name.endswith(".__main__") or module.name in ("ftslurm.boot.module", "ftslurm.boot.worker"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        # Loaded by torch only.
        assert error.name == "torch" and module.name.startswith("ftslurm.torchrun."), (module.name, error)
    print(module.name)
"""
QUICK = (
    "records",
    "dataclasses",
    "cli_help",
    "error_record",
    "message",
    "options",
    "text",
    "report_api",
    "report_text",
)
"""Where Pythons differ: annotations, data classes, argparse, tracebacks, and a report from end to end."""
KILLED_ONCE = """
import os, signal, time
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.5)
"""


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest, environment_of: Callable[[str], str]) -> str:
    """Return the Python of an environment in which the wheel is installed."""
    return environment_of(request.param)


def test_every_module_imports_without_a_warning(python: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [python, "-W", "error", "-c", IMPORT_ALL],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert len(done.stdout.splitlines()) > 400


def test_quick_pure_tests_pass(python: str) -> None:
    if Path(python).resolve() == Path(sys.executable).resolve():
        pytest.skip("the tests themselves run on this one")
    place = Path(python).parents[1]
    try:
        pythons.make_environment(python, place, "pytest>=7.4")
    except RuntimeError as error:
        pytest.skip(f"pytest cannot be installed: {error}")
    files = [f"tests/unit/test_{name}.py" for name in QUICK]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT, env=clean_environment(PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_whose_rank_is_killed_is_restarted_and_reported(python: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KILLED_ONCE)
    command = [python, "-m", "ftslurm"]
    # The agents and the ranks have it from the environment.
    environment = clean_environment(PYTHONWARNINGS="error")
    run = subprocess.run(
        [*command, "run", "--local-nodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--rdzv-id", "job",
         "train.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Warning" not in run.stderr and "Traceback" not in run.stderr, run.stderr
    report = subprocess.run(
        [*command, "report", "job"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert report.returncode == 0, report.stderr
    assert re.search(r"rank 1\b.*SIGKILL", report.stdout), report.stdout

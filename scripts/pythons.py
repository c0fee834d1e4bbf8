"""Finds the Pythons of this machine and makes an environment for the tests with each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SUPPORTED = tuple(f"3.{minor}" for minor in range(10, 15))
_BOUND_S = 60.0


def find() -> dict[str, str]:
    """Return a path for each supported version that is here: ``{"3.10": "/usr/bin/python3.10"}``.

    A shim of pyenv does not start while its version is not selected, so pyenv's own folders are searched too.
    """
    return {version: path for version in SUPPORTED if (path := next(_that_start(version), None))}


def _that_start(version: str) -> Iterator[str]:
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    own = [sys.executable] if sys.version_info[:2] == tuple(map(int, version.split("."))) else []
    on_path = shutil.which(name)
    for path in (*own, *([on_path] if on_path else []), *map(str, sorted(pyenv.glob(f"{version}.*/bin/{name}")))):
        # Also without what an installation of Debian may lack: ensurepip, of the package python3-venv.
        probe = "import ctypes, sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", probe], capture_output=True, text=True, timeout=_BOUND_S, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            yield path


def make_environment(python: str, place: Path, *requirements: str) -> str:
    """Make a virtual environment, or use it again, and install there; return its Python.

    Raises:
        RuntimeError: it cannot be had here; the message is the last line of what refused.
    """
    own = place / "bin" / "python"
    if not own.exists():
        _run(python, "-m", "venv", str(place))
    if requirements:
        _run(str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements)
    return str(own)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")

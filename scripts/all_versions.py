"""The pure tests on each supported Python, and torchrun's plugin with an old torch, for `scripts/test --all-versions`.

A Python comes from this machine, else from a Debian release in a folder of its own (root; by debootstrap). Such a
folder is kept in `.venv/debian`. What cannot be had is named with its reason. Exits with 1 if a test fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pythons

ROOT = Path(__file__).resolve().parents[1]
KEPT = Path(os.environ.get("FTSLURM_TEST_VENV") or ROOT / ".venv")
PACKAGES = "python3,python3-venv,python3-pytest,python3-pytest-xdist,python3-filelock"
NEWEST = ("testing", PACKAGES)
"""Release and packages of the newest Python; which one that is changes with the release."""
OLDEST_TORCH = ("trixie", f"{PACKAGES},python3-torch")
"""Debian 13 has torch 2.6.0: below 2.13, the one build for the CPU that PyPI does not have with gigabytes of CUDA."""
PURE = ["tests/unit", "--deselect", "tests/unit/test_simulation.py"]
PLUGIN = [
    "tests/process/test_torchrun_backend.py",
    "tests/process/test_torchrun_plugin.py",
    "tests/process/test_auto_progress.py",
    "tests/process/test_import_hook.py",
    "tests/unit/test_inner_exceptions.py",
    "tests/unit/test_message.py",
]
"""Where ftslurm relies on torch's modules."""
DEBIANS_TORCH = {"USE_LIBUV": "0"}
"""It is built without libuv, and without this no store of torch starts there."""
MOUNTS = ("proc", "dev", "dev/shm", "sys")
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]


def main(arguments: list[str]) -> int:
    """Test all; return the exit code. The arguments go to pytest."""
    results = {f"Python {version}": _pure(version, arguments) for version in pythons.SUPPORTED}
    results["oldest torch"] = _in_debian(*OLDEST_TORCH, [*PLUGIN, *arguments], wanted="import torch")
    print()
    for name, result in results.items():
        print(f"{name}: {result}")
    return int(any(result.startswith("failed") for result in results.values()))


def _pure(version: str, arguments: list[str]) -> str:
    _say(f"pure tests on Python {version}")
    python = pythons.find().get(version)
    tests = ["-n", "auto", *PURE, *arguments]
    if python is None:
        # Of the releases, only the newest one has another Python than those that people install.
        wanted = f"import sys; assert '%d.%d' % sys.version_info[:2] == '{version}', 'its Python is ' + sys.version[:4]"
        return (
            f"not on this machine; {_in_debian(*NEWEST, tests, wanted=wanted)}"
            if version == pythons.SUPPORTED[-1]
            else ("skipped: not on this machine")
        )
    try:
        needs = ("filelock>=3.12", "nvidia-ml-py>=12", "pytest>=7.4", "pytest-xdist>=3.5")
        own = pythons.make_environment(python, KEPT / "pythons" / version, *needs)
    except RuntimeError as error:
        return f"skipped: {error}"
    return _result(subprocess.call([own, *PYTEST, *tests], cwd=ROOT, env=_environment(str(ROOT))))


def _in_debian(release: str, packages: str, tests: list[str], *, wanted: str) -> str:
    """Run tests in a folder with a release of Debian, made if it is not there; return the result as text."""
    _say(f"Debian {release}: {tests[0]} …")
    if os.geteuid() != 0:
        return f"skipped: Debian {release} needs root"
    if shutil.which("debootstrap") is None:
        command = ["apt-get", "-q", "install", "-y", "--no-install-recommends", "debootstrap"]
        if shutil.which("apt-get") is None or subprocess.call(command, stdout=subprocess.DEVNULL) != 0:
            return "skipped: debootstrap cannot be had here"
    place = KEPT / "debian" / release
    complete = place / "complete"
    if not complete.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", release, str(place)]
        if subprocess.call(command, stdout=subprocess.DEVNULL) != 0:
            return f"skipped: debootstrap could not make Debian {release}"
        complete.touch()
    found = subprocess.run(["chroot", str(place), "python3", "-c", wanted], capture_output=True, text=True, check=False)
    if found.returncode:
        return f"skipped: Debian {release} has something else: {found.stderr.strip().splitlines()[-1]}"
    return _chrooted(place, tests)


def _chrooted(place: Path, tests: list[str]) -> str:
    # pynvml is no package of Debian; it is one file, which needs no newer Python than ours.
    import pynvml

    shutil.copy(str(pynvml.__file__), place / "usr" / "lib" / "python3" / "dist-packages")
    # As on each host: it resolves its own name.
    (place / "etc" / "hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {os.uname().nodename}\n")
    for name in (*MOUNTS, "ftslurm"):
        (place / name).mkdir(exist_ok=True)
    # In a mount namespace of their own: nothing stays mounted, however this ends, and removing the folder is safe.
    mounts = [f'mount --bind /{name} "$0/{name}"' for name in MOUNTS]
    inside = " && ".join([*mounts, 'mount --bind . "$0/ftslurm"', 'exec chroot "$0" "$@"'])
    in_checkout = ["sh", "-c", 'cd /ftslurm && exec python3 "$@"', "sh", *PYTEST, *tests]
    command = ["unshare", "--mount", "sh", "-c", inside, str(place), *in_checkout]
    return _result(subprocess.call(command, cwd=ROOT, env=_environment("/ftslurm")))


def _environment(path: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FTSLURM_", "SLURM", "PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/tmp", **DEBIANS_TORCH}


def _result(code: int) -> str:
    return "passed" if code == 0 else f"failed (pytest ended with {code})"


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

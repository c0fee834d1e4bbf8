"""`ftslurm health --slurm …` as root: nothing that a user could have written runs, or decides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USER = 65534
MODULES = (
    "argparse",
    "socket",
    "json",
    "signal",
    "subprocess",
    "types",
    "enum",
    "select",
    "tempfile",
    "shutil",
    "queue",
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be it and to be another user")


class Place:
    """A directory of some user with modules, an entry point and a command that write down that they ran."""

    def __init__(self, path: Path, owner: int) -> None:
        self.path = path
        self.marks = path / "marks"
        info = path / "theirs-1.0.dist-info"
        info.mkdir(parents=True)
        self.marks.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[ftslurm.health]\ntheirs = their_checks:CHECKS\n")
        (path / "their_checks.py").write_text(f"open({str(self.marks / 'entry point')!r}, 'w')\nCHECKS = []\n")
        command = path / "scontrol"
        command.write_text(f"#!/bin/sh\necho >'{self.marks}/scontrol'\nexit 1\n")
        command.chmod(0o755)
        for one in (path, *path.rglob("*")):
            os.chown(one, owner, owner)

    def trap(self) -> None:
        """Put modules in the place of the standard library's."""
        for name in MODULES:
            (self.path / f"{name}.py").write_text(f"open({str(self.marks / name)!r}, 'w')\nraise ImportError\n")

    @property
    def ran(self) -> list[str]:
        return sorted(mark.name for mark in self.marks.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place", USER)


def slurm(place: Place, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from ftslurm.cli import console; console()", "health", "--slurm", *arguments],
        cwd=place.path,
        env={
            "PATH": f"{place.path}::/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT}:{place.path}",
            "SLURMD_NODENAME": "n1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_no_module_of_the_current_directory_or_of_another_users_path_is_imported(place: Place) -> None:
    place.trap()
    done = slurm(place, "health-check", "own", "--command", "exit 0")
    assert (done.returncode, done.stdout, done.stderr, place.ran) == (0, "", "", [])


def test_entry_points_are_loaded_from_where_only_root_writes(place: Place, tmp_path: Path) -> None:
    done = slurm(place, "health-check", "own", "--command", "exit 0")
    assert (done.returncode, place.ran) == (0, []), done.stderr
    roots = Place(tmp_path / "roots", 0)
    done = slurm(roots, "health-check", "own", "--command", "exit 0")
    assert (done.returncode, roots.ran) == (0, ["entry point"]), done.stderr


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_of_roots_that_others_may_write_to_is_not_trusted(mode: int, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", 0)
    os.chown(place.path, 0, USER)
    place.path.chmod(mode)
    done = slurm(place, "health-check", "own", "--command", "exit 0")
    assert (done.returncode, place.ran) == (0, []), done.stderr


def test_nothing_of_a_jobs_environment_is_run_or_decides(place: Place) -> None:
    hostile = {
        "FTSLURM_HEALTH_COMMAND": f"touch '{place.marks}/command'; exit 2",
        "FTSLURM_HEALTH_PATHS": "/nonexistent/data",
        "FTSLURM_HEALTH_SKIP": "own",
        "TMPDIR": "/nonexistent/tmp",
        "BASH_ENV": f"{place.path}/scontrol",
        "ENV": f"{place.path}/scontrol",
    }
    done = slurm(place, "prolog", "--act", "own", "storage-paths", "--command", "echo $FTSLURM_X; exit 1", **hostile)
    assert (done.returncode, place.ran) == (0, []), done.stderr
    assert done.stdout.startswith("ftslurm health: n1: 1 warn: own-commands"), done.stdout


def test_slurms_commands_are_not_taken_from_a_users_directory(place: Place) -> None:
    done = slurm(place, "health-check", "--drain", "own", "--command", "exit 2", SLURM_CONF="/nonexistent")
    assert done.returncode == 1 and "n1 could not be drained" in done.stderr, done.stderr
    assert place.ran == []


def test_an_installation_that_a_user_can_write_to_is_refused(place: Place) -> None:
    copy = place.path / "ftslurm"
    subprocess.run(["cp", "-r", str(ROOT / "ftslurm"), str(copy)], check=True)
    os.chown(copy, USER, USER)
    done = slurm(place, "health-check", "own", "--command", "exit 0", PYTHONPATH=str(place.path))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"ftslurm health: {copy} belongs to user {USER}: root runs only"), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_library_is_loaded_from_a_path_of_the_jobs_environment(place: Place) -> None:
    command = r"tr '\0' '\n' </proc/$PPID/environ | grep -q ^LD_ && exit 2; exit 0"
    done = slurm(place, "health-check", "own", "--command", command, LD_LIBRARY_PATH=str(place.path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["{}", "sh {} now", "/bin/sh -c '{} now'", "cd {0}/.. && ./check", "/usr/../{}"])
def test_a_command_that_a_user_could_have_written_is_refused(place: Place, command: str) -> None:
    script = place.path / "check"
    script.write_text(f"#!/bin/sh\ntouch '{place.marks}/command'\nexit 2\n")
    script.chmod(0o755)
    os.chown(script, USER, USER)
    done = slurm(place, "prolog", "own", "--command", command.format(script))
    assert (done.returncode, done.stdout, place.ran) == (2, "", [])
    assert f"belongs to user {USER}: root runs only what nobody else can write" in done.stderr, done.stderr


def test_it_does_not_matter_where_slurms_programs_are_started(place: Place) -> None:
    gone = place.path / "gone"
    gone.mkdir()
    code = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from ftslurm.cli import console; console()"
    done = subprocess.run(
        [sys.executable, "-c", code, "health", "--slurm", "prolog", "own", "--command", "exit 0"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "SLURMD_NODENAME": "n1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

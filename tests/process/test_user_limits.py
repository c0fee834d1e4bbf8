"""A user's own limits, made as tight as can be, are never the node's fault: in a look, and when a round starts."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
USER = 54321
"""Has no other process, and may read all: Python need not lie where everybody can read."""
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups") + (
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
)
NAMES = {"files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC, "addresses": resource.RLIMIT_AS}
NAMES["file size"], NAMES["CPU time"] = resource.RLIMIT_FSIZE, resource.RLIMIT_CPU

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs a second user")


def limited(name: str, limit: int, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as that user with a limit."""
    begin = f"import os, resource, sys; resource.setrlimit({NAMES[name]}, ({limit}, {limit}))"
    os.chown(cwd, USER, USER)
    for above in cwd.parents[:3]:
        above.chmod(above.stat().st_mode | 0o711)
    return subprocess.run(
        [*AS_USER, sys.executable, "-c", f"{begin}; os.execv(sys.argv[1], sys.argv[1:])", *command],
        cwd=cwd,
        env={**CLEAN, "PYTHONPATH": str(ROOT), "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("files", range(4, 30, 2)),
        ("processes", range(1, 16)),
        ("addresses", [n << 20 for n in (30, 40, 50, 60, 80, 100, 150, 300)]),
        ("file size", (0, 100, 5000)),
    ],
)
def test_no_check_fails_for_a_users_own_limits(name: str, limits: list[int], tmp_path: Path) -> None:
    # A shell that cannot fork ends with 2, as a check of one's own does that found the node unhealthy.
    own = "(:) && (:) && (:); (exit 0)"
    checks = ["storage", "own", "gpu", "host-versions", "network-names", "--path", str(tmp_path), "--command", own]
    command = [sys.executable, "-m", "ftslurm.cli", "health", "--json", *checks]
    looked = 0
    for limit in limits:
        done = limited(name, limit, command, tmp_path)
        # A Python that does not even start, or has no room for its modules, has not looked at the node.
        if not done.stdout:
            continue
        looked += 1
        found = json.loads(done.stdout)
        failed = [one for one in found["findings"] if one["status"] == "fail"]
        assert (failed, found["lost"]) == ([], {}), (name, limit)
    assert looked >= 2


@pytest.mark.parametrize(("name", "limits"), [("processes", range(6, 22, 3)), ("files", range(16, 30, 2))])
def test_a_start_that_fails_for_a_users_own_limits_is_not_held_against_the_node(
    name: str, limits: list[int], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time; time.sleep(0.5)\n")
    failed_to_start = 0
    for limit in limits:
        directory = tmp_path / str(limit)
        directory.mkdir()
        options = ["--nproc-per-node", "4", "--max-restarts", "2", "--exclude-after", "1", "--health", "off"]
        command = [sys.executable, "-m", "ftslurm.cli", "run", *options, "--join-timeout", "5", str(script)]
        done = limited(name, limit, command, directory)
        excluded = list(directory.glob("ftslurm-runs/excluded/*"))
        assert excluded == [], (limit, [one.read_text() for one in excluded], done.stderr[-2000:])
        failed_to_start += bool(re.search("cannot start a worker", done.stderr))
    assert failed_to_start >= 1


def test_a_rank_that_is_killed_at_its_limit_of_cpu_time_is_not_held_against_the_node(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("while True:\n    pass\n")
    options = ["--max-restarts", "1", "--exclude-after", "1", "--health", "off"]
    command = [sys.executable, "-m", "ftslurm.cli", "run", *options, "--join-timeout", "20", "train.py"]
    done = limited("CPU time", 3, command, tmp_path)
    assert "killed, probably at its limit of CPU time" in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert list(tmp_path.glob("ftslurm-runs/excluded-*")) == [], done.stderr

"""At a round's end agents remove what ranks left empty; report, logs and status do without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from test_run import Start, Started, start  # noqa: F401

from ftslurm.doctor.load import load_of

FOUR = ("--local-nodes", "2", "--nproc-per-node", "2", "--tee", "0")
SILENT = """
import os, signal, sys
if os.environ["FTSLURM_ROUND"] == "1" and os.environ["RANK"] == "3":
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ["RANK"] == "1":
    print("one line", file=sys.stderr)
"""


def files_of(run: Started, round_: int) -> dict[str, list[str]]:
    ranks = run.run_dir / "rounds" / f"{round_:06d}" / "ranks"
    return {path.name: sorted(file.name for file in path.iterdir()) for path in sorted(ranks.iterdir())}


def command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ftslurm.cli", *arguments]
    return subprocess.run(argv, cwd=directory, capture_output=True, text=True, timeout=60)


def test_only_what_ranks_wrote_stays_after_each_round(start: Start) -> None:  # noqa: F811
    run = start(SILENT, *FOUR, "--max-restarts", "1")
    assert run.wait() == 0
    first = files_of(run, 1)
    assert first["00003"] == ["error.json"]
    assert all(files for files in first.values())
    assert files_of(run, 2) == {"00001": ["stderr.log"]}
    report = command(run.directory, "report", str(run.run_dir))
    assert "rank 3" in report.stdout
    assert "unusable" not in report.stdout
    assert "no file" not in report.stdout
    assert command(run.directory, "status", str(run.run_dir)).returncode == 0
    silent = command(run.directory, "logs", str(run.run_dir), "--rank", "0")
    assert silent.returncode == 0
    assert "rank 0 printed nothing in round 2" in silent.stderr
    assert "one line" in command(run.directory, "logs", str(run.run_dir), "--rank", "1").stdout


def test_logs_elsewhere_leave_no_empty_directories_in_either_place(start: Start, tmp_path: Path) -> None:  # noqa: F811
    run = start("pass", *FOUR, "--log-dir", str(tmp_path / "logs"))
    assert run.wait() == 0
    assert files_of(run, 1) == {}
    assert list((tmp_path / "logs").glob("*/rounds/000001/ranks/*")) == []


WAITS = """
import os, time
open(f"up{os.environ['RANK']}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def test_a_run_has_as_many_files_as_the_doctor_predicts(start: Start) -> None:  # noqa: F811
    run = start(WAITS, *FOUR)
    load = load_of(2, 2)
    run.until(lambda: all((run.directory / f"up{rank}").exists() for rank in range(4)))
    names = files_in(run.run_dir)
    # One generation of the state more where the nodes joined one after the other.
    assert load.files_running <= len(names) <= load.files_running + 1, names
    (run.directory / "go").touch()
    assert run.wait() == 0
    left = files_in(run.run_dir / "rounds" / "000001")
    assert len(left) == load.files_silent, left


def files_in(directory: Path) -> list[str]:
    return sorted(str(path) for path in [directory, *directory.rglob("*")] if not path.name.startswith("."))

"""`ftslurm doctor` on real directories: fine, read-only, full, a file, and processes that hang or are interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.doctor.checks import exclusive_link
from ftslurm.health.timed_filesystem import TimedFileSystem, run_all

CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
ROOT = Path(__file__).resolve().parents[2]


def doctor(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ftslurm.cli", "doctor", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd or ROOT, env={**CLEAN, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own of 64 KiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", directory], check=False).returncode
    ):
        pytest.skip("mounting a small tmpfs needs root")
    yield directory
    subprocess.run(["umount", "-l", directory], check=True)


def test_a_local_directory_is_fine_and_left_as_it_was(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--seconds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"ftslurm doctor: {tmp_path}: fine"), done.stdout
    for proof in ("one winner each", "none torn", "after its holder was killed"):
        assert proof in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == []


def test_simulated_nodes_meet_and_one_of_them_prints_one_table(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--seconds", "1", "--local-nodes", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ftslurm doctor:") == 1, done.stdout
    assert "(3 nodes, " in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  local")]
    assert sorted(rows) == ["local0", "local1", "local2"], done.stdout
    assert list(tmp_path.iterdir()) == []


def test_json_holds_what_every_node_measured(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--seconds", "1", "--local-nodes", "2", "--json")
    report = json.loads(done.stdout)
    assert report["status"] == "ok" and report["expected"] == ["local0", "local1"]
    for node in ("local0", "local1"):
        facts = report["nodes"][node]
        assert facts["lock"]["excluded"] is True and 0 <= facts["lock"]["released_s"] < 5
        assert facts["atomic-rename"]["reads"] > 0 and facts["atomic-rename"]["torn"] == 0
        assert sum(len(race["wins"]) for race in facts["exclusive-link"]["races"]) > 0
        assert facts["rate"]["publish"] > 0 and facts["directory"]["inodes"] >= 0
        assert report["delays"][node]["new"] > 0 and report["delays"][node]["renamed"] > 0
    assert [one for one in report["findings"] if one["status"] == "fail"] == []
    assert abs(report["clock"]["local0"]["middle"]) <= report["clock"]["local0"]["error"] + 1


def test_a_file_instead_of_a_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = doctor(tmp_path / "file")
    assert done.returncode == 1
    assert "expected a directory, found a file" in done.stdout


def test_a_missing_directory_is_found_and_not_made(tmp_path: Path) -> None:
    done = doctor(tmp_path / "nothere")
    assert done.returncode == 1
    assert "is not there" in done.stdout and "Make it" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_filesystem_is_found(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    done = doctor(small)
    assert done.returncode == 1
    assert "it is mounted read-only" in done.stdout, done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = doctor(tmp_path)
    tmp_path.chmod(0o700)
    assert done.returncode == 1
    assert "is not permitted to user" in done.stdout, done.stdout


def test_a_full_filesystem_is_found_and_nothing_is_left_on_it(small: Path) -> None:
    with (small / "big").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"x" * 4096)
            except OSError:
                break
    done = doctor(small)
    assert done.returncode == 1
    assert "it is full" in done.stdout, done.stdout
    assert [p.name for p in small.iterdir()] == ["big"]


@pytest.mark.parametrize(
    "arguments",
    [("--seconds", "x"), ("--seconds", "0"), ("--local-nodes", "0"), ("--wait", "-1"), ("a", "b"), ("--no",)],
)
def test_wrong_usage_gives_code_2_and_a_message(arguments: tuple[str, ...]) -> None:
    done = doctor(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ftslurm doctor: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def step(tmp_path: Path, node: int, directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the doctor as Slurm would on one node of two."""
    slurm = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "3",
        "SLURM_PROCID": str(node),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": f"n{node}",
        "SLURM_STEP_NODELIST": "n[0-1]",
        "SLURM_NNODES": "2",
    }
    command = [sys.executable, "-m", "ftslurm.cli", "doctor", str(directory), "--seconds", "1", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env={**CLEAN, **slurm}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_nodes_with_different_directories_report_it_and_end(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    nodes = [step(tmp_path, i, directories[i], "--wait", "1") for i in (0, 1)]
    (out0, _), (out1, err1) = (node.communicate(timeout=60) for node in nodes)
    assert [node.returncode for node in nodes] == [1, 1]
    assert "n1: meet: did not join in" in out0, out0
    assert out1 == "" and "n0: did not join in" in err1, "one table only"
    assert [list(directory.iterdir()) for directory in directories] == [[], []]


def test_a_first_node_that_never_comes_is_named_by_the_next_one(tmp_path: Path) -> None:
    node = step(tmp_path, 1, tmp_path, "--wait", "1")
    out, err = node.communicate(timeout=60)
    assert node.returncode == 1
    assert "n0: did not join" in err, out + err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_doctor_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ftslurm.cli", "doctor", str(tmp_path), "--seconds", "60"]
    process = subprocess.Popen(command, cwd=ROOT, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".ftslurm-doctor-*/links/1")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err == b""
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_hangs_is_named_and_costs_no_more_than_its_child() -> None:
    def hang(fs: TimedFileSystem) -> None:
        fs.during("rename /shared/a", lambda: time.sleep(60))

    began = time.monotonic()
    hung, fine = run_all([hang, lambda fs: fs.during("stat /shared", lambda: 7)], limit_s=30, call_limit_s=0.5)
    assert time.monotonic() - began < 10
    assert (hung.hung, hung.problem) == ("rename /shared/a", "rename /shared/a did not return")
    assert (fine.value, fine.problem, fine.slowest[1]) == (7, None, "stat /shared")


def test_a_child_that_is_late_killed_or_fails_is_distinguished() -> None:
    def fail(fs: TimedFileSystem) -> None:
        raise FileNotFoundError(2, "No such file", "/shared/x")

    works = [lambda fs: time.sleep(60), lambda fs: os.kill(os.getpid(), signal.SIGKILL), fail]
    late, killed, failed = run_all(works, limit_s=1, call_limit_s=9)
    assert (late.problem, late.hung) == ("not done in time", None)
    assert killed.problem == "its process was killed"
    assert failed.problem == "[Errno 2] No such file: '/shared/x'"


class LosingFileSystem(TimedFileSystem):
    """Links are done, and every other one is reported as failed."""

    count = 0

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        self.count += 1
        if self.count % 2:
            raise FileExistsError(17, "File exists", target)


def test_names_won_by_calls_that_failed_are_found_to_be_won(tmp_path: Path) -> None:
    facts = exclusive_link.race(LosingFileSystem(), str(tmp_path), 0.2)
    assert facts["wins"] == list(range(1, facts["taken"] + 1))
    assert facts["rescued"] == facts["wins"][::2]


def test_the_command_line_reads_no_more_than_it_needs() -> None:
    code = (
        "import sys, ftslurm.doctor.command; sys.exit(any(m in sys.modules for m in ('argparse', 'filelock', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

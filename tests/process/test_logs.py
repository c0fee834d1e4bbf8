"""`ftslurm logs` beside real runs: where a rank's output is, its end, and what is appended, over rounds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_run import Start, Started, start  # noqa: F401

LOGS = [sys.executable, "-m", "ftslurm.cli", "logs"]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "FTSLURM"))}
TALKS = """
import os, sys, time
rank, round_ = os.environ["RANK"], os.environ["FTSLURM_ROUND"]
for line in range(30):
    print(f"rank {rank} round {round_} line {line}")
print(f"rank {rank} warns", file=sys.stderr)
open(f"up{rank}-{round_}", "w").close()
while not os.path.exists(f"go{round_}"):
    time.sleep(0.05)
print(f"rank {rank} round {round_} goes")
if round_ == "1" and rank == "1":
    sys.exit("rank 1 has had enough")
if round_ == "1":
    time.sleep(600)
"""
TWO = ("--local-nodes", "2", "--nproc-per-node", "2", "--max-restarts", "1", "--tee", "0")


def logs(directory: Path, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    command = [*LOGS, *arguments]
    return subprocess.run(command, cwd=directory, env=CLEAN, capture_output=True, text=True, timeout=seconds)


class Follower:
    """An `ftslurm logs -f` in the background."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.path = directory / "followed"
        with self.path.open("wb") as out:
            self.process = subprocess.Popen(
                [*LOGS, "-f", *arguments], cwd=directory, env=CLEAN, stdout=out, stderr=subprocess.PIPE, text=True
            )

    @property
    def text(self) -> str:
        return self.path.read_bytes().decode()

    def until(self, text: str) -> None:
        end = time.monotonic() + 30
        while text not in self.text:
            assert time.monotonic() < end and self.process.poll() is None, self.text
            time.sleep(0.05)

    def end(self, seconds: float = 30) -> str:
        assert self.process.stderr is not None
        assert self.process.wait(seconds) == 0
        return self.process.stderr.read()


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    followers: list[Follower] = []

    def follow(*arguments: str) -> Follower:
        followers.append(Follower(tmp_path, *arguments))
        return followers[-1]

    yield follow
    for one in followers:
        one.process.kill()
        one.process.communicate()


def talking(start: Start, round_: int = 1, *options: str) -> Started:  # noqa: F811
    run = start(TALKS, *TWO, *options)
    run.until(lambda: all((run.directory / f"up{rank}-{round_}").exists() for rank in range(4)))
    return run


def go(run: Started, round_: int) -> None:
    (run.directory / f"go{round_}").touch()


def test_the_end_of_a_ranks_output_and_where_it_is(start: Start) -> None:  # noqa: F811
    run = talking(start)
    path = run.run_dir / "rounds/000001/ranks/00003"
    done = logs(run.directory, "--rank", "3", "-n", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"==> rank 3 on local1, round 1: {path}/stdout.log <==",
        "rank 3 round 1 line 28",
        "rank 3 round 1 line 29",
        "",
        f"==> rank 3 on local1, round 1: {path}/stderr.log <==",
        "rank 3 warns",
    ]
    done = logs(run.directory, run.run_dir.name, "--rank", "3", "--stderr")
    assert done.stdout.splitlines()[1:] == ["rank 3 warns"]
    for name in (str(run.run_dir), os.path.relpath(run.run_dir, run.directory)):
        done = logs(run.directory, name, "--stdout", "-n", "1000")
        assert done.stdout.splitlines()[1:] == [f"rank 0 round 1 line {i}" for i in range(30)]
    go(run, 1)
    go(run, 2)
    assert run.wait() == 0, run.err
    assert "rank 3 round 2 goes" in logs(run.directory, "--rank", "3", "-n", "1").stdout
    done = logs(run.directory, "--rank", "3", "--round", "1", "--stdout")
    assert "round 1 line 29" in done.stdout and "round 2" not in done.stdout


def test_a_node_means_all_its_ranks(start: Start) -> None:  # noqa: F811
    run = talking(start)
    done = logs(run.directory, "--node", "local1", "--stdout", "-n", "1")
    headers = [line.partition(":")[0] for line in done.stdout.splitlines() if line.startswith("==>")]
    assert headers == ["==> rank 2 on local1, round 1", "==> rank 3 on local1, round 1"]
    done = logs(run.directory, "--node", "n77")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--node n77: has no ranks in any round; nodes of round 1: local0, local1" in done.stderr


def test_following_goes_on_in_the_next_round_and_ends_with_the_run(
    start: Start,  # noqa: F811
    follow: Callable[..., Follower],
) -> None:
    run = talking(start)
    follower = follow("--rank", "2", "--stdout", "-n", "1")
    follower.until("rank 2 round 1 line 29")
    go(run, 1)
    follower.until("rank 2 round 1 goes")
    follower.until("rank 2 round 2 line 29")
    go(run, 2)
    assert run.wait() == 0, run.err
    assert "the run has ended: succeeded" in follower.end()
    lines = follower.text.splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("==>")] == [
        "==> rank 2 on local1, round 1",
        "==> rank 2 on local1, round 2",
    ]
    printed = [line for line in lines if line.startswith("rank")]
    second = [*(f"rank 2 round 2 line {i}" for i in range(30)), "rank 2 round 2 goes"]
    assert printed == ["rank 2 round 1 line 29", "rank 2 round 1 goes", *second]


def test_following_may_begin_before_the_rank_and_of_one_round_ends_with_it(
    start: Start,  # noqa: F811
    follow: Callable[..., Follower],
) -> None:
    run = talking(start)
    follower = follow("--rank", "1", "--round", "2", "--stdout")
    one = subprocess.Popen([*LOGS, "-f", "--round", "1"], cwd=run.directory, env=CLEAN, stderr=-1, stdout=-1, text=True)
    go(run, 1)
    follower.until("rank 1 round 2 line 29")
    _, err = one.communicate(timeout=30)
    assert "round 1 is over" in err
    go(run, 2)
    assert run.wait() == 0, run.err
    assert "succeeded" in follower.end()


def test_a_run_that_is_over_is_printed_and_not_followed(start: Start) -> None:  # noqa: F811
    run = start("print('a'); print('b')")
    assert run.wait() == 0
    done = logs(run.directory, "-f", seconds=20)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:3] == ["a", "b"]
    assert "the run has ended: succeeded" in done.stderr


def test_a_run_whose_processes_were_all_killed_is_not_followed_for_ever(start: Start) -> None:  # noqa: F811
    run = talking(start)
    # A killed process that is in a call ends after the call, which may be the rename of a record.
    while marked := run.marked():
        # None of them sees another one's end.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid, _ in marked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(0.05)
    for record in (run.run_dir / "nodes").glob("*.json"):
        os.utime(record, (time.time() - 300,) * 2)
    program = "import ftslurm.logs.command as logs; logs.SILENCE_S = 1.0; raise SystemExit(logs.main(['-f']))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=run.directory, env=CLEAN, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "no agent has written for long, but the run is not closed" in done.stderr


def test_files_that_are_rotated_truncated_and_removed_are_followed(
    start: Start,  # noqa: F811
    follow: Callable[..., Follower],
) -> None:
    run = talking(start)
    log = run.run_dir / "rounds/000001/ranks/00000/stdout.log"
    follower = follow("--stdout", "-n", "0")
    follower.until("==> rank 0")
    with log.open("ab") as file:
        file.write(b"\x1b[31mraw \xff bytes\r\n")
        file.flush()
        end = time.monotonic() + 30
        while b"\x1b[31mraw \xff bytes\r\n" not in follower.path.read_bytes():
            assert time.monotonic() < end
            time.sleep(0.05)
    with log.open("ab") as file:
        file.write(b"last of the old file\n")
    log.rename(log.with_name("stdout.log.1"))
    log.write_bytes(b"first of the new file, which is longer than nothing\n")
    wait_for(follower, b"last of the old file\n", b"first of the new file")
    log.write_bytes(b"truncated\n")
    wait_for(follower, b"\ntruncated\n")
    log.unlink()
    os.mkfifo(log)
    time.sleep(1)
    log.unlink()
    log.write_bytes(b"once more\n")
    wait_for(follower, b"once more\n")
    follower.process.send_signal(signal.SIGINT)
    assert follower.process.wait(10) == 130


def wait_for(follower: Follower, *texts: bytes) -> None:
    end = time.monotonic() + 30
    while not all(text in follower.path.read_bytes() for text in texts):
        assert time.monotonic() < end and follower.process.poll() is None, follower.path.read_bytes()
        time.sleep(0.05)


def test_output_in_a_log_directory_is_found(start: Start, tmp_path: Path) -> None:  # noqa: F811
    run = start("print('elsewhere')", "--log-dir", str(tmp_path / "logs"))
    assert run.wait() == 0
    done = logs(run.directory)
    assert f": {tmp_path}/logs/{run.run_dir.name}/rounds/000001/ranks/00000/stdout.log <==" in done.stdout
    assert "elsewhere" in done.stdout


def test_what_cannot_be_found_is_one_line_that_names_it(start: Start) -> None:  # noqa: F811
    run = start("print('a')", "--redirects", "0")
    assert run.wait() == 0
    for arguments, expected in (
        (("job-99",), "found no run directory or job 'job-99'"),
        (("--rank", "7"), "rank 7 has no output in any round"),
        (("--round", "3"), "--round 3: expected one from 1 to 1"),
        ((), "with --redirects 0 it went to the job's own output"),
        (("--rank", "0", "--node", "n1"), "--rank and --node: only one of them makes sense"),
        (("--rank", "x"), "expected a number from 0 on, found 'x'"),
    ):
        done = logs(run.directory, *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert expected in done.stderr
    done = logs(run.directory, "--latest", str(run.run_dir))
    assert done.returncode == 2 and "expected --latest or a run" in done.stderr


def test_a_reader_that_goes_is_no_failure(start: Start) -> None:  # noqa: F811
    run = start("for i in range(100_000): print('x' * 100)")
    assert run.wait() == 0
    command = f"{sys.executable} -m ftslurm.cli logs -n 100000 --stdout | head -n 2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=run.directory, env=CLEAN, capture_output=True, timeout=60)
    assert done.stdout.splitlines()[-1] == b"0"
    assert done.stderr == b""

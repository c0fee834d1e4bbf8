"""What is kept and printed if no process reads or answers: a blocked stdout, an empty stdin, files of killed ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import test_run
from test_run import RUN, Start

start = test_run.start


def test_the_report_is_saved_although_its_output_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('boom')")
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
    command = [*RUN, "--health", "off", "--max-restarts", "0", "--rdzv-id", "mine", "train.py"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=write, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "ftslurm-runs" / "mine" / "report.html").exists():
            assert time.monotonic() < end, "no report was kept"
            time.sleep(0.02)
        report = json.loads((tmp_path / "ftslurm-runs" / "mine" / "report.json").read_text())
        assert report["status"] == "failed"
        assert process.poll() is None, "it was to block"
    finally:
        os.close(read)
        os.close(write)
        process.wait(30)


@pytest.mark.parametrize("line", ["breakpoint()", "input('go on? ')", "import pdb; pdb.set_trace()"])
def test_a_rank_that_asks_for_input_gets_end_of_file_and_is_not_restarted(start: Start, line: str) -> None:
    run = start(f"import ftslurm\nftslurm.progress(7)\n{line}\nx = 1\n", "--health", "off")
    assert run.wait() == 78
    report = json.loads((run.run_dir / "report.json").read_text())
    assert len(report["rounds"]) == 1
    assert report["rounds"][0]["first_failure"]["cause"] == "no-stdin"
    assert "workers have no stdin" in run.out + run.err


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_a_report_that_was_killed_in_a_container_keeps_none_after_it_from_being_saved(
    start: Start, tmp_path: Path
) -> None:
    run = start("", "--health", "off", "--rdzv-id", "mine")
    assert run.wait() == 0
    # By its pid, which the first process of each container has.
    stale = [run.run_dir / f".report.{suffix}.{pid}.tmp" for suffix in ("json", "txt", "html") for pid in range(1, 9)]
    for path in stale:
        path.write_text("half")
        os.utime(path, (1, 1))
    (run.run_dir / "report.json").unlink()
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    command = [*inside, sys.executable, "-m", "ftslurm.cli", "report", str(run.run_dir), "--save"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "not saved" not in done.stderr and done.returncode == 0, done.stderr
    assert (run.run_dir / "report.json").exists()
    assert not [path for path in stale if path.exists()]


def test_a_timer_client_that_renews_in_a_tight_loop_meets_no_full_pipe(start: Start) -> None:
    """As torch's FileTimerClient does it: opened each time, never waiting; faster than an agent reads."""
    script = """
import json, os, time
fields = {"version": 1, "pid": os.getpid(), "scope_id": "s" * 40, "expiration_time": time.time() + 600, "signal": 9}
line = json.dumps(fields).encode() + b"\\n"
for _ in range(6000):
    fd = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, line)
    os.close(fd)
"""
    run = start(script, "--health", "off", "--max-restarts", "0")
    assert run.wait() == 0, run.out


# Ranks 0 and 1 write timer lines without end, rank 2 one from time to time, and then it hangs.
FLOODED = """
import json, os, time
rank = int(os.environ["RANK"])
fields = {"version": 1, "pid": os.getpid(), "scope_id": "s" * 40, "expiration_time": 0.0, "signal": 9}

def renew():
    fields["expiration_time"] = time.time() + 600
    fd = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(fd, json.dumps(fields).encode() + bytes([10]))
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)

while rank < 2:
    renew()
import ftslurm
ftslurm.heartbeat()
taken = 0
for _ in range(100):
    taken += renew()
    ftslurm.heartbeat()
    time.sleep(0.01)
open("taken", "w").write(str(taken))
time.sleep(1000)
"""


def test_ranks_that_write_timers_without_end_take_neither_the_pipe_nor_the_time_outs_of_the_others(
    start: Start,
) -> None:
    options = ("--nproc-per-node", "3", "--heartbeat-timeout", "2", "--hang-timeout", "off", "--max-restarts", "0")
    run = start(FLOODED, "--health", "off", *options)
    assert run.wait() == 1, run.err
    assert "hangs (rank 2: no heartbeat for 2" in run.err
    # With the pipe full all the time it was one in ten.
    assert int((run.directory / "taken").read_text()) > 60

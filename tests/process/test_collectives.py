"""What torch recorded of the ranks' collectives, collected from real ranks over gloo when they hang or are stopped."""

from __future__ import annotations

import subprocess
import sys

import pytest
import test_run
from hang_story import NODES, history, stacks, workers
from test_run import Start, Started

from ftslurm.records.codec import read_record
from ftslurm.records.flight import FlightRecord

start = test_run.start

PATIENT = ("--heartbeat-timeout", "6")
"""The end of a process with torch takes seconds on a busy machine."""
BEGIN = """\
import ctypes, datetime, os, signal, sys, time
import ftslurm
import torch
import torch.distributed as dist
rank, round_ = int(os.environ["RANK"]), int(os.environ["FTSLURM_ROUND"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
for step in range(3):
    ftslurm.heartbeat()
    ftslurm.progress(step)
    dist.all_reduce(torch.ones(8))
"""
END = """
if round_ == 1:
    act()
    dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")


def records(run: Started, round_: int = 1) -> dict[int, FlightRecord]:
    """Return the records of a round, by rank."""
    found = {}
    for path in sorted((run.run_dir / f"rounds/{round_:06d}/ranks").glob("*/collectives.json")):
        record = read_record(FlightRecord, path.read_bytes(), str(path))
        assert (record.rank, record.round) == (int(path.parent.name), round_)
        found[record.rank] = record
    return found


def waits_in(record: FlightRecord) -> list[tuple[str, int]]:
    """Return the collectives that a rank has called and that are not over."""
    assert record.trace is not None, record
    return [(one.profiling_name, one.collective_seq_id) for one in record.trace.entries if not one.retired]


def test_at_a_hang_the_records_of_all_ranks_are_there_also_of_one_that_holds_the_lock_and_of_one_that_is_stopped(
    start: Start,
) -> None:
    script = """
def act():
    if rank == 1:
        ctypes.PyDLL(None).sleep(600)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
"""
    run = start(BEGIN + script + END, *NODES, *PATIENT, "--max-restarts", "1")
    assert run.wait(120) == 0, run.err
    found = records(run)
    assert sorted(found) == [0, 1, 2, 3], run.err
    # Of three all-reduces each, and the fourth, in which only those are that have come to it.
    assert [waits_in(found[rank]) for rank in (0, 3)] == [[("gloo:all_reduce", 4)]] * 2
    assert waits_in(found[1]) == []
    assert found[1].trace is not None and found[1].trace.entries[-1].collective_seq_id == 3
    assert found[2].trace is None and found[2].source == "none"
    assert found[2].trouble == "stopped by a signal"
    assert {record.after for record in found.values()} == {None}
    assert found[0].torch and found[0].step == 2 and found[0].took_s is not None
    # Before any rank was signalled.
    shown = stacks(run)
    assert all(found[rank].time_ns <= shown[rank].time_ns for rank in found)
    assert max(one.time_ns for one in found.values()) <= min(one["ended_ns"] for one in workers(run).values())
    assert len(history(run)) == 2 and not records(run, 2)
    assert "Server listening" not in run.out + run.err


def test_a_rank_that_others_wait_for_is_recorded_when_their_collective_times_out(start: Start) -> None:
    script = (
        BEGIN.replace("seconds=60", "seconds=3")
        + """
def act():
    if rank == 3:
        time.sleep(600)
"""
    )
    run = start(script + END, *NODES, "--max-restarts", "1")
    assert run.wait(120) == 0, run.err
    found = records(run)
    assert 3 in found, run.err
    assert waits_in(found[3]) == []
    assert found[3].source == "socket" and found[3].trace is not None
    assert found[3].trace.entries[-1].collective_seq_id == 3
    left = [one.trace for one in found.values() if one.source == "dump"]
    # Gloo counts the one that failed as done.
    assert left and all(trace is not None and trace.entries[-1].collective_seq_id == 4 for trace in left), found
    assert "in act" in stacks(run)[3].stacks.text


def test_the_users_own_size_of_the_recorder_counts_and_off_is_off(start: Start) -> None:
    script = (
        BEGIN
        + """
import json
sockets = [name for name in os.listdir(os.environ["FTSLURM_RECORD_DIR"]) if name.endswith(".sock")]
print("SEEN", os.environ.get("TORCH_FR_BUFFER_SIZE"), sockets, flush=True)
"""
    )
    for options, environment, expected in (
        ((), {}, "SEEN 2000 ['collectives.sock']"),
        ((), {"TORCH_FR_BUFFER_SIZE": "70"}, "SEEN 70 ['collectives.sock']"),
        ((), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "70"}, "SEEN None ['collectives.sock']"),
        (("--flight-recorder", "off"), {}, "SEEN None []"),
    ):
        run = start(script, "--local-nodes", "1", *options, **environment)
        assert run.wait(60) == 0, run.err
        assert expected in run.out, run.out
        assert "Server" not in run.out + run.err


def test_of_a_rank_that_the_peer_heartbeat_finds_stopped_nothing_is_invented_and_the_others_leave_theirs(
    start: Start,
) -> None:
    script = (
        BEGIN
        + """
from ftslurm import peer
stop = peer.start(period=0.3, timeout=1.0)
def act():
    if rank == 2:
        time.sleep(600) if sys.argv[1:] else ctypes.PyDLL(None).sleep(600)
"""
    )
    run = start(script + END.replace("dist.destroy", "stop.set()\ndist.destroy"), *NODES, "--max-restarts", "1")
    assert run.wait(120) == 0, run.err
    found = records(run)
    assert found[2].source == "socket" and found[2].trace is not None, (found, run.err)
    # The others were where rank 2 has not come to, when the heartbeat ended them.
    assert found[2].trace.entries[-1].profiling_name == "gloo:all_reduce"
    others = [found[rank] for rank in (0, 1, 3) if rank in found and found[rank].trace is not None]
    assert any(("gloo:all_reduce", 4) in waits_in(one) for one in others), found


def test_stacks_of_a_running_job_are_shown_on_request_and_it_goes_on(start: Start) -> None:
    script = (
        BEGIN
        + """
open(f"up{rank}", "w").close()
def wait_for_it():
    while not os.path.exists("done"):
        time.sleep(0.05)
        if rank == 3:
            ftslurm.heartbeat()
if rank == 3:
    wait_for_it()
dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""
    )
    run = start(script, *NODES)
    run.until(lambda: all((run.directory / f"up{rank}").exists() for rank in range(4)), 60)
    for _ in range(2):
        asked = ask(run)
        assert asked.returncode == 0, asked.stderr + run.err
        assert "round 1, 4 ranks on 2 nodes" in asked.stdout
        assert "ranks 0-2 (local0, local1)" in asked.stdout and "train.py" in asked.stdout
        assert "in all_reduce #4 [8 float32] (default_pg), called" in asked.stdout
        assert "last collective: all_reduce #3 [8 float32] (default_pg), over, called" in asked.stdout
        assert "in wait_for_it" in asked.stdout
        assert not (run.run_dir / "nodes/stacks.request").exists()
    (run.directory / "done").touch()
    assert run.wait(60) == 0, run.err
    assert len(history(run)) == 1
    ended = ask(run)
    assert ended.returncode == 3 and "does not run: it has ended" in ended.stderr


def ask(run: Started) -> subprocess.CompletedProcess[str]:
    """Call ``ftslurm stacks`` for that run."""
    command = [sys.executable, "-m", "ftslurm.cli", "stacks", str(run.run_dir), "--wait", "15"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

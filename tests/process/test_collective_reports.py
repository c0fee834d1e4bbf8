"""Real ranks over gloo that hang in their collectives: the report's first lines name the call, its number and the rank.

Calls are made by helpers, and from different functions, so that the stacks of all ranks end alike.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import test_run
from test_run import Start

start = test_run.start
NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--grace", "2", "--max-restarts", "0")
QUICK = ("--heartbeat-timeout", "3")

# Three all-reduces of all, and one in the group of ranks 0 to 2; then each kind's own part.
SCRIPT = """\
import ctypes, datetime, os, signal, sys, threading, time
rank = int(os.environ["RANK"])
{before}
import torch
import torch.distributed as dist
import ftslurm
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={timeout}))
side = dist.new_group([0, 1, 2])
def make(operation, *arguments, **options):
    return getattr(dist, operation)(*arguments, **options)
def reduce(size=16, dtype=torch.float32, **options):
    return make("all_reduce", torch.ones(size, dtype=dtype), **options)
def gather(size=16):
    return make("all_gather", [torch.ones(size) for _ in range(4)], torch.ones(size))
def spread():
    make("broadcast", torch.ones(16), 0)
def forward():
    reduce()
def evaluate():
    reduce()
for step in range(3):
    ftslurm.heartbeat()
    ftslurm.progress(step)
    forward()
if rank < 3:
    reduce(group=side)
ftslurm.heartbeat()
def part():
{part}
part()
forward()
time.sleep({rest})
dist.destroy_process_group()
"""

NOT_JOINED = "rank 3 on local1 has not joined all_reduce #4 [16 float32], in which ranks 0-2 wait (group default_pg)"

# What the ranks do, the rank that is named, the report's first lines, and what else is in it.
KINDS: dict[str, tuple[str, int | None, str, str]] = {
    "operation": (
        "gather() if rank == 2 else reduce()",
        2,
        r"rank 2 on local1 calls all_gather #4 \[16 float32\] where ranks 0-1, 3 call all_reduce #4 \[16 float32\]"
        r" \(group default_pg\) in all_gather at train.py:\d+",
        "waits in all_gather #4",
    ),
    "size": (
        "reduce(64 if rank == 2 else 16)",
        2,
        r"rank 2 on local1 calls all_reduce #4 \[64 float32\] where ranks? [-0-3, ]+ calls? all_reduce #4 \[16 ",
        "equally many elements",
    ),
    "dtype": (
        "reduce(dtype=torch.float64 if rank == 1 else torch.float32)",
        1,
        r"rank 1 on local0 calls all_reduce #4 \[16 float64\] where ranks? [-0-3, ]+ calls? all_reduce #4 \[16 ",
        "one type on all ranks",
    ),
    "order": (
        "(reduce(), spread()) if rank == 1 else (spread(), reduce())",
        1,
        r"rank 1 on local0 calls all_reduce #4 \[16 float32\] where ranks 0, 2-3 call broadcast #4 \[16 float32\]",
        "in the same order",
    ),
    "skipped barrier": (
        "rank == 3 or make('barrier')",
        3,
        r"rank 3 on local1 calls all_reduce #4 \[16 float32\] where ranks 0-2 call barrier #4 \(group default_pg\)",
        "wait in barrier #4",
    ),
    "subgroup": (
        "rank in (2, 3) or reduce(group=side)",
        2,
        r"rank 2 on local1 has not joined all_reduce #2 \[16 float32\], in which ranks 0-1 wait \(group 1\)",
        "one order",
    ),
    "point to point": (
        "rank or make('recv', torch.ones(16), 2)",
        0,
        r"rank 0 on local0 has not joined all_reduce #4 \[16 float32\], in which ranks 1-3 wait \(group default_pg\)"
        r" in recv at train.py:\d+",
        "has not joined; last completed all_reduce #3",
    ),
    "uneven data": (
        "[evaluate() for _ in range(2 if rank == 3 else 3)] and make('barrier')",
        3,
        r"rank 3 on local1 calls barrier #6 where ranks 0-2 call all_reduce #6 \[16 float32\] \(group default_pg\)",
        "waits in barrier #6",
    ),
    "sleep": (
        "rank == 3 and time.sleep(600)",
        3,
        re.escape(NOT_JOINED) + r" in time.sleep at train.py:\d+",
        "time.sleep",
    ),
    "a call in C that holds the interpreter's lock": (
        # A lock, not a sleep: that would return early at the signal for the stacks, and the ranks of a node that is
        # asked later would have gone on.
        """mutex, lock = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock
    if rank == 3:
        lock(mutex)
        lock(mutex)""",
        3,
        re.escape(NOT_JOINED),
        "last completed all_reduce #3",
    ),
    "a deadlock of two threads": (
        """one, two = threading.Lock(), threading.Lock()
    def other():
        with two:
            time.sleep(0.3)
            one.acquire()
    if rank == 3:
        with one:
            threading.Thread(target=other, daemon=True).start()
            time.sleep(0.1)
            two.acquire()""",
        3,
        re.escape(NOT_JOINED) + r" in two.acquire at train.py:\d+",
        "last completed all_reduce #3",
    ),
    "stopped": (
        "rank == 3 and os.kill(os.getpid(), signal.SIGSTOP)",
        3,
        r"rank 3 on local1: hung: stopped \(SIGSTOP\), while 3 ranks wait in all_reduce at train.py:\d+",
        "ranks 0-2 wait in all_reduce #4 [16 float32] (group default_pg); of rank 3 it is not known",
    ),
    "stuck in destroy_process_group": (
        "rank == 2 and (reduce(64, async_op=True), dist.destroy_process_group()) or make('barrier')",
        2,
        r"rank 2 on local1 calls all_reduce #4 \[64 float32\] where ranks 0-1, 3 call barrier #4 \(group default_pg\)",
        "waits in all_reduce #4 [64 float32]",
    ),
    "two against two": (
        "gather() if rank % 2 else reduce()",
        None,
        r"ranks 0, 2 call all_reduce #4 \[16 float32\] where ranks 1, 3 call all_gather #4 \[16 float32\]"
        r" \(group default_pg\)",
        "none of them is a suspect",
    ),
    "other roots": (
        "make('broadcast', torch.ones(16), 1 if rank == 2 else 0)",
        None,
        "",
        "or the roots (src, dst) differ",
    ),
}


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")


def script(part: str, *, before: str = "", timeout: float = 60, rest: float = 0) -> str:
    return SCRIPT.format(part=f"    {part}", before=before, timeout=timeout, rest=rest)


def round_of(run: test_run.Started) -> dict[str, Any]:
    """Return the report's entry of round 1."""
    found: dict[str, Any] = json.loads((run.run_dir / "report.json").read_text())["rounds"][0]
    return found


def one_line(run: test_run.Started) -> str:
    return " ".join(run.out.split())


@pytest.mark.parametrize("kind", KINDS)
def test_a_hang_is_reported_with_the_call_and_the_rank(start: Start, kind: str) -> None:
    part, rank, first, more = KINDS[kind]
    run = start(script(part), *NODES, *QUICK)
    assert run.wait(120) == 1, run.err
    headline = one_line(run)
    entry = round_of(run)
    assert re.search(f"FAILED: {first}", headline), run.out
    assert more in headline, run.out
    suspects = [group["ranks"] for group in (entry["whereabouts"] or {"groups": []})["groups"] if group["suspect"]]
    if rank is not None:
        assert entry["first_failure"]["rank"] == rank
        assert suspects in ([str(rank)], [])
    elif first:
        assert suspects == []


def test_when_a_rank_has_no_record_the_rank_that_others_wait_for_is_named_all_the_same(start: Start) -> None:
    before = "os.environ['TORCH_FR_BUFFER_SIZE'] = '0' if rank == 1 else '2000'"
    run = start(script("rank == 3 and time.sleep(600)", before=before), *NODES, *QUICK)
    assert run.wait(120) == 1, run.err
    assert re.search(
        r"rank 3 on local1 has not joined all_reduce #4 \[16 float32\], in which ranks 0, 2 wait", one_line(run)
    ), run.out
    assert "no record of rank 1 on local0" in one_line(run), run.out


def test_a_rank_that_ends_early_is_named_with_the_call_that_waits_for_it(start: Start) -> None:
    run = start(script("rank == 1 and sys.exit(0)"), *NODES, *QUICK)
    assert run.wait(120) == 1, run.err
    assert round_of(run)["first_failure"]["rank"] == 1, run.out
    assert re.search(
        r"FAILED: rank 1 on local0 (ended with exit code 0 while ranks .* wait in|has not joined) all_reduce #4",
        one_line(run),
    ), run.out


def test_when_a_collective_times_out_in_the_script_the_rank_that_did_not_come_is_named(start: Start) -> None:
    run = start(script("rank == 3 and time.sleep(600)", timeout=4), *NODES)
    assert run.wait(120) == 1, run.err
    assert round_of(run)["first_failure"]["rank"] == 3, run.out
    assert re.search(
        r"FAILED: rank 3 on local1 has not joined all_reduce #4 \[16 float32\], in which ranks? [-0-2, ]+ waits?",
        one_line(run),
    ), run.out


def test_a_peer_that_does_not_answer_is_named_with_the_call_that_waits_for_it(start: Start) -> None:
    part = "rank == 3 and ctypes.PyDLL(None).sleep(600)"
    beat = "from ftslurm import peer; stop = peer.start(period=0.3, timeout=1.5)\nside ="
    run = start(script(part).replace("side =", beat).replace("dist.destroy", "stop.set()\ndist.destroy"), *NODES)
    assert run.wait(120) == 1, run.err
    assert round_of(run)["first_failure"]["rank"] == 3, run.out
    assert "rank 3 on local1 has not joined all_reduce #4 [16 float32], in which" in one_line(run), run.out


DECOYS = {
    "slow but healthy": "[(time.sleep(0.8 if rank == 2 else 0), ftslurm.heartbeat(), evaluate()) for _ in range(5)]",
    "one late rank": "(rank == 1 and time.sleep(2)); evaluate(); ftslurm.heartbeat()",
    "work in flight": "reduce(async_op=True); time.sleep(2); ftslurm.heartbeat()",
}


@pytest.mark.parametrize("kind", DECOYS)
def test_a_healthy_job_is_left_alone(start: Start, kind: str) -> None:
    run = start(script(DECOYS[kind]), *NODES, "--heartbeat-timeout", "20")
    assert run.wait(120) == 0, run.err
    assert [entry["first_failure"] for entry in [round_of(run)]] == [None]

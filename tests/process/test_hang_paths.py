"""Where ranks of a hang part, which had finished, and which of their threads died: with real ranks."""

from __future__ import annotations

import time
from pathlib import Path

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.text import render
from tests.process.test_run import Start, Started, start

__all__ = ["start"]

NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--health", "off", "--max-restarts", "0", "--hang-timeout", "5")
PATHS = """
import os, time
rank = int(os.environ["RANK"])
def meet():
    time.sleep(600)
def evaluate():
    meet()
def train():
    meet()
evaluate() if rank == 0 else train()
"""
FINISHES = """
import os, time
import ftslurm
rank = int(os.environ["RANK"])
for step in range(9):
    ftslurm.progress(step)
    if rank == 1 and step == 5:
        raise SystemExit(0)
time.sleep(600)
"""
THREAD = """
import os, queue, threading, time
rank = int(os.environ["RANK"])
batches = queue.Queue()
def load():
    raise ValueError("sample 5 is broken")
if rank == 2:
    threading.Thread(target=load, name="prefetch").start()
    batches.get()
time.sleep(600)
"""


def report(run: Started) -> str:
    assert run.wait(60) == 1, run.err
    return " ".join(render(analyse(gather(Path(run.run_dir), now_ns=time.time_ns())), width=300).split())


def test_ranks_at_the_same_line_are_parted_where_their_paths_part(start: Start) -> None:
    text = report(start(PATHS, *NODES))
    assert "rank 0 on local0: hung in time.sleep at train.py:5 (from train.py:7), while 3 ranks are in" in text, text
    assert "ranks 1-3 in time.sleep at train.py:5 (from train.py:9)" in text


def test_a_rank_that_had_finished_is_named_with_its_step(start: Start) -> None:
    text = report(start(FINISHES, *NODES))
    assert "hung in time.sleep at train.py:9; rank 1 had finished with exit code 0 at step 5" in text, text


def test_a_thread_that_died_is_named_with_the_hang_and_the_call_by_its_own_name(start: Start) -> None:
    run = start(THREAD, *NODES)
    text = report(run)
    assert "rank 2 on local1: hung in queue.get at train.py:9" in text, text
    assert "thread prefetch of rank 2 died at train.py:6: ValueError: sample 5 is broken" in text
    # The rank whose time is over first may be any of them.
    assert "round 1 hangs (rank " in run.err
    assert "failed: the round hung (rank " in run.err

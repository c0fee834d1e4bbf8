"""A job that hangs until it is stopped from outside: all ranks show where they were, and a save is not disturbed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from hang_story import stacks

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.text import render
from ftslurm.status import snapshot as status_snapshot
from ftslurm.status.summary import summarise
from ftslurm.status.text import render as render_status
from tests.process.test_run import Start, Started, start

__all__ = ["start"]

NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--health", "off")
HANGS = """
import os, queue, time
rank = int(os.environ["RANK"])
def waits():
    open(f"up{rank}", "w").close()
    queue.Queue().get()
def stuck():
    open(f"up{rank}", "w").close()
    time.sleep(600)
print("begins", flush=True)
stuck() if rank == 3 else waits()
"""
SAVES = """
import os, signal, sys, time
rank = os.environ["RANK"]
def save(*_):
    open(f"saved{rank}", "w").write(repr(time.time()))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(f"up{rank}", "w").close()
while True:
    sum(range(1000))
"""
NO_PYTHON = 'trap "touch saved$RANK; exit 0" TERM; touch up$RANK; while :; do sleep 0.05; done'


def up(run: Started) -> None:
    run.until(lambda: all((run.directory / f"up{rank}").exists() for rank in range(4)), 60)


def report(run: Started) -> str:
    return render(analyse(gather(Path(run.run_dir), now_ns=time.time_ns())), width=200)


def test_a_stopped_job_whose_ranks_had_not_moved_says_so_and_where_each_one_was(start: Start) -> None:
    run = start(HANGS, *NODES)
    up(run)
    time.sleep(24)  # what is measured: time in which nothing moves
    found = status_snapshot.read(Path(run.run_dir), wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns)
    assert 10 < summarise(found)["quiet_s"] < 60
    later = summarise(found) | {"quiet_s": 61.0}
    text = render_status(later)
    assert "no rank has printed anything for 1 min" in text
    assert "a rank that hangs is not detected" in text
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    shown = stacks(run)
    assert sorted(shown) == [0, 1, 2, 3]
    assert all(one.stop is not None and one.why is None and one.still is not None for one in shown.values())
    text = report(run)
    assert "no rank had moved for" in text, text
    assert "rank 3 on local1" in text
    assert "no rank is to blame" not in text
    assert "no rank had moved for" in run.out + run.err


def test_a_job_that_moves_keeps_its_saves_and_is_not_called_hung(start: Start) -> None:
    run = start(SAVES, *NODES)
    up(run)
    sent = time.time()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    times = [float((run.directory / f"saved{rank}").read_text()) - sent for rank in range(4)]
    print("SIGTERM reached the ranks after", [f"{one:.2f} s" for one in times])
    assert max(times) < 3
    assert sorted(stacks(run)) == [0, 1, 2, 3]
    text = report(run)
    assert "no rank is to blame" in text
    assert "moved" not in text


def test_a_program_without_python_is_not_hurt_by_the_collection(start: Start) -> None:
    run = start("", *NODES, "--no-python", "sh", "-c", NO_PYTHON)
    up(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    assert all((run.directory / f"saved{rank}").exists() for rank in range(4))

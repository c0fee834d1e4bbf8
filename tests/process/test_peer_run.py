"""The peer heartbeat below `ftslurm run`: the ranks find the one that is stopped, and the job goes on without it."""

from __future__ import annotations

import pytest
import test_run
from hang_story import NODES, blamed, history
from test_run import Start

start = test_run.start

SCRIPT = """\
import os, signal, torch, time
import torch.distributed as dist
from ftslurm import peer
rank, round_ = int(os.environ["RANK"]), int(os.environ["FTSLURM_ROUND"])
dist.init_process_group("gloo")
stop = peer.start(period=0.3, timeout=1.0)
if rank == 2 and round_ == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(torch.ones(8))
stop.set()
dist.destroy_process_group()
"""


def test_a_rank_that_answers_no_peer_is_named_by_the_others_and_the_next_round_succeeds(start: Start) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    run = start(SCRIPT, *NODES, "--max-restarts", "1")
    assert run.wait(120) == 0, run.err
    assert len(history(run)) == 2
    assert "rank 2 on local1 was stopped (SIGSTOP) while the others waited for it" in " ".join(run.out.split()), run.out
    assert blamed(run)["rank"] == 2, run.out

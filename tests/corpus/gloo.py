"""Real all-reduces over gloo; what happens to one rank is argv[1]."""

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import HARMED, RANK, STEP

import ftslurm


def harm() -> None:
    if sys.argv[1] == "exception":
        raise ValueError("row 4711 has no label")  # here
    if sys.argv[1] == "segfault":
        ctypes.string_at(0)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


dist.init_process_group("gloo", timeout=timedelta(seconds=3 if sys.argv[1] == "late" else 60))
for step in range(STEP + 1):
    ftslurm.progress(step)
    dist.all_reduce(torch.ones(1))
if RANK == HARMED:
    harm()
dist.all_reduce(torch.ones(1))  # the victims

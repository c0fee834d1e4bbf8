"""A DDP script for the benchmark of restarts with warm imports: fails once, if that is requested.

    warm_worker.py EVENTS raise|kill

The last rank fails when the file EVENTS.fail is there: it raises, or it is killed as by the kernel. Lines of EVENTS:
see `worker.py`; "step" is the end of a rank's first step, "pace" that of each tenth.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import ftslurm
from benchmarks.worker import RANK, WORLD_SIZE, note


def main(events: str, how: str) -> None:
    """Train until it has to fail, or to the first step after the failure."""
    again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256)] * 4))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.ones(64, 256)
    step = 0
    while step == 0 or not again:
        ftslurm.progress(step)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        if step == 0:
            note(events, "step", time.monotonic_ns())
        elif step % 10 == 0:
            note(events, "pace", time.monotonic_ns())
        step += 1
        if not again and RANK == WORLD_SIZE - 1 and os.path.exists(events + ".fail"):
            note(events, "fail", time.monotonic_ns())
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("requested failure")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

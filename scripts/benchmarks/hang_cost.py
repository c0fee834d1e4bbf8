"""An unmodified script: prints the least time of a collective of one rank and of a small optimizer's step, seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

BATCHES, CALLS = 40, 1000


def least_s(call: Callable[[], object]) -> float:
    """Return the least mean time of `CALLS` calls; what disturbs the machine only makes others longer."""
    best = float("inf")
    for _ in range(BATCHES):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - began) / CALLS)
    return best


torch.set_num_threads(1)
dist.init_process_group("gloo")
tensor = torch.ones(1000)
parameter = torch.ones(1, requires_grad=True)
parameter.grad = torch.ones(1)
optimizer = torch.optim.SGD([parameter], lr=1e-9)
print(f"least {least_s(lambda: dist.all_reduce(tensor)):.9f} {least_s(optimizer.step):.9f}", flush=True)
dist.destroy_process_group()

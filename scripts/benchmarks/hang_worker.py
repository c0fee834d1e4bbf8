"""An unmodified DDP script: prints the median time of a step."""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.ones(64, 256)
times = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - began)
if dist.get_rank() == 0:
    print(f"median step {statistics.median(times[len(times) // 10 :]):.9f}", flush=True)
dist.destroy_process_group()

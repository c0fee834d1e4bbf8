"""Models that differ between the ranks, over gloo."""

import torch
import torch.distributed as dist
from ranks import RANK
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
layers = [torch.nn.Linear(2, 2) for _ in range(1 + RANK % 2)]
DistributedDataParallel(torch.nn.Sequential(*layers))

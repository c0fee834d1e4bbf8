"""Exceptions as torch raises them for CUDA, constructed: there is no GPU. argv[1] says which."""

import sys

from ranks import train

ASSERT = """CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
OOM = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 11.44 GiB is "
    "free. Including non-PyTorch memory, this process has 67.70 GiB memory in use."
)


def step() -> None:
    import torch

    if sys.argv[1] == "oom":
        raise torch.cuda.OutOfMemoryError(OOM)  # here
    raise getattr(torch, "AcceleratorError", RuntimeError)(ASSERT)


train(step)

"""The ranks that are stopped raise from their handlers of SIGTERM, each with a traceback of its own."""

import signal

from ranks import RANK, train

import ftslurm


def stop(*_: object) -> None:
    raise RuntimeError(f"rank {RANK} got SIGTERM, CUDA error: device-side assert triggered")


def step() -> None:
    raise ValueError("row 4711 has no label")  # here


ftslurm.progress(0)
signal.signal(signal.SIGTERM, stop)
train(step)

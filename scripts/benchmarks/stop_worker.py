"""The ranks of `bench stop`: ``calls`` measures one call beside an all-reduce, ``train`` is stopped."""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ftslurm

CALLS, REDUCES, BLOCKS = 2_000, 200, 50
"""Calls of a block, and blocks: short ones, so that the best one is not interrupted by other processes."""
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def seconds_per_call(call: Callable[[int], object], number: int) -> float:
    """Return the mean time of a call in the fastest of some blocks, without that of the loop."""
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for step in range(number):
            call(step)
        best = min(best, time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(number):
        pass
    return (best - (time.perf_counter() - start)) / number


def calls(directory: Path) -> None:
    """Write seconds per call of `should_stop`, and of an all-reduce of one integer by gloo if torch is there."""
    found = [seconds_per_call(ftslurm.should_stop, CALLS)]
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        pass
    else:
        dist.init_process_group("gloo")
        flag = torch.zeros(1, dtype=torch.int32)

        def reduce(step: int) -> bool:
            dist.all_reduce(flag)
            return bool(flag.item())

        found.append(seconds_per_call(reduce, REDUCES))
        dist.destroy_process_group()
    (directory / f"calls{RANK}").write_text(" ".join(map(repr, found)))


class Collective:
    """A barrier of all ranks by TCP: it hangs, as a collective does, if one rank has left."""

    def __init__(self) -> None:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._peers: list[socket.socket] = []
        if RANK == 0:
            listener = socket.create_server(("", place[1]))
            self._peers = [listener.accept()[0] for _ in range(WORLD - 1)]
        while not self._peers:
            try:
                self._peers = [socket.create_connection(place)]
            except OSError:
                time.sleep(0.02)

    def join(self) -> None:
        """Wait for all ranks; a rank that has left is waited for for ever."""
        if RANK:
            self._peers[0].sendall(b".")
        for peer in self._peers:
            if not peer.recv(1):
                time.sleep(3600)
        if RANK == 0:
            for peer in self._peers:
                peer.sendall(b".")


def train(directory: Path) -> None:
    """Train until the stop; then save for a while, and write the step."""
    jitter = random.Random(RANK)
    pace_s, save_s = float(os.environ["PACE_S"]), float(os.environ["SAVE_S"])
    collective = Collective() if os.environ.get("COLLECTIVE") else None
    step = 0
    while not ftslurm.should_stop(step):
        time.sleep(pace_s * jitter.uniform(0.2, 1.8))
        if collective is not None:
            collective.join()
        if step == 0:
            (directory / f"up{RANK}.new").write_text(str(os.getpid()))
            (directory / f"up{RANK}.new").rename(directory / f"up{RANK}")
        step += 1
    with ftslurm.section("checkpoint"):
        time.sleep(save_s)
        (directory / f"saved{RANK}").write_text(str(step))
    if collective is not None:
        collective.join()


if __name__ == "__main__":
    {"calls": calls, "train": train}[sys.argv[1]](Path(sys.argv[2]))

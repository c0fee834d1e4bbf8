"""Other watchdogs, each with its own client and server, for ``bench monitor``; prints its samples as JSON.

monitor_others.py (nvrx|torch) DIRECTORY calls
monitor_others.py (nvrx|torch) DIRECTORY hang PHASE
monitor_others.py (nvrx|torch) DIRECTORY beat SECONDS
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 1.0
RANKS = 8
BURST, PAUSE_S, REPEATS = 50, 0.02, 40  # few at once: torch's client raises when its pipe is full
PATIENCE_S = 30.0
SETTLE_S = 1.0
FORK = multiprocessing.get_context("fork")


class Nvrx:
    """NVRx's rank monitor: a process per rank, asked over a socket."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.client: Any = None

    def serve(self, rank: int) -> list[int]:
        """Start the server of a rank; return the ids of its processes."""
        from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig
        from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer

        config = FaultToleranceConfig(  # its defaults, but for what is measured and what needs other hardware
            initial_rank_heartbeat_timeout=PATIENCE_S,
            rank_heartbeat_timeout=TIMEOUT_S,
            rank_section_timeouts={"step": PATIENCE_S},
            rank_termination_signal=signal.SIGUSR1,
            log_level=logging.ERROR,
            enable_nic_monitor=False,
        )
        return [RankMonitorServer.run_in_subprocess(config, self._socket(rank), False, FORK).pid]

    def connect(self, rank: int) -> None:
        from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import RankMonitorClient

        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), FT_RANK_MONITOR_IPC_SOCKET=self._socket(rank))
        self.client = RankMonitorClient()
        self.client.init_workload_monitoring()

    def beat(self) -> None:
        self.client.send_heartbeat()

    def section(self) -> None:
        self.client.start_section("step")
        self.client.end_section("step")

    def begin(self) -> float:
        """Let a time-out begin; return the monotonic second at which it is over."""
        self.beat()
        return time.monotonic() + TIMEOUT_S

    def _socket(self, rank: int) -> str:
        return os.path.join(self.directory, f"monitor-{rank}.socket")


class FileTimer:
    """torch's file timer: a thread of the agent that reads a named pipe; its heartbeat is to arm a timer again."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, "timer")
        self.client: Any = None

    def serve(self, rank: int) -> list[int]:
        if rank:
            return []
        process = FORK.Process(target=self._serve, daemon=True)
        process.start()
        deadline = time.monotonic() + PATIENCE_S
        while not os.path.exists(self.path) and time.monotonic() < deadline:
            time.sleep(0.01)
        return [process.pid] if process.pid else []

    def _serve(self) -> None:
        from torch.distributed.elastic.timer import FileTimerServer

        FileTimerServer(self.path, "bench", max_interval=0.1, daemon=True).start()  # as torch's agent has it
        time.sleep(1000.0)

    def connect(self, rank: int) -> None:
        from torch.distributed.elastic import timer

        self.client = timer.FileTimerClient(self.path, signal=signal.SIGUSR1)
        timer.configure(self.client)

    def beat(self) -> None:
        self.client.acquire("beat", time.time() + PATIENCE_S)

    def section(self) -> None:
        from torch.distributed.elastic import timer

        with timer.expires(after=PATIENCE_S, scope="step"):
            pass

    def begin(self) -> float:
        self.client.acquire("step", time.time() + TIMEOUT_S)
        return time.monotonic() + TIMEOUT_S


def best(call: Callable[[], None]) -> float:
    """Return the seconds that one call takes, in the fastest of some bursts: what disturbs only adds."""
    call()
    bursts = []
    for _ in range(REPEATS):
        time.sleep(PAUSE_S)
        began_ns = time.perf_counter_ns()
        for _ in range(BURST):
            call()
        bursts.append((time.perf_counter_ns() - began_ns) / BURST / 1e9)
    return min(bursts)


def calls(tool: Nvrx | FileTimer) -> dict[str, float]:
    tool.serve(0)
    tool.connect(0)
    return {"heartbeat": best(tool.beat), "section": best(tool.section)}


def hang(tool: Nvrx | FileTimer, phase_s: float) -> dict[str, float]:
    """Return the seconds from the deadline to the signal's arrival."""
    arrived: list[float] = []
    signal.signal(signal.SIGUSR1, lambda *_: arrived.append(time.monotonic()))
    tool.serve(0)
    tool.connect(0)
    tool.section()  # torch's server begins to look, every 0.1 s, when it first hears something
    time.sleep(phase_s)
    deadline = tool.begin()
    while not arrived and time.monotonic() < deadline + PATIENCE_S:
        time.sleep(1.0)  # A signal ends it.
    if not arrived:
        raise SystemExit(f"no signal within {PATIENCE_S:.0f} s after the deadline")
    return {"signalled": arrived[0] - deadline}


def beat(tool: Nvrx | FileTimer, seconds: float) -> dict[str, float]:
    """Return what the servers of eight ranks take while each of these beats 100 times a second."""
    servers = [pid for rank in range(RANKS) for pid in tool.serve(rank)]
    all_beat = FORK.Barrier(RANKS + 1)
    for rank in range(RANKS):
        FORK.Process(target=beat_on, args=(tool, rank, all_beat), daemon=True).start()
    all_beat.wait(PATIENCE_S)
    time.sleep(SETTLE_S)
    before_s, began_s = sum(map(cpu_s, servers)), time.monotonic()
    time.sleep(seconds)
    share = (sum(map(cpu_s, servers)) - before_s) / (time.monotonic() - began_s)
    own = servers if isinstance(tool, Nvrx) else []  # torch's server is a thread of the agent
    found = {"share": share, "processes": float(len(own))}
    return found | ({"pss": float(sum(map(pss, own)))} if own else {})


def beat_on(tool: Nvrx | FileTimer, rank: int, all_beat: Any) -> None:
    tool.connect(rank)
    tool.beat()
    all_beat.wait(PATIENCE_S)
    while True:
        tool.beat()
        time.sleep(0.01)


def cpu_s(pid: int) -> float:
    """Return the seconds on a core that a process's threads have had (proc(5): schedstat)."""
    total_ns = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
            total_ns += int(file.read().split()[0])
    return total_ns / 1e9


def pss(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def main() -> None:
    import torch.distributed.elastic.timer  # noqa: F401  # once, before the processes are forked

    name, directory, mode = sys.argv[1:4]
    tool = Nvrx(directory) if name == "nvrx" else FileTimer(directory)
    with contextlib.redirect_stdout(sys.stderr):
        if mode == "calls":
            found = calls(tool)
        elif mode == "hang":
            found = hang(tool, float(sys.argv[4]))
        else:
            found = beat(tool, float(sys.argv[4]))
    print(json.dumps(found), flush=True)
    for process in multiprocessing.active_children():
        process.kill()


if __name__ == "__main__":
    main()

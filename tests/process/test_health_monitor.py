"""What the watch over a node's health starts and leaves behind, with real processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ftslurm.agent.health_monitor import STUCK, HealthMonitor, HealthSettings
from ftslurm.agent.option_groups import ACT, HealthOptions
from ftslurm.health.catalog import builtin
from ftslurm.health.check import Context
from ftslurm.kernel import descendants

OTHERS = tuple(check.name for check in builtin() if check.name != "own-commands")


def watch(tmp_path: Path, command: str, spared: set[int] | None = None) -> HealthMonitor:
    context = Context("n1", dict(os.environ), commands=(command,), skip=OTHERS)
    settings = HealthSettings(HealthOptions(ACT, 300.0, (), None, ()), sys.executable, str(tmp_path), context)
    return HealthMonitor(settings, time.monotonic, time.time_ns, set() if spared is None else spared)


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_commands_of_an_interrupted_run_are_killed(tmp_path: Path) -> None:
    health = watch(tmp_path, f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; sleep 30")
    health.begin()
    wait_for((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    started = [one for one, _ in descendants(os.getpid())]
    assert pid in started
    health.on_round()
    wait_for(lambda: not any(is_running(one) for one in started))
    health.close()


def test_no_run_starts_while_too_many_processes_of_earlier_ones_hang_in_the_kernel(tmp_path: Path) -> None:
    spared = set(range(-STUCK, 1))
    health = watch(tmp_path, f"touch {tmp_path}/looked", spared)
    earlier = set(descendants(os.getpid()))
    health.begin()
    assert health.deadline is not None, "it is tried again"
    assert set(descendants(os.getpid())) <= earlier
    spared.pop()
    health.on_swept(None)
    wait_for((tmp_path / "looked").exists)
    health.close()

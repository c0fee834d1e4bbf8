"""What the peer heartbeat finds and what it must not take for a failure; real processes, real gloo on loopback."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from worker_process import environment

from ftslurm.peer import EXIT_CODE

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
RANKS = Path(__file__).with_name("peer_ranks.py")
PROLOGUE = """
import ctypes, os, signal, sys, threading, time, warnings
import torch.distributed as dist
from ftslurm import peer
RANK = int(os.environ["RANK"])
def begin(period=0.3, timeout=10.0, backend="gloo"):
    dist.init_process_group(backend, init_method=f"file://{os.getcwd()}/store", rank=RANK,
                            world_size=int(os.environ["WORLD_SIZE"]))
    return peer.start(period, timeout=timeout)
def hang_in_c():
    while True:
        ctypes.CDLL(None).pause()
"""
SLACK_S = 20.0  # a busy machine's


class World:
    """The ranks of one test."""

    def __init__(self, tmp_path: Path, script: str, size: int = 3) -> None:
        self.directory = tmp_path
        path = tmp_path / "train.py"
        path.write_text(PROLOGUE + script)
        command = [sys.executable, "-W", "ignore", str(RANKS), str(path), str(size), str(tmp_path)]
        self.process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE)
        self._rest = b""
        self.pids = {int(rank): pid for rank, pid in self._line(60.0).items()}
        self.ended: dict[int, int] = {}

    def _line(self, limit_s: float) -> Any:
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"nothing ended within {limit_s} s; {self.logs()}"
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, f"the ranks' parent has ended; {self.logs()}"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def wait(self, limit_s: float, *ranks: int) -> dict[int, int]:
        """Wait for the end of these ranks, of all if none are given; return their exit statuses."""
        wanted = set(ranks or self.pids)
        deadline = time.monotonic() + limit_s
        while not wanted <= self.ended.keys():
            rank, status, _ = self._line(deadline - time.monotonic())
            self.ended[rank] = status
        return {rank: self.ended[rank] for rank in sorted(wanted)}

    def await_file(self, name: str, limit_s: float = 60.0) -> None:
        """Wait until a rank has made this file."""
        deadline = time.monotonic() + limit_s
        while not (self.directory / name).exists():
            assert time.monotonic() < deadline, f"no {name}; {self.logs()}"
            time.sleep(0.02)

    def await_text(self, rank: int, text: str, count: int, limit_s: float = 40.0) -> None:
        """Wait until a rank has printed this so often."""
        deadline = time.monotonic() + limit_s
        while self.log(rank).count(text) < count:
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def log(self, rank: int) -> str:
        return (self.directory / f"{rank}.log").read_text()

    def logs(self) -> str:
        return "\n".join(f"--- rank {path.stem}:\n{path.read_text()}" for path in sorted(self.directory.glob("*.log")))

    def record(self, rank: int) -> dict[str, Any] | None:
        path = self.directory / f"records-{rank}" / "error.json"
        return json.loads(path.read_text()) if path.exists() else None

    def message(self, rank: int) -> str:
        record = self.record(rank)
        assert record is not None, self.logs()
        return str(record["message"]["message"])

    def close(self) -> None:
        for rank, pid in self.pids.items():
            if rank not in self.ended and self.process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """Start worlds that are gone after the test."""
    started: list[World] = []

    def start(script: str, size: int = 3) -> World:
        started.append(World(tmp_path, script, size))
        return started[-1]

    yield start
    for each in started:
        each.close()


def found_within(period_s: float, timeout_s: float) -> float:
    return 3 * (period_s + timeout_s) + SLACK_S


def test_ranks_that_agree_beat_on_and_end_without_output(world: Any) -> None:
    ranks = world("stop = begin(period=0.1)\ntime.sleep(1.5)\nassert not stop.is_set()\ndist.barrier()\n")
    assert ranks.wait(60.0) == {0: 0, 1: 0, 2: 0}, ranks.logs()
    assert "heartbeat failure" not in ranks.logs()
    assert all(ranks.record(rank) is None for rank in range(3))


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_by_all_others_though_their_main_threads_hang_in_c(world: Any, victim: int) -> None:
    script = f"begin(timeout=1.0)\nif RANK == {victim}: os.kill(os.getpid(), 9)\nhang_in_c()\n"
    ranks = world(script)
    others = {0, 1, 2} - {victim}
    ranks.wait(60.0, victim)
    assert ranks.wait(found_within(0.3, 1.0)) == {victim: -9, **dict.fromkeys(others, EXIT_CODE)}
    for rank in others:
        assert f"rank {victim} did not answer the peer heartbeat 3 times in a row" in ranks.message(rank)
        exception = ranks.record(rank)["ftslurm"]["exception"]
        assert exception["type"] == "PeerLostError"
        assert exception["frames"][-1]["function"] == "hang_in_c"
        assert f"PeerLostError: rank {victim}" in ranks.log(rank)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named_and_ends_itself_when_it_goes_on(world: Any, victim: int) -> None:
    ranks = world("begin(timeout=1.0)\ndist.barrier()\nopen(f'began-{RANK}', 'w')\nhang_in_c()\n")
    for rank in range(3):
        ranks.await_file(f"began-{rank}")
    os.kill(ranks.pids[victim], signal.SIGSTOP)
    others = {0, 1, 2} - {victim}
    assert set(ranks.wait(found_within(0.3, 1.0), *others).values()) == {EXIT_CODE}
    for rank in others:
        assert f"rank {victim} did not answer" in ranks.message(rank), ranks.logs()
    os.kill(ranks.pids[victim], signal.SIGCONT)
    assert ranks.wait(found_within(0.3, 1.0), victim) == {victim: EXIT_CODE}


def test_a_wrong_token_ends_all_ranks_at_once_and_is_named_by_all(world: Any) -> None:
    script = (
        "import dataclasses\nstop = begin()\n"
        "if RANK == 1:\n"
        "    link = peer.heartbeat._running._link\n"
        "    link.terms = peer.heartbeat._running._terms = dataclasses.replace(link.terms, token=5)\n"
        "hang_in_c()\n"
    )
    ranks = world(script)
    assert set(ranks.wait(SLACK_S + 10.0).values()) == {EXIT_CODE}, ranks.logs()
    assert "rank 1 answers the peer heartbeat with a wrong token" in ranks.message(0)
    assert "rank 1 answers the peer heartbeat with a wrong token" in ranks.message(2)
    assert "rank 1 is out of step: 2 of 3 ranks agree on another" in ranks.message(1)
    assert "heartbeat failure" not in ranks.logs()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_short_hiccup_is_forgotten(world: Any, victim: int) -> None:
    script = (
        "stop = begin(timeout=2.0)\ndist.barrier()\nopen(f'began-{RANK}', 'w')\n"
        "while not os.path.exists('enough'):\n    time.sleep(0.05)\n"
        "assert not stop.is_set()\ndist.barrier()\n"
    )
    ranks = world(script)
    for rank in range(3):
        ranks.await_file(f"began-{rank}")
    for count in (1, 2):
        os.kill(ranks.pids[victim], signal.SIGSTOP)
        ranks.await_text(2, "heartbeat failure 1", count)
        os.kill(ranks.pids[victim], signal.SIGCONT)
        ranks.await_text(2, "all ranks answer the peer heartbeat again", count)
    (ranks.directory / "enough").touch()
    assert ranks.wait(60.0) == {0: 0, 1: 0, 2: 0}, ranks.logs()
    assert all(ranks.record(rank) is None for rank in range(3))


@pytest.mark.parametrize("order", ["RANK", "2 - RANK"])
def test_ranks_that_end_long_after_each_other_raise_no_alarm(world: Any, order: str) -> None:
    # So short a period and time-out that three failures fit between two of the ends.
    ranks = world(f"begin(period=0.1, timeout=0.3)\ndist.barrier()\ntime.sleep(2.0 * ({order}))\n")
    assert ranks.wait(60.0) == {0: 0, 1: 0, 2: 0}, ranks.logs()
    assert "has left as it should" in ranks.logs()
    assert all(ranks.record(rank) is None for rank in range(3))


def test_setting_the_event_on_one_rank_ends_it_on_all_and_it_can_be_started_anew(world: Any) -> None:
    script = (
        "stop = begin()\ntime.sleep(0.3 * RANK)\n"
        "if RANK == 1: stop.set()\n"
        "assert stop.wait(30)\ndist.barrier()\n"
        "again = peer.start(0.2, timeout=10)\nassert again is not stop\ntime.sleep(1)\nassert not again.is_set()\n"
        "dist.barrier()\n"
    )
    ranks = world(script)
    assert ranks.wait(90.0) == {0: 0, 1: 0, 2: 0}, ranks.logs()
    assert "heartbeat failure" not in ranks.logs()


@pytest.mark.parametrize("last", ["raise ValueError('boom')", "os._exit(0)"])
def test_a_rank_that_ends_without_goodbye_is_found(world: Any, last: str) -> None:
    ranks = world(f"begin(timeout=1.0)\nif RANK == 1: {last}\nhang_in_c()\n")
    ended = ranks.wait(60.0 + found_within(0.3, 1.0))
    assert (ended[0], ended[2]) == (EXIT_CODE, EXIT_CODE), ranks.logs()
    assert "rank 1 did not answer" in ranks.message(0)


def test_the_exit_is_not_held_up_by_a_peer_that_is_stopped(world: Any) -> None:
    ranks = world("begin(timeout=60.0)\ndist.barrier()\nopen(f'began-{RANK}', 'w')\ntime.sleep(3)\n", size=2)
    for rank in range(2):
        ranks.await_file(f"began-{rank}")
    os.kill(ranks.pids[0], signal.SIGSTOP)
    assert ranks.wait(3.0 + 4.0 + SLACK_S, 1) == {1: 0}
    os.kill(ranks.pids[0], signal.SIGCONT)
    assert ranks.wait(30.0) == {0: 0, 1: 0}, ranks.logs()


def test_a_second_start_returns_the_running_one_with_a_warning(world: Any) -> None:
    script = (
        "stop = begin()\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n    assert peer.start(5) is stop\n"
        "assert 'running already' in str(caught[0].message)\n"
        "assert sum(t.name == 'ftslurm-peer-heartbeat' for t in threading.enumerate()) == 1\n"
    )
    ranks = world(script, size=2)
    assert ranks.wait(60.0) == {0: 0, 1: 0}, ranks.logs()


def test_a_forked_child_that_ends_is_not_its_rank(world: Any) -> None:
    script = (
        "stop = begin(period=0.1)\npid = os.fork()\nif pid == 0: sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\ntime.sleep(1)\nassert not stop.is_set()\ndist.barrier()\n"
    )
    ranks = world(script, size=2)
    assert ranks.wait(60.0) == {0: 0, 1: 0}, ranks.logs()
    assert "heartbeat failure" not in ranks.logs()


def test_the_default_group_need_not_be_gloo(world: Any) -> None:
    script = (
        "from torch.testing._internal.distributed.fake_pg import FakeProcessGroup\n"
        "import torch\n"
        "def make(store, rank, size, timeout):\n"
        "    try: return FakeProcessGroup(rank, size)\n"
        "    except TypeError: return FakeProcessGroup._create_internal(rank, size)\n"
        "dist.Backend.register_backend('other', make, devices=['cpu', 'cuda'])\n"
        "stop = begin(period=0.1, backend='other')\ntime.sleep(1)\n"
    )
    ranks = world(script, size=2)
    assert ranks.wait(60.0) == {0: 0, 1: 0}, ranks.logs()
    assert "heartbeat failure" not in ranks.logs()


def test_without_torch_distributed_there_is_one_clear_error(tmp_path: Path) -> None:
    source = "from ftslurm import peer\nimport sys\nassert 'torch' not in sys.modules\npeer.start()\n"
    command = [sys.executable, "-W", "ignore", "-c", source]
    process = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "call torch.distributed.init_process_group() before ftslurm.peer.start()" in process.stderr

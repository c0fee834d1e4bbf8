"""Stacks of real processes: of those that answer, and what is said of those that cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worker_process import WorkerProcess

from ftslurm.agent.kernel import descendants
from ftslurm.monitor import stacks
from ftslurm.monitor.stacks import DUMP_SIGNAL, Collector, Stacks, Target

SLEEP = "import os, time\ndef waits():\n    open('ready' + os.environ['LOCAL_RANK'], 'w')\n    time.sleep(600)\nwaits()\n"
READY = "open('ready' + os.environ['LOCAL_RANK'], 'w')\n"


class Ranks:
    """Real workers, started as an agent does, and ended with the test."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[bytes]] = []
        self.targets: list[Target] = []

    def start(self, source: str | None, *command: str, records: Path | None = None) -> Target:
        """Start a script, or a program, as the next local rank."""
        number = len(self.targets)
        worker = WorkerProcess(self.place / str(number))
        worker.env["LOCAL_RANK"] = str(number)
        if source is not None:
            script = self.place / f"{number}.py"
            script.write_text(source)
            command = ("--script", str(script))
        process = subprocess.Popen(
            worker.command(*command, "--"), cwd=self.place, env=worker.env, start_new_session=True
        )
        self.processes.append(process)
        self.targets.append(Target(number, process.pid, os.pidfd_open(process.pid), str(records or worker.records)))
        return self.targets[-1]

    def wait(self, numbers: Iterator[int] | None = None) -> None:
        """Wait until the scripts have said that they are where they will stay."""
        wanted = list(numbers if numbers is not None else range(len(self.targets)))
        until = time.monotonic() + 60
        while not all((self.place / f"ready{number}").exists() for number in wanted):
            assert time.monotonic() < until
            assert all(process.poll() is None for process in self.processes)
            time.sleep(0.01)
        time.sleep(0.05)  # from the file's making to the sleep

    def end(self) -> None:
        for process, target in zip(self.processes, self.targets, strict=True):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(target.pidfd)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path)
    yield ranks
    ranks.end()


def collect(
    targets: list[Target], timeout_s: float = 2.0, meanwhile: Callable[[], None] = lambda: None, pyspy: str = "no-spy"
) -> tuple[dict[int, Stacks], float]:
    """Drive a collector as the loop does; return its result and how long it took, in seconds."""
    collector = Collector(targets, descendants, timeout_s=timeout_s, pyspy=pyspy)
    began = time.monotonic()
    collector.start(began)
    meanwhile()
    while collector.deadline is not None:
        time.sleep(max(0.0, collector.deadline - time.monotonic()))
        before = time.monotonic()
        collector.poll(before)
        assert time.monotonic() - before < 0.5
    took_s = time.monotonic() - began
    collector.close()
    return collector.result(), took_s


def test_sixty_four_ranks_give_their_stacks_within_the_bound(ranks: Ranks) -> None:
    for _ in range(64):
        ranks.start(SLEEP)
    ranks.wait()
    found, took_s = collect(ranks.targets)
    print(f"64 ranks in {took_s * 1000:.0f} ms")
    assert [s.problem for s in found.values()] == [None] * 64
    for number, each in found.items():
        assert f'  File "{ranks.place}/{number}.py", line 4 in waits\n' in each.text
    assert took_s < 1.9
    assert all(process.poll() is None for process in ranks.processes)


def test_the_file_goes_to_the_report_and_back(ranks: Ranks) -> None:
    ranks.start(SLEEP)
    ranks.wait()
    found, _ = collect(ranks.targets)
    data = stacks.encode(found[0], rank=5, node="n1", time_ns=7, why="no heartbeat for 30.0 s")
    read = stacks.parse(data)
    assert read is not None
    assert (read.rank, read.node, read.time_ns, read.why) == (5, "n1", 7, "no heartbeat for 30.0 s")
    assert read.stacks.text == found[0].text.strip("\n")
    assert read.stacks.facts == found[0].facts
    assert dict(read.stacks.facts)["State"].startswith("S")


def test_a_stopped_rank_is_said_to_be_stopped_and_stays_so(ranks: Ranks) -> None:
    ranks.start(SLEEP)
    ranks.start(SLEEP)
    ranks.wait()
    os.kill(ranks.targets[0].pid, signal.SIGSTOP)
    os.waitid(os.P_PID, ranks.targets[0].pid, os.WSTOPPED)
    found, took_s = collect(ranks.targets)
    assert (found[0].problem, found[0].text) == ("stopped (SIGSTOP)", "")
    assert dict(found[0].facts)["State"].startswith("T")
    assert found[1].problem is None
    assert took_s < 1
    os.kill(ranks.targets[0].pid, signal.SIGCONT)
    time.sleep(0.1)
    assert (Path(ranks.targets[0].record_dir) / "hang.txt").read_text() == ""


def test_a_program_without_a_handler_is_not_killed_by_the_question(ranks: Ranks) -> None:
    worker = WorkerProcess(ranks.place / "c")
    process = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    target = Target(0, process.pid, os.pidfd_open(process.pid), str(worker.records))
    ranks.processes.append(process)
    ranks.targets.append(target)
    found, took_s = collect([target])
    assert found[0].problem == "does not catch the dump signal: it is not a Python script that ftslurm started"
    assert took_s < 0.5
    (worker.records / "hang.txt").touch()
    found, _ = collect([target])
    assert found[0].problem == "does not catch the dump signal, or has closed the file for its stacks"
    assert process.poll() is None

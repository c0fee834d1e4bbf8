"""Workers' processes, ours and torch's file timer in them, against the real pipe, the real marks and the watch."""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.heartbeat_page import HeartbeatPage
from ftslurm.monitor.pipe import Pipe
from ftslurm.monitor.timeouts import Timeouts
from ftslurm.monitor.watchdog import Expiry, Note, Watchdog
from tests.process.worker_process import environment

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


class Node:
    """An agent of the smallest kind: one pipe, one watch, its workers; one that hangs is killed."""

    def __init__(self, place: Path, timeouts: Timeouts) -> None:
        self.place = place
        self.pipe = Pipe(str(place / "node"))
        self.workers: dict[int, subprocess.Popen[str]] = {}
        self.watch = Watchdog(timeouts, lambda rank: heartbeat_page.read(place / str(rank)), self.owner)
        self.expiries: list[Expiry] = []
        self.notes: list[Note] = []
        self.lateness_s: list[float] = []

    def owner(self, pid: int) -> int | None:
        return next((rank for rank, worker in self.workers.items() if worker.pid == pid), None)

    def start(self, source: str, local_rank: int = 0, python: bool = True) -> subprocess.Popen[str]:
        records = self.place / str(local_rank)
        records.mkdir(mode=0o700, exist_ok=True)
        env = environment(
            FTSLURM_RECORD_DIR=str(records),
            FTSLURM_PIPE=self.pipe.path,
            TORCHELASTIC_TIMER_FILE=self.pipe.path,
            LOCAL_RANK=str(local_rank),
        )
        worker = subprocess.Popen(
            [sys.executable, "-u", "-c", source] if python else ["/bin/sh", "-c", source],
            env=env,
            cwd=self.place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.workers[local_rank] = worker
        self.watch.begin(local_rank, time.monotonic())
        return worker

    def turn(self) -> None:
        deadline = self.watch.deadline
        wait = 0.05 if deadline is None else min(max(deadline - time.monotonic(), 0), 0.05)
        select.select([self.pipe.fd], [], [], wait)
        now, wall = time.monotonic(), time.time()
        for line in self.pipe.read():
            note = self.watch.receive(line, now, wall)
            if note:
                self.notes.append(note)
        for expiry in self.watch.due(now):
            self.expiries.append(expiry)
            self.lateness_s.append(now - expiry.since_s - expiry.allowed_s)
            if expiry.signal:
                self.workers[expiry.local_rank].send_signal(signal.SIGCONT)
                self.workers[expiry.local_rank].send_signal(expiry.signal)

    def run(self, limit_s: float = 60) -> None:
        """Watch until all workers have ended."""
        end = time.monotonic() + limit_s
        while any(worker.poll() is None for worker in self.workers.values()):
            assert time.monotonic() < end, "the workers do not end"
            self.turn()

    def mark(self, local_rank: int = 0) -> HeartbeatPage:
        found = heartbeat_page.read(self.place / str(local_rank))
        assert found is not None
        return found

    def close(self) -> None:
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
            if worker.stdout:
                worker.stdout.close()
        self.pipe.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, Timeouts(heartbeat_s=0.5))
    yield made
    made.close()


def output(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.read()


def test_a_rank_that_stops_beating_is_found_in_time(node: Node) -> None:
    worker = node.start("import ftslurm, time\nfor _ in range(20): ftslurm.heartbeat(); time.sleep(.1)\ntime.sleep(60)")
    node.run()
    assert worker.returncode == -signal.SIGTERM
    assert [(e.kind, e.local_rank) for e in node.expiries] == [("heartbeat", 0)]
    print(f"{node.lateness_s[0] * 1e3:.1f} ms late")
    assert node.lateness_s[0] < 0.5
    assert node.mark().beats.number == 20


def test_a_stopped_rank_is_found_as_a_hung_one(node: Node) -> None:
    worker = node.start("import ftslurm, os, signal\nftslurm.heartbeat()\nos.kill(os.getpid(), signal.SIGSTOP)")
    node.run()
    assert worker.returncode == -signal.SIGTERM
    assert node.expiries[0].kind == "heartbeat"


def test_a_section_with_its_own_timeout_is_watched_from_its_first_opening(node: Node) -> None:
    node.watch.update(Timeouts())
    node.start("import ftslurm, time\nwith ftslurm.section('data', timeout=.3): time.sleep(60)")
    node.run()
    assert [(e.kind, e.name, e.allowed_s) for e in node.expiries] == [("section", "data", 0.3)]


def test_the_last_marks_of_a_killed_rank_can_be_read(node: Node) -> None:
    source = """
import ftslurm, os
for step in range(10000):
    ftslurm.heartbeat(); ftslurm.progress(step); ftslurm.section("data").__enter__(); ftslurm.section("data").__exit__()
ftslurm.start_section("last")
os.kill(os.getpid(), 9)
"""
    node.start(source)
    node.run()
    found = node.mark()
    assert found.progress is not None
    assert (found.beats.number, found.progress.last_step) == (10000, 9999)
    assert [(s.name, s.opens, s.opened_ns > 0) for s in found.sections] == [("data", 10000, False), ("last", 1, True)]
    assert node.expiries == []


def test_a_forked_child_is_not_its_rank(node: Node) -> None:
    source = """
import ftslurm, os, threading, time
known = ftslurm.section("known")
ftslurm.heartbeat()
known.__enter__()
from ftslurm.monitor import client
holding, go = threading.Event(), threading.Event()
def hold():  # locks that no thread of the child will ever release
    with client._agent.book.lock, client._lock:
        holding.set(); go.wait()
threading.Thread(target=hold).start()
holding.wait()
if (child := os.fork()) == 0:
    for _ in range(5):
        ftslurm.heartbeat(); ftslurm.progress(7)
    known.__exit__()
    with known, known, ftslurm.section("new"): pass
    ftslurm.end_section("never"); ftslurm.end_all_sections(); ftslurm.set_timeouts(heartbeat=1e-3)
    ftslurm.workload_finished(); ftslurm.load_state_dict(ftslurm.state_dict())
    os._exit(11)
go.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    worker = node.start(source)
    node.run()
    assert output(worker).endswith("11\n")
    found = node.mark()
    assert (found.beats.number, found.progress, found.finished, found.misused) == (1, None, False, 0)
    assert [(s.name, s.opens, s.opened_ns > 0) for s in found.sections] == [("known", 1, True)]
    assert node.pipe.read() == [] and node.watch.counts == {}


def test_a_fork_before_the_first_heartbeat_is_not_the_rank_either(node: Node) -> None:
    source = """
import ftslurm, os
ftslurm.heartbeat
if os.fork() == 0:
    ftslurm.heartbeat(); ftslurm.start_section("child"); os._exit(0)
os.wait()
ftslurm.heartbeat()
"""
    node.start(source)
    node.run()
    assert (node.mark().beats.number, node.mark().sections) == (1, ())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_is_not_its_rank(node: Node, method: str) -> None:
    (node.place / "job.py").write_text(
        "import ftslurm, multiprocessing\n"
        "def load():\n"
        "    ftslurm.heartbeat()\n"
        "    with ftslurm.section('load'): pass\n"
        "if __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context('{method}').Process(target=load)\n"
        "    child.start(); child.join()\n"
        "    assert child.exitcode == 0\n"
        "    ftslurm.progress(1)\n"
    )
    worker = node.start(f"exec {sys.executable} job.py", python=False)
    node.run()
    assert worker.returncode == 0, output(worker)
    assert (node.mark().beats.number, node.mark().sections) == (0, ())


def test_of_two_programs_of_one_rank_the_later_goes_on(node: Node) -> None:
    node.watch.update(Timeouts())
    once = f"{sys.executable} -c 'import ftslurm; ftslurm.heartbeat(); ftslurm.start_section(\"left open\")'"
    node.start(f"{once}; {once}", python=False)
    node.run()
    found = node.mark()
    assert found.beats.number == 2
    assert [(s.name, s.opens) for s in found.sections] == [("left open", 2)]


def test_a_program_that_a_rank_starts_sends_no_heartbeat_for_it(node: Node) -> None:
    source = """
import ftslurm, subprocess, sys
ftslurm.start_section("eval")
subprocess.run([sys.executable, "-c", "import ftslurm; ftslurm.heartbeat(); ftslurm.end_section('eval')"], check=True)
"""
    node.start(source)
    node.run()
    found = node.mark()
    assert (found.beats.number, found.misused) == (0, 0)
    assert found.sections[0].opened_ns > 0


def test_misuse_reaches_the_agent_once(node: Node) -> None:
    source = """
import ftslurm
for _ in range(100):
    with ftslurm.section("data"), ftslurm.section("data"): pass
"""
    node.start(source)
    node.run()
    node.turn()
    assert node.notes == [Note(0, "a section was opened that is open already: 'data'")]
    assert (node.watch.counts["misuse"], node.mark().misused) == (1, 100)


def test_a_pipe_without_a_reader_costs_a_rank_nothing(node: Node) -> None:
    source = """
import ftslurm, time
began = time.monotonic()
for i in range(60000): ftslurm.set_timeouts(heartbeat=1 + i)
ftslurm.heartbeat()
print(time.monotonic() - began < 20)
"""
    worker = node.start(source)
    assert output(worker) == "True\n"
    assert worker.wait() == 0
    assert node.mark().dropped > 10000
    lines = node.pipe.read()
    assert 0 < len(lines) < 60000
    assert all(node.watch.receive(line, time.monotonic(), time.time()) is None for line in lines)
    assert node.watch.counts == {}


def test_a_writer_that_is_killed_in_the_middle_of_a_line_loses_only_its_own(node: Node) -> None:
    source = """
import ftslurm, os, sys
fd = os.open(os.environ["FTSLURM_PIPE"], os.O_WRONLY)
os.write(fd, b'{"version": 1, "pid": 12')
ftslurm.section("data", timeout=30)
os.kill(os.getpid(), 9)
"""
    node.start(source)
    node.run()
    node.turn()
    assert node.watch.counts == {"garbage": 1}
    assert node.watch.deadline is not None


# torch's file timer, as it is

TORCH = """
import os, time
import torch.distributed.elastic.timer as timer
client = timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"])
timer.configure(client)
"""


@needs_torch
def test_torchs_timers_expire_only_when_they_should(node: Node) -> None:
    source = (
        TORCH
        + """
with timer.expires(after=60, scope="outer"):
    with timer.expires(after=.4, scope="inner"):
        pass
    time.sleep(.6)
    for _ in range(3):  # armed again before it is due
        client.acquire("again", time.time() + .5)
        time.sleep(.2)
    client.release("again")
    time.sleep(.5)
    print("alive", flush=True)
    with timer.expires(after=.3):
        time.sleep(60)
"""
    )
    worker = node.start(source)
    node.run()
    assert worker.returncode == -signal.SIGKILL
    assert output(worker).endswith("alive\n")
    assert [(e.kind, e.allowed_s < 0.35, e.signal) for e in node.expiries] == [("timer", True, 9)]
    print(f"{node.lateness_s[0] * 1e3:.1f} ms late")
    assert node.lateness_s[0] < 0.5
    assert node.watch.counts == {}


@needs_torch
def test_torchs_timer_with_another_signal_or_none(node: Node) -> None:
    source = (
        TORCH
        + """
import signal
notify = timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal=0)
with timer.expires(after=.2, scope="only reported", client=notify):
    time.sleep(.5)
term = timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal=signal.SIGINT)
with timer.expires(after=.2, scope="interrupted", client=term):
    time.sleep(60)
"""
    )
    worker = node.start(source)
    node.run()
    assert worker.returncode == -signal.SIGINT
    assert [(e.name, e.signal) for e in node.expiries] == [("only reported", 0), ("interrupted", signal.SIGINT)]


@needs_torch
def test_a_stranger_cannot_have_a_worker_killed_by_torchs_timer(node: Node) -> None:
    worker = node.start("import time; time.sleep(60)")
    source = (
        TORCH
        + """
client._send_request(timer.FileTimerRequest(1, "init", 1.0, 9))
client._send_request(timer.FileTimerRequest(os.getppid(), "agent", 1.0, 9))
client._send_request(timer.FileTimerRequest(os.getpid(), "mine", 1.0, 9))
"""
    )
    stranger = subprocess.run(
        [sys.executable, "-c", source],
        env=environment(TORCHELASTIC_TIMER_FILE=node.pipe.path),
        check=True,
        timeout=60,
    )
    assert stranger.returncode == 0
    node.turn()
    node.turn()
    assert node.watch.counts["stranger"] == 3
    assert node.expiries == []
    assert worker.poll() is None
    assert os.getpid() != worker.pid

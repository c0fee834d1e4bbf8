"""Stacks of real processes: of those that answer, and what is reported of those that cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from worker_process import WorkerProcess

from ftslurm.kernel import descendants
from ftslurm.monitor import process_state, stacks
from ftslurm.monitor.stacks import DUMP_SIGNAL, Collector, Stacks, Target

SLEEP = (
    "import os, time\ndef waits():\n    open('ready' + os.environ['LOCAL_RANK'], 'w')\n    time.sleep(600)\nwaits()\n"
)
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
        """Wait until the scripts have reported that they are where they will stay."""
        wanted = list(numbers if numbers is not None else range(len(self.targets)))
        until = time.monotonic() + 60
        while not all((self.place / f"ready{number}").exists() for number in wanted):
            assert time.monotonic() < until
            assert all(process.poll() is None for process in self.processes)
            time.sleep(0.01)
        time.sleep(0.05)  # from the file's making to the sleep

    def end(self) -> None:
        for process, target in zip(self.processes, self.targets, strict=True):
            if process.poll() is None:
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


def test_a_stopped_rank_is_reported_as_stopped_and_stays_so(ranks: Ranks) -> None:
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
    assert found[0].problem == "no answer to the dump signal: no Python script that ftslurm started"
    assert took_s < 0.5
    (worker.records / "hang.txt").touch()
    found, _ = collect([target])
    assert found[0].problem == "no answer to the dump signal, or the file for its stacks is closed"
    assert process.poll() is None


def test_a_shell_script_answers_by_its_python_child(ranks: Ranks) -> None:
    """As a program under `--exec` whose Python opted in: the shell itself has no handler."""
    ranks.place.joinpath("child.py").write_text(
        "import os\nfrom ftslurm.monitor.dump_signal import install\n"
        "install(os.environ['FTSLURM_RECORD_DIR'])\n" + SLEEP
    )
    script = ranks.place / "run.sh"
    script.write_text(f"#!/bin/sh\n{sys.executable} child.py\nexit 0\n")
    script.chmod(0o755)
    ranks.start(None, "--exec", str(script))
    ranks.wait()
    found, took_s = collect(ranks.targets)
    assert found[0].problem is None
    assert "in waits\n" in found[0].text
    assert took_s < 1


def test_a_rank_that_dies_while_it_is_asked_is_reported_to_have_ended(ranks: Ranks) -> None:
    ranks.start(f"import os, signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{DUMP_SIGNAL}])\n{SLEEP}")
    ranks.start(SLEEP)
    ranks.wait()
    os.kill(ranks.targets[1].pid, signal.SIGKILL)
    os.waitid(os.P_PIDFD, ranks.targets[1].pidfd, os.WEXITED | os.WNOWAIT)
    found, took_s = collect(ranks.targets, meanwhile=lambda: os.kill(ranks.targets[0].pid, signal.SIGKILL))
    assert [found[n].problem for n in (0, 1)] == ["ended while its stacks were collected", "had ended"]
    assert took_s < 1


def test_a_rank_that_the_loop_buries_meanwhile_takes_its_number_with_it(ranks: Ranks) -> None:
    """The agent reaps and closes its pidfd, whose number may mean something else at once."""
    ranks.start(f"import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{DUMP_SIGNAL}])\n{SLEEP}")
    ranks.wait()
    target, process = ranks.targets[0], ranks.processes[0]

    def bury() -> None:
        process.kill()
        process.wait()
        os.close(target.pidfd)
        ranks.targets[0] = replace(target, pidfd=os.open("/dev/null", os.O_RDONLY))

    found, took_s = collect([target], meanwhile=bury)
    assert found[0].problem == "ended while its stacks were collected"
    assert took_s < 0.5


def test_a_collection_that_is_given_up_is_marked_as_incomplete(ranks: Ranks) -> None:
    ranks.start(f"import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{DUMP_SIGNAL}])\n{SLEEP}")
    ranks.wait()
    fds = len(os.listdir("/proc/self/fd"))
    collector = Collector(ranks.targets, descendants)
    collector.start(time.monotonic())
    collector.close()
    collector.close()
    assert collector.result()[0].problem == "not collected in time"
    assert len(os.listdir("/proc/self/fd")) == fds


def test_a_rank_that_gives_no_answer_costs_the_time_out_and_no_more(ranks: Ranks) -> None:
    ranks.start(f"import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{DUMP_SIGNAL}])\n{SLEEP}")
    ranks.start(f"import signal, time\nsignal.signal({DUMP_SIGNAL}, lambda *_: None)\n{SLEEP}")
    ranks.start(SLEEP)
    ranks.wait()
    found, took_s = collect(ranks.targets, timeout_s=0.5)
    assert found[0].problem == (
        "no answer within 500 ms: it blocks the signal, or waits where it cannot be interrupted"
    )
    assert found[1].problem == "no answer within 500 ms"
    assert found[2].problem is None
    assert dict(found[0].facts)["syscall"]
    assert 0.5 <= took_s < 1
    assert all(process.poll() is None for process in ranks.processes)


HALVES = """
import os, signal, time
fd = os.dup2(os.open(os.environ["HANG_FILE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 200)
def writes_in_two_parts(*_):
    os.write(fd, b'Current thread 0x1 (most recent call first):\\n  File "a.py", line 5 in first{cut}')
    os.kill(os.getpid(), signal.SIGSTOP)
    os.write(fd, b'{rest}  File "/ftslurm/worker.py", line 9 in <module>\\n')
signal.signal({signal}, writes_in_two_parts)
open('ready', 'w')
while True:
    time.sleep(600)
"""


class Halves:
    """A program that is stopped in the middle of its stacks, and writes the rest when it is continued."""

    def __init__(self, place: Path, cut: str, rest: str) -> None:
        self.file = place / "hang.txt"
        source = HALVES.format(signal=int(DUMP_SIGNAL), cut=cut, rest=rest)
        self.process = subprocess.Popen(
            [sys.executable, "-c", source], cwd=place, env={**os.environ, "HANG_FILE": str(self.file)}
        )
        # A handler in Python does not run if the signal comes between the last check for it and the sleep.
        until(lambda: (place / "ready").exists() and self.letter() == "S")
        self.target = Target(0, self.process.pid, os.pidfd_open(self.process.pid), str(place))

    def letter(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def go_on(self) -> None:
        """Continue the program, and wait until it has written the rest and sleeps again."""
        until(lambda: self.letter() == "T")
        self.process.send_signal(signal.SIGCONT)
        until(lambda: "in <module>" in self.file.read_text() and self.letter() == "S")


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture(params=[("\\n", ""), ("", "\\n")], ids=["after a line", "in a line"])
def halves(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Halves]:
    halves = Halves(tmp_path, *request.param)
    yield halves
    halves.process.kill()
    halves.process.wait()
    os.close(halves.target.pidfd)


def test_a_process_that_a_debugger_stops_as_it_writes_is_waited_for(halves: Halves) -> None:
    continued = threading.Timer(0.5, halves.go_on)
    found, _ = collect([halves.target], timeout_s=5, meanwhile=continued.start)
    continued.join()
    assert "in <module>" in found[0].text, found[0]


@pytest.mark.parametrize(("place", "name"), [(process_state, "status"), (os, "pread")])
def test_the_rest_that_a_process_writes_while_it_is_examined_is_not_left_out(
    halves: Halves, monkeypatch: pytest.MonkeyPatch, place: ModuleType, name: str
) -> None:
    continued, real = threading.Event(), getattr(place, name)

    def slow(first: int | str, *rest: int) -> object:
        # The collector loses its core to the process in this very moment.
        its_own = isinstance(first, str) or os.path.samestat(os.fstat(first), halves.file.stat())
        if its_own and halves.file.stat().st_size and not continued.is_set():
            continued.set()
            halves.go_on()
        return real(first, *rest)

    monkeypatch.setattr(place, name, slow)
    found, _ = collect([halves.target], timeout_s=5)
    assert "in <module>" in found[0].text, found[0]


VFORK = """
import ctypes, os, threading, time
{thread}
def waits_for_its_child():
    # clone(2) with CLONE_VFORK alone: the caller is in D state until the child, a copy of it, ends.
    number = {{'x86_64': 56, 'aarch64': 220}}[os.uname().machine]
    if ctypes.PyDLL(None).syscall(number, 0x4000 | 17, 0, 0, 0, 0) == 0:
        open('ready' + os.environ['LOCAL_RANK'], 'w')
        time.sleep(600)
waits_for_its_child()
"""


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="knows clone's number only there")
def test_a_rank_in_uninterruptible_sleep_is_reported_as_such_and_another_thread_shows_where(ranks: Ranks) -> None:
    ranks.start(VFORK.format(thread=""))
    ranks.start(VFORK.format(thread="threading.Thread(target=threading.Event().wait, daemon=True).start()"))
    ranks.wait()
    found, took_s = collect(ranks.targets)
    for each in found.values():
        assert each.problem is not None
        assert each.problem.startswith("in uninterruptible sleep (D)")
        assert dict(each.facts)["State"].startswith("D")
    assert found[0].text == ""
    assert "in waits_for_its_child\n" in found[1].text
    assert 2.0 <= took_s < 2.5


def test_the_handler_answers_while_native_code_holds_the_gil(ranks: Ranks) -> None:
    hold = "import ctypes, os\ndef holds():\n    ctypes.PyDLL(None).sleep(600)\n" + READY + "holds()\n"
    ranks.start(hold)
    ranks.wait()
    found, took_s = collect(ranks.targets)
    assert "in holds\n" in found[0].text
    assert took_s < 1


def test_all_threads_are_shown_and_a_deep_one_in_part(ranks: Ranks) -> None:
    source = (
        "import os, threading, time\n"
        "def deep(n):\n    if n: deep(n - 1)\n    time.sleep(600)\n"
        "def helper():\n    time.sleep(600)\n"
        "for _ in range(20): threading.Thread(target=helper).start()\n"
        "threading.Thread(target=deep, args=[300]).start()\n"
        "time.sleep(0.2)\n" + READY + "time.sleep(600)\n"
    )
    ranks.start(source)
    ranks.wait()
    found, _ = collect(ranks.targets)
    assert found[0].text.count("in helper\n") == 20
    assert found[0].text.count("in deep\n") == 100
    assert found[0].text.rstrip().endswith("in <module>")


def test_a_program_of_the_users_own_handler_keeps_it(ranks: Ranks) -> None:
    source = f"import signal, sys\nsys.path.insert(0, '')\n{SLEEP}"
    custom = ranks.place / "site"
    custom.mkdir()
    (custom / "sitecustomize.py").write_text(
        f"import signal\nsignal.signal({DUMP_SIGNAL}, lambda *_: open('mine', 'w').close())\n"
    )
    worker = WorkerProcess(ranks.place / "own")
    script = ranks.place / "own.py"
    script.write_text(source)
    worker.env["PYTHONPATH"] = f"{custom}:{worker.env['PYTHONPATH']}"
    worker.env["LOCAL_RANK"] = "0"
    process = subprocess.Popen(
        worker.command("--script", str(script), "--"), cwd=ranks.place, env=worker.env, start_new_session=True
    )
    ranks.processes.append(process)
    ranks.targets.append(Target(0, process.pid, os.pidfd_open(process.pid), str(worker.records)))
    ranks.wait()
    found, _ = collect(ranks.targets)
    assert found[0].problem == "no answer to the dump signal: no Python script that ftslurm started"
    os.kill(process.pid, DUMP_SIGNAL)
    until = time.monotonic() + 10
    while not (ranks.place / "mine").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_forked_child_writes_to_stderr_and_not_to_the_ranks_file(tmp_path: Path) -> None:
    source = (
        "import os, signal, time\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    os.kill(os.getpid(), int(os.environ['DUMP'])); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(source)
    worker = WorkerProcess(tmp_path / "state")
    process = worker.run("--script", str(script), "--", cwd=tmp_path, DUMP=str(int(DUMP_SIGNAL)))
    assert process.returncode == 0
    assert "(most recent call first):" in process.stderr
    assert (worker.records / "hang.txt").read_text() == ""


def test_a_program_that_closed_all_its_files_is_not_made_to_write_into_another_one(ranks: Ranks) -> None:
    source = "import os\nos.closerange(3, 4096)\nfds = [os.open('data', os.O_RDWR | os.O_CREAT) for _ in range(400)]\n"
    ranks.start(source + SLEEP)
    ranks.wait()
    found, _ = collect(ranks.targets)
    assert found[0].problem == "no answer to the dump signal, or the file for its stacks is closed"
    assert (ranks.place / "data").read_text() == ""


def test_a_gigabyte_in_the_file_is_read_in_part(ranks: Ranks) -> None:
    big = "open(os.environ['FTSLURM_RECORD_DIR'] + '/hang.txt', 'a').truncate(1 << 30)\n"
    ranks.start("import os\n" + big + SLEEP)
    ranks.start(SLEEP)
    ranks.wait()
    hostile = Path(ranks.targets[1].record_dir) / "hang.txt"
    found, took_s = collect(ranks.targets, meanwhile=lambda: os.truncate(hostile, 1 << 30))
    assert "in waits\n" in found[0].text
    assert found[0].problem is None
    assert len(found[1].text) < 256 * 1024
    assert took_s < 2.5


def test_what_is_no_plain_file_is_not_waited_for(ranks: Ranks) -> None:
    ranks.start(SLEEP)
    ranks.wait()
    path = Path(ranks.targets[0].record_dir) / "hang.txt"
    path.unlink()
    os.mkfifo(path)
    found, took_s = collect(ranks.targets)
    assert found[0].problem is not None
    assert found[0].problem.startswith("no answer to the dump signal")
    assert took_s < 0.5


def spy(place: Path, script: str) -> str:
    program = place / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("script", "expected", "bound_s"),
    [
        ("echo 'Thread 1 (idle): \"Main\"'; echo \"    read (libc.so) $*\"", "read (libc.so) dump --native --pid", 1.0),
        ("echo 'Error: Permission Denied: Try running again with sudo'; exit 1",
         "py-spy gave no stacks: Error: Permission Denied: Try running again with sudo", 1.0),
        ("exec sleep 600", "py-spy was not ready in time", 1.5),
        ("echo 'Thread 1'; exec yes", "Thread 1\ny\ny", 2.5),
    ],
)  # fmt: skip
def test_py_spy_is_asked_for_the_hung_rank_within_its_bounds(
    ranks: Ranks, script: str, expected: str, bound_s: float
) -> None:
    ranks.start(SLEEP)
    ranks.start(SLEEP)
    ranks.wait()
    ranks.targets[1] = replace(ranks.targets[1], native=True)
    collector = Collector(ranks.targets, descendants, timeout_s=0.5, native_s=0.5, pyspy=spy(ranks.place, script))
    began = time.monotonic()
    collector.start(began)
    while not collector.poll(time.monotonic()):
        time.sleep(0.01)
    took_s = time.monotonic() - began
    found = collector.result()
    collector.close()
    assert found[0].native == ""
    assert expected in found[1].native
    assert len(found[1].native) < 300 * 1024
    assert took_s < bound_s


def test_without_py_spy_the_output_does_not_mention_it(ranks: Ranks) -> None:
    ranks.start(SLEEP)
    ranks.wait()
    found, took_s = collect([replace(ranks.targets[0], native=True)], pyspy="no-such-py-spy")
    assert (found[0].native, found[0].problem) == ("", None)
    assert took_s < 1

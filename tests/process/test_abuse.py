"""What workers, users and machines do to an agent that they should not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import test_run
from test_run import FOREVER, RUN, Start, Started, up

from ftslurm import kernel
from ftslurm.agent import guardian
from ftslurm.records.node import NodeRecord, first_record
from ftslurm.records.state import LEFT

start = test_run.start


def node_record(run: Started, node: str) -> NodeRecord:
    path = run.run_dir / f"nodes/{node}.json"
    return NodeRecord.decode(path.read_bytes(), str(path))


def _last_pid() -> int:
    return int(Path("/proc/loadavg").read_text().split()[-1])


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ")[1].split()[1])


def shell(directory: Path, command: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run `command` in bash with `RUN` for `ftslurm run` and train.py of that text."""
    (directory / "train.py").write_text(script)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
    command = command.replace("RUN", " ".join(RUN))
    return subprocess.run(
        ["bash", "-c", command], cwd=directory, env=clean, capture_output=True, text=True, timeout=60, check=False
    )


# Guardian and launcher


@pytest.mark.parametrize("nodes", [[], ["--local-nodes", "2"]])
def test_a_worker_that_empties_tmpdir_does_no_harm(start: Start, tmp_path: Path, nodes: list[str]) -> None:
    (tmp_path / "tmp").mkdir()
    script = "import os, shutil; [shutil.rmtree(e.path, ignore_errors=True) for e in os.scandir(os.environ['TMPDIR'])]"
    run = start(script, *nodes, TMPDIR=str(tmp_path / "tmp"))
    assert run.wait() == 0, run.err
    assert "Traceback" not in run.err


def test_nothing_is_left_in_tmpdir(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    script = "import os; os.symlink('/', os.environ['FTSLURM_RECORD_DIR'] + '/link')"
    assert start(script, "--local-nodes", "2", TMPDIR=str(tmp_path / "tmp")).wait() == 0
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_not_taken_by_the_first_files_that_are_opened(tmp_path: Path, closed: str) -> None:
    done = shell(tmp_path, f"RUN --redirects 0 train.py {closed}", "print('output'); raise SystemExit(3)")
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    states = sorted(tmp_path.glob("ftslurm-runs/*/state/0*.json"))
    assert json.loads(states[-1].read_text())["value"]["closed"]["outcome"] == "failed"


@pytest.mark.parametrize("reader", ["true", "head -1"])
def test_a_reader_that_goes_away_does_not_end_the_job(tmp_path: Path, reader: str) -> None:
    script = "for i in range(20000): print('line', i)\nopen('done', 'w').close()"
    done = shell(tmp_path, f"set -o pipefail; RUN train.py 2>&1 | {reader}", script)
    assert done.returncode == 0, done
    assert (tmp_path / "done").exists()


def test_output_that_cannot_be_written_does_not_change_the_exit_code(tmp_path: Path) -> None:
    done = shell(tmp_path, "RUN train.py > /dev/full 2>&1", "print('x' * 100000)")
    assert done.returncode == 0, done


def test_a_run_under_nohup_goes_on_after_a_hangup(tmp_path: Path) -> None:
    script = FOREVER.replace("600)\n", "1)\n")
    command = "nohup RUN train.py & pid=$!; until [ -e up0 ]; do sleep 0.05; done; kill -HUP $pid; wait $pid"
    done = shell(tmp_path, command, script)
    assert done.returncode == 0, done


def test_an_early_user_signal_does_not_kill_an_agent_that_is_still_starting(tmp_path: Path) -> None:
    # Loading of the interpreter itself cannot be covered, everything after the guardian is there can.
    command = (
        "RUN train.py & pid=$!; until ls /tmp/ftslurm-*-$pid-* >/dev/null 2>&1; do :; done; kill -USR1 $pid; wait $pid"
    )
    done = shell(tmp_path, command, "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)")
    assert done.returncode in (0, 138), done
    assert done.returncode == 0 or "killed by SIGUSR1" in done.stdout, done


def test_when_the_launchers_guardian_is_killed_everything_below_ends(start: Start) -> None:
    run = start(FOREVER, "--local-nodes", "2")
    up(run, 2)
    run.process.kill()
    run.until(lambda: not run.marked(), 15)
    assert "SIGTERM from outside" in run.err


@pytest.mark.parametrize("delay_s", [0.1, 0.15, 0.2, 0.25, 0.3])
def test_ctrl_c_while_the_agents_start_is_no_traceback(start: Start, delay_s: float) -> None:
    run = start(FOREVER, "--local-nodes", "3")
    # Until the launcher is there, a new interpreter like any other.
    run.until(lambda: len(run.marked()) >= 2)
    time.sleep(delay_s)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(30) in (1, 130), run.err
    assert "Traceback" not in run.err
    assert run.marked() == []


def test_an_agent_that_is_stopped_alone_is_continued_at_once(start: Start) -> None:
    run = start(FOREVER, "--local-nodes", "2", "--heartbeat", "0.2", "--node-timeout", "1")
    up(run, 2)
    record = node_record(run, "local1")
    os.kill(record.pid, signal.SIGSTOP)
    time.sleep(1.5)
    assert Path(f"/proc/{record.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    assert (node_record(run, "local1").incarnation, node_record(run, "local1").round) == (record.incarnation, 1)
    run.process.terminate()
    assert run.wait() == 143


def test_a_guardian_marks_only_the_record_of_its_own_agent(tmp_path: Path) -> None:
    path = tmp_path / "n1.json"
    path.write_bytes(replace(first_record("n1", "newer", "1.1", 0, 1), status="running").encode())
    guardian._write_death_notice(str(path), ("older", "its agent was killed by SIGKILL", 1), replaced=False)
    assert NodeRecord.decode(path.read_bytes(), "").status == "running"
    guardian._write_death_notice(str(path), ("newer", "its agent was killed by SIGKILL", 1), replaced=False)
    record = NodeRecord.decode(path.read_bytes(), "")
    assert (record.status, record.reason) == (LEFT, "its agent was killed by SIGKILL")


def test_signals_that_repeat_do_not_keep_the_guardian_from_its_death_notice(start: Start) -> None:
    run = start(FOREVER, "--local-nodes", "2", "--max-restarts", "0")
    up(run, 2)
    agent = node_record(run, "local1").pid
    above = parent(agent)
    os.kill(above, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    # Pending when it wakes up, as when Slurm says SIGTERM again and again.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        os.kill(above, number)
    os.kill(above, signal.SIGCONT)
    assert run.wait(30) == 1, run.err
    assert "local1 left: its agent was killed by SIGKILL" in run.err


# Processes that are hard to end


CHASER = """
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    // Bounded: should it escape, it must not use up the machine's process ids.
    time_t end = time(NULL) + 20;
    while (time(NULL) < end) {
        usleep(300);
        if (fork() > 0) _exit(0);
    }
}
"""


def test_a_process_that_does_nothing_but_fork_and_exit_is_ended(start: Start, tmp_path: Path) -> None:
    (tmp_path / "chaser.c").write_text(CHASER)
    if subprocess.run(["cc", "-o", "chaser", "chaser.c"], cwd=tmp_path, check=False, capture_output=True).returncode:
        pytest.skip("no C compiler")
    run = start("import subprocess; subprocess.Popen(['./chaser'])")
    assert run.wait(15) == 0, run.err
    # Zombies have no environment; its next pid would not stand still to be looked at.
    before = _last_pid()
    time.sleep(0.3)
    assert _last_pid() - before < 300


LEADERLESS = """
import ctypes, os, threading, time
if os.fork():
    os._exit(0)
os.setsid()
threading.Thread(target=lambda: [time.sleep(0.05) for _ in range(400)]).start()
open("up0", "w").write(str(os.getpid()))
ctypes.CDLL(None).syscall(60, 0)
"""


def test_a_process_whose_first_thread_has_ended_is_ended(start: Start, tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the number of the system call is that of x86_64")
    (tmp_path / "leaderless.py").write_text(LEADERLESS)
    script = "import os, subprocess, time; subprocess.run(['python3', 'leaderless.py'])\n"
    run = start(script + "while not os.path.exists('up0') or not open('up0').read(): time.sleep(0.02)\ntime.sleep(0.3)")
    assert run.wait(15) == 0, run.err
    pid = int((tmp_path / "up0").read_text())
    assert not Path(f"/proc/{pid}/task").exists() or len(list(Path(f"/proc/{pid}/task").iterdir())) == 0


def test_processes_of_another_user_do_not_stop_the_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError(pid)

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(kernel.os, "kill", refused)
    monkeypatch.setattr(kernel.os, "killpg", refused)
    try:
        assert kernel.kill_descendants(os.getpid()) == 0
    finally:
        monkeypatch.undo()
        child.kill()
        child.wait()


TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if libc.ptrace(0x4206, int(sys.argv[1]), None, None):
    sys.exit(77)
open("traced", "w").close()
time.sleep(2)
"""


def test_a_worker_whose_end_a_debugger_holds_back_is_noticed_when_it_lets_go(start: Start, tmp_path: Path) -> None:
    script = "import os, time\nopen('up0', 'w').close()\nwhile not os.path.exists('traced'): time.sleep(0.02)\n"
    run = start(script + "raise SystemExit(5)", "--max-restarts", "0")
    up(run, 1)
    worker = next(pid for pid, line in run.marked() if "ftslurm.worker" in line or "boot/worker" in line)
    tracer = subprocess.Popen([sys.executable, "-c", TRACER, str(worker)], cwd=tmp_path)
    run.until(lambda: tracer.poll() is not None or (tmp_path / "traced").exists())
    if tracer.poll() == 77:
        pytest.skip("ptrace is not permitted here")
    assert run.wait(20) == 1, run.err
    assert "code 5" in run.out
    tracer.wait()


def test_exit_code_0_with_a_daemon_left_behind_is_success_and_the_daemon_is_gone(start: Start) -> None:
    script = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 99)\n    time.sleep(600)\n"
    run = start(script, "--nproc-per-node", "2")
    assert run.wait() == 0, run.err
    assert run.marked() == []
    # torchrun leaves it running: what the user may have meant is not taken away silently.
    assert re.search(
        r"the ranks have ended; 2 processes that they left behind are killed: python\S* \(process", run.err
    )


def test_helpers_of_multiprocessing_that_end_by_themselves_are_not_named(start: Start) -> None:
    script = (
        "import multiprocessing as mp\nif __name__ == '__main__':\n    mp.get_context('spawn').Pool(2).map(abs, [1])\n"
    )
    run = start(script, "--nproc-per-node", "2")
    assert run.wait() == 0, run.err
    assert "left behind" not in run.err


def test_a_stop_signal_is_handled_in_a_storm_of_dying_orphans(start: Start) -> None:
    script = FOREVER.replace("time.sleep(600)\n", "while True: subprocess.run(['sh', '-c', '(:)& (:)& (:)& (:)&'])\n")
    run = start(script, "--nproc-per-node", "2", "--grace", "1")
    up(run, 2)
    run.process.terminate()
    assert run.wait(20) == 143, run.err
    assert run.marked() == []


def test_many_ranks_on_one_node(start: Start) -> None:
    run = start("import os; assert os.environ['WORLD_SIZE'] == '64'", "--nproc-per-node", "64")
    assert run.wait(60) == 0, run.err


# Directories that vanish


def test_a_current_directory_that_is_gone_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell(tmp_path, "cd gone && rmdir ../gone && RUN ../train.py", "")
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1
    assert "current directory" in done.stderr


def test_a_worker_that_removes_its_current_directory_runs_on(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = "import os; os.rmdir(os.getcwd())\nopen('../done', 'w').close() if 0 else None"
    done = shell(tmp_path, "cd gone && RUN --shared-dir ../runs ../train.py", script)
    assert done.returncode == 0, done


def test_a_script_that_deletes_its_own_run_directory_ends_with_that_reason(start: Start) -> None:
    script = "import os, shutil; shutil.rmtree(os.environ['FTSLURM_RUN_DIR'])"
    run = start(script, "--join-timeout", "2")
    assert run.wait(40) not in (0, None), run.err
    assert "Traceback" not in run.err
    assert "No such file or directory" in run.err

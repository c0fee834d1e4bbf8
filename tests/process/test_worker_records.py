"""What is known of a worker's failure after it, for each way to fail, with real processes."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_process import BY_FILE, BY_NAME, WorkerProcess

from ftslurm.dataclasses import replace
from ftslurm.failures.record import complete, summary
from ftslurm.monitor.heartbeat_page import read_progress
from ftslurm.records.error import ErrorRecord, error_file


def fail(tmp_path: Path, source: str, **extra: str) -> tuple[WorkerProcess, subprocess.CompletedProcess[str]]:
    """Run `source` as the script of a worker."""
    script = tmp_path / "script.py"
    script.write_text(source)
    worker = WorkerProcess(tmp_path / "state")
    return worker, worker.run("--script", str(script), "--", "x", cwd=tmp_path, **extra)


def completed(worker: WorkerProcess, returncode: int, step: int | None = None) -> ErrorRecord:
    """Return the record as the agent publishes it."""
    observed = ErrorRecord("exit", time.time_ns(), rank=5, round=3, node="n1", local_rank=1, step=step)
    if returncode < 0:
        observed = replace(observed, signal=signal.Signals(-returncode).name)
    else:
        observed = replace(observed, exit_code=returncode)
    record = complete(worker.records, observed)
    assert record is not None
    return record


def test_an_exception_is_recorded_with_all_that_is_known(tmp_path: Path) -> None:
    before = time.time_ns()
    worker, process = fail(
        tmp_path,
        "import ftslurm\nftslurm.progress(41)\nftslurm.progress(42)\n"
        "def step(x):\n    raise ValueError('boom')\n"
        "try:\n    1/0\nexcept ZeroDivisionError:\n    step(1)\n",
    )
    record = worker.record()
    assert process.returncode == 1
    assert record is not None
    assert record["message"]["message"] == "ValueError: boom"
    assert record["message"]["extraInfo"]["py_callstack"] == process.stderr
    ours = record["ftslurm"]
    exception = ours.pop("exception")
    assert before < ours.pop("time_ns") < time.time_ns()
    assert ours.pop("pid") > 1
    (shm,) = ours.pop("host_resources")["spaces"]
    assert shm["path"] == "/dev/shm"
    assert 0 <= shm["free"] <= shm["total"]
    assert ours == {
        "schema": "ftslurm/error",
        "version": 1,
        "kind": "exception",
        "run_id": "job-7",
        "attempt": "7.0",
        "round": 3,
        "node": "n1",
        "host": os.uname().nodename,
        "rank": 5,
        "local_rank": 1,
        "world_size": 8,
        "step": 42,
        "argv": [str(tmp_path / "script.py"), "x"],
    }
    assert (exception["type"], exception["module"], exception["message"]) == ("ValueError", "builtins", "boom")
    assert [(f["line"], f["function"], f["source"]) for f in exception["frames"]] == [
        (9, "<module>", "step(1)"),
        (5, "step", "raise ValueError('boom')"),
    ]
    assert exception["context"]["type"] == "ZeroDivisionError"
    assert sorted(p.name for p in worker.records.iterdir()) == ["error.json", "hang.txt", "progress", "stacks.txt"]


def test_the_sections_that_the_exception_left_on_its_way_are_recorded_and_none_that_was_left_before(
    tmp_path: Path,
) -> None:
    worker, _ = fail(
        tmp_path,
        "import ftslurm\n"
        "with ftslurm.section('setup'):\n    pass\n"
        "ftslurm.start_section('epoch')\n"
        "try:\n    with ftslurm.section('retried'):\n        1/0\nexcept ZeroDivisionError:\n    pass\n"
        "with ftslurm.section('step'), ftslurm.section('checkpoint'):\n    open('/no/such/file')\n",
    )
    record = worker.record()
    assert record is not None
    sections = record["ftslurm"]["sections"]
    assert [name for name, _ in sections] == ["checkpoint", "step", "epoch"]
    assert all(0 <= seconds < 60 for _, seconds in sections)


def test_the_memory_figures_of_cuda_are_recorded_only_where_it_is_in_use(tmp_path: Path) -> None:
    fake = (
        "import sys, types\n"
        "def never(): raise AssertionError('the device was asked')\n"
        "cuda = types.SimpleNamespace(is_initialized=lambda: {use}, memory_allocated=lambda: 5, "
        "memory_reserved=lambda: 7, max_memory_allocated=never, mem_get_info=lambda: (1, 9))\n"
        "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)\n"
        "raise RuntimeError('CUDA {what}')"
    )
    seen = []
    for number, (use, what) in enumerate([(True, "out of memory"), (True, "error: hang"), (False, "out of memory")]):
        place = tmp_path / str(number)
        place.mkdir()
        worker, _ = fail(place, fake.format(use=use, what=what))
        record = worker.record()
        assert record is not None
        seen.append(record["ftslurm"].get("cuda"))
    known = {"allocated": 5, "reserved": 7}
    assert seen == [{**known, "free on the device": 1, "size of the device": 9}, known, None]


@pytest.mark.parametrize("start", [BY_FILE, BY_NAME])
def test_a_module_is_recorded_without_frames_of_ftslurm(tmp_path: Path, start: list[str]) -> None:
    (tmp_path / "tool.py").write_text("1/0\n")
    worker = WorkerProcess(tmp_path / "state")
    worker.run("--module", "tool", "--", cwd=tmp_path, start=start)
    record = worker.record()
    assert record is not None
    frames = record["ftslurm"]["exception"]["frames"]
    assert not any("ftslurm" in frame["file"] for frame in frames)
    assert frames[-1]["file"] == str(tmp_path / "tool.py")


@pytest.mark.parametrize(
    ("source", "kind", "message", "type_name"),
    [
        ("import sys\ndef end(): sys.exit(3)\nend()", "exit", "SystemExit: 3 (at script.py:2 in end)", "SystemExit"),
        ("import sys; sys.exit('no data')", "exit", "SystemExit: no data (at script.py:1 in <module>)", "SystemExit"),
        ("x = = 1", "exception", "SyntaxError: invalid syntax (script.py, line 1)", "SyntaxError"),
        ("import nope", "exception", "ModuleNotFoundError: No module named 'nope'", "ModuleNotFoundError"),
        ("raise KeyboardInterrupt", "exception", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("class Odd(BaseException): pass\nraise Odd(1)", "exception", "Odd: 1", "Odd"),
        ("raise MemoryError", "exception", "MemoryError", "MemoryError"),
        ("def f(): f()\nf()", "exception", "RecursionError: maximum recursion depth exceeded", "RecursionError"),
        (
            "class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd",
            "exception",
            "Odd: <unprintable Odd object>",
            "Odd",
        ),
        ("import sys, os; sys.stderr = None; os.close(2); 1/0", "exception", "ZeroDivisionError: division by zero",
         "ZeroDivisionError"),
        ("import os; os.chdir('/'); os.closerange(0, 4096); 1/0", "exception", "ZeroDivisionError: division by zero",
         "ZeroDivisionError"),
        ("import sys; sys.setrecursionlimit(60); 1/0", "exception", "ZeroDivisionError: division by zero",
         "ZeroDivisionError"),
        ("import os; os.environ.clear(); 1/0", "exception", "ZeroDivisionError: division by zero",
         "ZeroDivisionError"),
        ("import sys; sys.excepthook = None; 1/0", "exception", "ZeroDivisionError: division by zero",
         "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_each_way_to_end_by_exception_is_recorded(
    tmp_path: Path, source: str, kind: str, message: str, type_name: str
) -> None:
    worker, process = fail(tmp_path, source)
    record = worker.record()
    assert process.returncode != 0
    assert record is not None
    assert record["message"]["message"].startswith(message)
    assert record["ftslurm"]["kind"] == kind
    assert record["ftslurm"]["exception"]["type"] == type_name


@pytest.mark.parametrize("source", ["pass", "raise SystemExit", "import sys; sys.exit(0)", "raise SystemExit(256)",
                                    "raise SystemExit(False)"])  # fmt: skip
def test_nothing_is_recorded_of_a_good_end(tmp_path: Path, source: str) -> None:
    worker, process = fail(tmp_path, source)
    assert process.returncode == 0
    assert worker.record() is None
    assert complete(worker.records, ErrorRecord("exit", 1, exit_code=0)) is None


@pytest.mark.parametrize("raised", ["raise ValueError('child')", "import sys; sys.exit(3)", "os._exit(1)"])
def test_a_forked_child_writes_no_record(tmp_path: Path, raised: str) -> None:
    source = "import os, ftslurm\nftslurm.progress(1)\nif os.fork() == 0:\n    ftslurm.progress(9)\n"
    worker, process = fail(tmp_path, f"{source}    {raised}\nos.wait()")
    assert process.returncode == 0
    assert worker.record() is None
    mark = read_progress(worker.records)
    assert mark is not None
    assert mark.last_step == 1


def test_an_exception_in_a_thread_is_no_failure(tmp_path: Path) -> None:
    worker, process = fail(tmp_path, "import threading\nt = threading.Thread(target=lambda: 1/0); t.start(); t.join()")
    assert process.returncode == 0
    assert worker.record() is None


def test_a_daemon_that_outlives_its_starter_is_no_failure(tmp_path: Path) -> None:
    child = "    os.setsid()\n    os.closerange(0, 100)\n    time.sleep(.3)\n    1/0\n"
    worker, process = fail(tmp_path, f"import os, time\nif os.fork() == 0:\n{child}")
    assert process.returncode == 0
    time.sleep(0.8)
    assert worker.record() is None


FATAL = {
    "SIGSEGV": "import ctypes\ndef crash(): ctypes.string_at(0)\n",
    "SIGABRT": "import os\ndef crash(): os.abort()\n",
    "SIGFPE": "import os, signal\ndef crash(): os.kill(os.getpid(), signal.SIGFPE)\n",
    "SIGBUS": "import mmap, os\ndef crash():\n    f = open('f', 'w+b'); f.truncate(4096)\n"
    "    m = mmap.mmap(f.fileno(), 4096); f.truncate(0); m[0]\n",
    "SIGILL": "import os, signal\ndef crash(): os.kill(os.getpid(), signal.SIGILL)\n",
}


@pytest.mark.parametrize("name", FATAL)
def test_a_fatal_signal_leaves_all_stacks(tmp_path: Path, name: str) -> None:
    source = FATAL[name] + (
        "import threading, time\n"
        "def waits(): time.sleep(9)\n"
        "threading.Thread(target=waits, daemon=True).start(); time.sleep(0.1)\n"
        "crash()\n"
    )
    worker, process = fail(tmp_path, source)
    assert process.returncode == -getattr(signal, name)
    assert process.stderr == ""
    record = completed(worker, process.returncode)
    assert (record.kind, record.signal, record.exit_code, record.exception) == ("signal", name, None, None)
    assert record.stacks is not None
    assert record.stacks.startswith("Fatal Python error: ")
    assert "in waits" in record.stacks
    assert "in crash" in record.stacks
    assert "ftslurm" not in record.stacks.replace(str(tmp_path), "")
    assert record.traceback == record.stacks
    assert error_file(record)["message"]["errorCode"] == process.returncode
    message = summary(record)["message"]
    assert message.startswith(f"{name} (")
    assert " at " in message


def test_where_the_user_has_enabled_faulthandler_it_stays_the_users(tmp_path: Path) -> None:
    crash = "import ctypes; ctypes.string_at(0)"
    worker, process = fail(tmp_path, f"import faulthandler; faulthandler.enable(); {crash}")
    assert "Fatal Python error: Segmentation fault" in process.stderr
    assert completed(worker, process.returncode).stacks is None
    (tmp_path / "again").mkdir()
    worker, process = fail(tmp_path / "again", crash, PYTHONFAULTHANDLER="1")
    assert "Fatal Python error: Segmentation fault" in process.stderr
    assert completed(worker, process.returncode).stacks is None


def test_a_crash_of_a_forked_child_goes_to_stderr_and_not_to_the_ranks_stacks(tmp_path: Path) -> None:
    source = "import os, ctypes\nif os.fork() == 0: ctypes.string_at(0)\nprint(os.wait()[1] & 0x7f)"
    worker, process = fail(tmp_path, source)
    assert process.stdout == "11\n"
    assert "Fatal Python error: Segmentation fault" in process.stderr
    assert (worker.records / "stacks.txt").read_text() == ""


def test_a_child_does_not_touch_a_file_that_took_over_the_number_of_the_stacks_file(tmp_path: Path) -> None:
    source = """
import os
os.closerange(3, 4096)
fds = [os.open('data', os.O_RDWR | os.O_CREAT) for _ in range(400)]
pid = os.fork()
if pid == 0:
    same = all(os.path.samestat(os.fstat(fd), os.stat('data')) for fd in fds)
    os._exit(0 if same else 1)
print(os.waitpid(pid, 0)[1])
"""
    _, process = fail(tmp_path, source)
    assert process.stdout == "0\n"


def test_an_exception_before_the_crash_stays_the_cause(tmp_path: Path) -> None:
    source = "import atexit, ctypes\natexit.register(ctypes.string_at, 0)\nraise ValueError('first')"
    worker, process = fail(tmp_path, source)
    record = completed(worker, process.returncode)
    assert (record.kind, record.signal) == ("exception", "SIGSEGV")
    assert record.message.startswith("ValueError: first; then SIGSEGV (segmentation fault)")
    assert "ValueError: first" in record.traceback
    assert record.stacks is not None
    assert "Segmentation fault" in record.stacks


@pytest.mark.parametrize("source", ["import os; os._exit(3)", "import ctypes; ctypes.CDLL(None).exit(3)"])
def test_an_exit_past_python_is_recorded_by_its_code(tmp_path: Path, source: str) -> None:
    worker, process = fail(tmp_path, source)
    assert worker.record() is None
    failure = summary(completed(worker, process.returncode))
    assert failure["message"] == "exit code 3, no Python exception reached the top level"
    assert (failure["kind"], failure["exit_code"]) == ("exit", 3)


def test_after_a_sigkill_the_progress_can_be_read(tmp_path: Path) -> None:
    source = "import os, ftslurm\nfor step in range(1000): ftslurm.progress(step)\nos.kill(os.getpid(), 9)\n"
    worker, process = fail(tmp_path, source)
    assert process.returncode == -9
    mark = read_progress(worker.records)
    assert mark is not None
    assert (mark.first_step, mark.last_step) == (0, 999)
    assert mark.first_ns <= mark.last_ns <= time.time_ns()
    failure = summary(completed(worker, process.returncode, step=mark.last_step))
    assert (failure["kind"], failure["signal"], failure["step"]) == ("signal", "SIGKILL", 999)
    assert failure["message"] == "killed by SIGKILL"


def test_progress_works_under_exec_and_is_ignored_without_an_agent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import ftslurm\nftslurm.progress(7)\n")
    worker = WorkerProcess(tmp_path / "state")
    worker.run("--exec", "sh", "--", "-c", f"{sys.executable} script.py", cwd=tmp_path)
    mark = read_progress(worker.records)
    assert mark is not None
    assert mark.last_step == 7
    env = {k: v for k, v in worker.env.items() if k != "FTSLURM_RECORD_DIR"}
    assert subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, check=False).returncode == 0


def test_progress_never_raises(tmp_path: Path) -> None:
    source = """
import ftslurm
for step in (None, 'x', 2**70, float('nan'), [], object()):
    ftslurm.progress(step)
"""
    for number, value in enumerate(("/nowhere/at/all", str(tmp_path / "script.py"), "/proc")):
        place = tmp_path / str(number)
        place.mkdir()
        _, process = fail(place, source, FTSLURM_RECORD_DIR=value)
        assert process.returncode == 0
        assert "Traceback" not in process.stderr


def test_the_worker_goes_with_its_agent(tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path / "state")
    (tmp_path / "script.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    command = worker.command("--script", "script.py", "--")
    command[command.index("--parent") + 1] = "AGENT"
    agent = (
        "import os, subprocess, time\n"
        f"command = [str(os.getpid()) if part == 'AGENT' else part for part in {command!r}]\n"
        "subprocess.Popen(command, start_new_session=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", agent], cwd=tmp_path, env=worker.env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pidfd = os.pidfd_open(int(process.stdout.readline()))
        assert select.select([pidfd], [], [], 0)[0] == []
        process.kill()
        assert select.select([pidfd], [], [], 10)[0] == [pidfd]
        os.close(pidfd)


def test_a_worker_whose_agent_is_gone_already_ends_at_once(tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path / "state")
    (tmp_path / "script.py").write_text("print('ran')\n")
    command = worker.command("--script", "script.py", "--", parent=os.getppid())
    process = subprocess.run(command, cwd=tmp_path, env=worker.env, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (1, "", "")
    assert worker.record() is None


def test_the_logs_are_written_where_the_agent_wants_them(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\nprint('out'); print('err', file=sys.stderr)\nos.system('echo child')\n"
        "print(open('/dev/null').fileno())"
    )
    both = tmp_path / "both.log"
    both.write_text("old\n")
    orders = [{1: "a.log"}, {2: "a.log"}, {1: "a.log", 2: "b.log"}, {1: "both.log", 2: "both.log"}]
    for number, logs in enumerate(orders):
        worker = WorkerProcess(tmp_path / str(number))
        options = [w for t, p in logs.items() for w in ("--log-stdout" if t == 1 else "--log-stderr", p)]
        process = worker.run(*options, "--script", "script.py", "--", cwd=tmp_path)
        assert process.returncode == 0
        assert process.stdout == ("" if 1 in logs else "out\nchild\n3\n")
        assert process.stderr == ("" if 2 in logs else "err\n")
    assert (tmp_path / "a.log").read_text() == "out\nchild\n3\nerr\nout\nchild\n3\n"
    assert both.read_text() == "old\nout\nerr\nchild\n3\n"
    assert (tmp_path / "b.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["--script", "--exec"])
def test_a_log_that_cannot_be_opened_is_a_clear_failure(tmp_path: Path, kind: str) -> None:
    worker = WorkerProcess(tmp_path / "state")
    path = str(tmp_path / "missing" / "out.log")
    process = worker.run("--log-stdout", path, kind, "true", "--", cwd=tmp_path)
    record = worker.record()
    assert process.returncode == 1
    assert process.stderr == f"ftslurm: cannot open the log file {path}: No such file or directory\n"
    assert record is not None
    assert record["message"]["message"] == f"cannot open the log file {path}: No such file or directory"
    assert (record["ftslurm"]["kind"], record["ftslurm"]["exit_code"]) == ("exit", 1)


def test_a_program_that_cannot_be_started_is_a_clear_failure(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    (tmp_path / "no_shebang").write_text("x")
    (tmp_path / "no_shebang").chmod(0o755)
    (tmp_path / "bad_shebang").write_text("#!/no/such/python\n")
    (tmp_path / "bad_shebang").chmod(0o755)
    cases = [
        ("no-such-program-anywhere", 127, "no such program in PATH"),
        ("./nothing", 127, "no such file"),
        ("./data", 126, "Permission denied"),
        ("/", 126, "Permission denied"),
        ("./no_shebang", 126, "Exec format error"),
        ("./bad_shebang", 126, "the interpreter named in its first line does not exist"),
    ]
    for number, (program, code, why) in enumerate(cases):
        worker = WorkerProcess(tmp_path / str(number))
        process = worker.run("--exec", program, "--", cwd=tmp_path)
        assert (process.returncode, process.stderr) == (code, f"ftslurm: cannot start {program}: {why}\n")
        failure = summary(completed(worker, process.returncode))
        assert (failure["kind"], failure["message"]) == ("exit", f"cannot start {program}: {why}")


def test_a_program_gets_its_arguments_and_pythons_ignored_signals_back(tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path / "state")
    process = worker.run(
        "--exec", "sh", "--", "-c", 'echo "$0" "$@"; grep SigIgn /proc/self/status', "--", "a b", cwd=tmp_path
    )
    ignored = int(process.stdout.splitlines()[1].split()[1], 16)
    assert process.stdout.splitlines()[0] == "-- a b"
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


def test_a_missing_script_is_recorded(tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path / "state")
    process = worker.run("--script", "nope.py", "--", cwd=tmp_path)
    assert process.returncode == 2
    failure = summary(completed(worker, process.returncode))
    assert failure["kind"] == "exit"
    assert f"can't open file '{tmp_path}/nope.py'" in failure["message"]


@pytest.mark.parametrize("arguments", [[], ["--parent"], ["--parent", "x"], ["--bad", "1"], ["--parent", "1"]])
def test_a_wrong_command_line_is_one_clear_line(tmp_path: Path, arguments: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, *BY_FILE, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert process.returncode == 2
    assert process.stderr.startswith("ftslurm.worker: ")
    assert process.stderr.count("\n") == 1


def test_where_the_node_takes_no_record_it_goes_to_the_run_directory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nos.rmdir(os.environ['FTSLURM_RECORD_DIR'])\n1/0")
    worker = WorkerProcess(tmp_path / "state")
    rank = worker.run_dir / "rounds" / "000003" / "ranks" / "00005"
    script.write_text("import os, shutil\nshutil.rmtree(os.environ['FTSLURM_RECORD_DIR'])\n1/0")
    rank.mkdir(parents=True)
    process = worker.run("--script", "script.py", "--", cwd=tmp_path)
    assert process.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "ftslurm" not in process.stderr.replace(str(tmp_path), "")
    record = json.loads((rank / "error.json").read_text())
    assert record["message"]["message"] == "ZeroDivisionError: division by zero"


def test_where_nothing_takes_the_record_the_exception_stays_the_users(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, shutil\nshutil.rmtree(os.environ['FTSLURM_RECORD_DIR'])\n1/0")
    worker = WorkerProcess(tmp_path / "state")
    process = worker.run("--script", "script.py", "--", cwd=tmp_path)
    lines = process.stderr.splitlines()
    assert process.returncode == 1
    assert lines[0].startswith("ftslurm: the error record could not be written: ")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_full_disk_costs_neither_the_exception_nor_leaves_half_a_record(tmp_path: Path) -> None:
    """RLIMIT_FSIZE of 0 makes each write fail with EFBIG, as Python ignores the signal."""
    source = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n1/0"
    worker, process = fail(tmp_path, source)
    assert process.returncode == 1
    assert "ZeroDivisionError" in process.stderr
    assert "ftslurm: the error record could not be written" in process.stderr
    assert sorted(p.name for p in worker.records.iterdir()) == ["hang.txt", "stacks.txt"]


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="needs RLIMIT_AS")
def test_a_real_lack_of_memory_is_recorded(tmp_path: Path) -> None:
    source = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
def grow():
    kept = []
    while True: kept.append(bytearray(1 << 20))
grow()
"""
    worker, process = fail(tmp_path, source)
    assert process.returncode == 1
    failure = summary(completed(worker, process.returncode))
    assert failure["message"] == "MemoryError"


def test_a_deep_recursion_and_a_huge_message_stay_within_the_bounds(tmp_path: Path) -> None:
    source = (
        "import sys\nsys.setrecursionlimit(6000)\n"
        "def f(n):\n    if n: f(n - 1)\n    raise ValueError('\\u00e9\\U0001f600' * 400_000)\nf(5000)"
    )
    worker, process = fail(tmp_path, source)
    assert process.returncode == 1
    assert (worker.records / "error.json").stat().st_size < 256 * 1024
    record = worker.record()
    assert record is not None
    assert len(record["ftslurm"]["exception"]["frames"]) <= 100
    assert record["message"]["message"].startswith("ValueError: \u00e9")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups are new in 3.11")
def test_an_exception_group_is_recorded_with_its_members(tmp_path: Path) -> None:
    source = """
error = ExceptionGroup('two', [ValueError('a'), ExceptionGroup('inner', [KeyError('b')])])
error.add_note('a note')
raise error from OSError(5, 'disk')
"""
    worker, _ = fail(tmp_path, source)
    record = worker.record()
    assert record is not None
    exception = record["ftslurm"]["exception"]
    assert [m["type"] for m in exception["exceptions"]] == ["ValueError", "ExceptionGroup"]
    assert exception["exceptions"][1]["exceptions"][0]["message"] == "'b'"
    assert exception["notes"] == ["a note"]
    assert exception["cause"]["type"] == "OSError"
    assert "context" not in exception


TORCH_RECORD = """
import json, os, sys, time, traceback
def torch_like_record(error):  # what torch's ErrorHandler.record_exception does
    data = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": {
        "py_callstack": traceback.format_exc(), "timestamp": str(int(time.time())), "more": 1}}, "other": [2]}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file: json.dump(data, file)
"""


def test_what_torch_wrote_about_the_same_exception_is_replaced_by_a_superset(tmp_path: Path) -> None:
    source = TORCH_RECORD + "try:\n    1/0\nexcept Exception as error:\n    torch_like_record(error)\n    raise\n"
    worker, _ = fail(tmp_path, source)
    record = worker.record()
    assert record is not None
    assert record["other"] == [2]
    assert record["message"]["extraInfo"]["more"] == 1
    assert record["ftslurm"]["exception"]["type"] == "ZeroDivisionError"
    assert "reported_before" not in record["ftslurm"]


def test_the_failure_of_a_nested_launch_is_reported_by_the_record_that_torch_copied(tmp_path: Path) -> None:
    source = TORCH_RECORD + (
        "class ChildFailedError(Exception): pass\n"
        "try:\n    raise ValueError('inner')\nexcept Exception as error:\n    torch_like_record(error)\n"
        "raise ChildFailedError('===\\nmany lines\\n===')\n"
    )
    worker, process = fail(tmp_path, source)
    record = completed(worker, process.returncode)
    assert record.message == "ValueError: inner"
    assert record.traceback.index("ValueError: inner") < record.traceback.index("many lines")
    assert record.exception is not None
    assert record.exception.type == "ChildFailedError"
    assert record.reported_before is not None
    assert record.reported_before["message"] == "ValueError: inner"


def test_what_the_user_wrote_and_survived_is_left_alone(tmp_path: Path) -> None:
    worker, process = fail(tmp_path, TORCH_RECORD + "torch_like_record(ValueError('handled'))\n")
    assert process.returncode == 0
    record = worker.record()
    assert record is not None
    assert "ftslurm" not in record


def test_torchs_record_of_a_program_is_completed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TORCH_RECORD + "torch_like_record(ValueError('x'))\nos._exit(4)")
    worker = WorkerProcess(tmp_path / "state")
    before = time.time_ns()
    process = worker.run("--exec", sys.executable, "--", "script.py", cwd=tmp_path)
    record = completed(worker, process.returncode)
    assert (record.message, record.kind, record.exit_code) == ("ValueError: x", "exception", 4)
    assert before - 20_000_000 < record.time_ns < time.time_ns()


def test_torch_reads_each_record(tmp_path: Path) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    cases = {"1/0": "ZeroDivisionError: division by zero", "import os; os._exit(3)": "exit code 3",
             "import ctypes; ctypes.string_at(0)": "Fatal Python error: Segmentation fault"}  # fmt: skip
    for number, (source, shown) in enumerate(cases.items()):
        place = tmp_path / str(number)
        place.mkdir()
        worker, process = fail(place, source)
        record = completed(worker, process.returncode)
        (worker.records / "error.json").write_text(json.dumps(error_file(record)))
        failure = errors.ProcessFailure(0, 1, process.returncode, str(worker.records / "error.json"))
        assert failure.message["message"] == record.message
        assert failure.timestamp == record.time_ns // 10**9
        assert shown in errors.ChildFailedError("x", {0: failure}).format_msg()


def test_torchs_own_record_decorator_keeps_working(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError('boom')
if __name__ == '__main__':
    main()
"""
    worker, process = fail(tmp_path, source)
    record = completed(worker, process.returncode)
    assert record.message == "ValueError: boom"
    assert record.exception is not None
    assert record.exception.frames[-1].function == "main"


def test_data_loaders_with_spawned_workers_work(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = """
import dataclasses, torch
from torch.utils.data import DataLoader, Dataset
@dataclasses.dataclass
class Items(Dataset):
    size: int = 4
    def __len__(self): return self.size
    def __getitem__(self, index): return torch.tensor(index)
if __name__ == '__main__':
    for context in ('spawn', 'fork'):
        loader = DataLoader(Items(), num_workers=1, multiprocessing_context=context)
        print(sum(int(batch) for batch in loader))
"""
    worker, process = fail(tmp_path, source)
    assert (process.stdout, process.returncode) == ("6\n6\n", 0), process.stderr
    assert worker.record() is None

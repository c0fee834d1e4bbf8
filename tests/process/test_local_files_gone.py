"""Ranks, launchers within ranks and cleaners of /tmp do what they like to an agent's node-local files: it goes on."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
import test_run
from test_run import Start, Started

start = test_run.start

TIMER = """
import os, sys, time
import ftslurm

def timer():
    import torch.distributed.elastic.timer as timer
    return timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"])

def until(true):
    for _ in range(3000):
        if true():
            return
        time.sleep(0.01)
    raise TimeoutError

rank, path = int(os.environ["RANK"]), os.environ.get("TORCHELASTIC_TIMER_FILE", "")
"""


def messages(run: Started) -> dict[str, int]:
    """Return what the agent has survived, as the first round's record says."""
    counts: dict[str, int] = json.loads(next(run.run_dir.glob("rounds/000001/nodes/*.json")).read_text())["messages"]
    return counts


def no_traceback(run: Started) -> bool:
    """Return whether ftslurm itself has shown none; a rank's has its prefix."""
    return not any(line.startswith("Traceback") for line in run.err.splitlines())


# What removes or replaces them

DAMAGE = {
    "pipe removed": "os.unlink(pipe)",
    "pipe replaced by a file": "os.unlink(pipe); open(pipe, 'w').close()",
    "pipe replaced by a pipe": "os.unlink(pipe); os.mkfifo(pipe)",
    "pipe replaced by a directory": "os.unlink(pipe); os.mkdir(pipe)",
    "pipe replaced by a full directory": "os.unlink(pipe); os.makedirs(pipe + '/x')",
    "pipe replaced by a link to nowhere": "os.unlink(pipe); os.symlink('/nowhere', pipe)",
    "pipe not to be written": "os.chmod(pipe, 0)",
    "pipe's directory removed": "shutil.rmtree(os.path.dirname(pipe))",
    "pipe's directory replaced by a file":
        "shutil.rmtree(os.path.dirname(pipe)); open(os.path.dirname(pipe), 'w').close()",
    "records removed": "shutil.rmtree(records)",
    "records replaced by a file": "shutil.rmtree(records); open(records, 'w').close()",
    "records replaced by a link to nowhere": "shutil.rmtree(records); os.symlink('/nowhere', records)",
    "mark replaced by a directory": "os.unlink(records + '/mark'); os.mkdir(records + '/mark')",
    "mark replaced by a pipe": "os.unlink(records + '/mark'); os.mkfifo(records + '/mark')",
    "mark cut off": "open(records + '/mark', 'w').close()",
    "error record is a directory": "os.mkdir(records + '/error.json')",
    "error record is a pipe": "os.mkfifo(records + '/error.json')",
    "stacks replaced by pipes":
        "[(os.unlink(f), os.mkfifo(f)) for f in (records + '/hang.txt', records + '/stacks.txt')]",
    "round's directory removed": "shutil.rmtree(os.path.dirname(records))",
    # At once: an agent or a monitor may just be writing a file of it.
    "everything removed": "os.rename(local, local + '-'); shutil.rmtree(local + '-', ignore_errors=True)",
    "everything replaced by a file":
        "os.rename(local, local + '-'); open(local, 'w').close(); shutil.rmtree(local + '-', ignore_errors=True)",
    "the health check's request replaced by a directory":
        "q = local + '/health-request.json'; os.path.exists(q) and os.unlink(q); os.mkdir(q)",
    "the health check's facts replaced by a directory":
        "q = local + '/health-facts.json'; os.path.exists(q) and os.unlink(q); os.mkdir(q)",
}  # fmt: skip

IMPOSSIBLE = (
    "pipe replaced by a full directory",
    "pipe's directory replaced by a file",
    "everything replaced by a file",
)

DAMAGED = """
import os, shutil, sys, time
import ftslurm
ftslurm.heartbeat()
ftslurm.progress(1)
pipe, records = os.environ["FTSLURM_PIPE"], os.environ["FTSLURM_RECORD_DIR"]
local = os.path.dirname(os.path.dirname(pipe))
round_ = int(os.environ["FTSLURM_ROUND"])
if round_ == 1 and os.environ["RANK"] == "0":
    %s
# Longer than the agent's looks at what is there, in both rounds.
for _ in range(20):
    time.sleep(0.05)
    ftslurm.heartbeat()
if round_ == 1 and os.environ["RANK"] == "0":
    raise ValueError("once")
"""


def damaged(start: Start, what: str, tmp_path: Path) -> Started:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return start(
        DAMAGED % DAMAGE[what], "--nproc-per-node", "2", "--max-restarts", "1", "--heartbeat", "0.2",
        "--health-every", "1", TMPDIR=str(scratch),
    )  # fmt: skip


@pytest.mark.parametrize("what", [what for what in DAMAGE if what != "everything replaced by a file"])
def test_the_agent_goes_on_and_a_failure_is_followed_by_a_round(start: Start, what: str, tmp_path: Path) -> None:
    run = damaged(start, what, tmp_path)
    assert run.wait() == 0, run.err
    assert no_traceback(run)
    assert len(list(run.run_dir.glob("rounds/*"))) == 2
    assert run.marked() == []


def test_where_nothing_can_be_made_anew_the_next_round_names_the_file_in_the_way(start: Start, tmp_path: Path) -> None:
    run = damaged(start, "everything replaced by a file", tmp_path)
    assert run.wait() == 1, run.err
    assert f"cannot start a worker: {tmp_path}/scratch/ftslurm-" in run.err
    assert no_traceback(run)


@pytest.mark.parametrize("what", [*IMPOSSIBLE, "pipe removed", "pipe replaced by a file", "everything removed"])
def test_torchs_timers_are_received_again_where_the_pipe_can_be_made_anew(
    start: Start, what: str, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    damage = f"""
import json, shutil, stat
pipe = os.environ["FTSLURM_PIPE"]
local = os.path.dirname(os.path.dirname(pipe))
if os.environ["FTSLURM_ROUND"] == "1":
    before = os.lstat(pipe)
    {DAMAGE[what]}
    def anew():
        try:
            now = os.lstat(pipe)
            return stat.S_ISFIFO(now.st_mode) and not os.path.samestat(now, before) and os.path.exists(path)
        except OSError:
            return False
    until(anew)
    request = dict(version=1, pid=os.getpid(), scope_id="fetch", expiration_time=time.time() + 0.5, signal=9)
    with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "w") as file:
        file.write(json.dumps(request) + "\\n")
    time.sleep(600)
"""
    run = start(TIMER + damage, "--max-restarts", "1", "--heartbeat", "0.2", TMPDIR=str(scratch))
    if what in IMPOSSIBLE:
        run.until(lambda: "the ranks' pipe cannot be restored" in run.err)
        run.process.terminate()
        assert run.wait() == 143, run.err
    else:
        assert run.wait() == 0, run.err
        assert "timer 'fetch' expired" in run.err
    assert no_traceback(run)


def test_systemds_cleaner_spares_the_agents_directory(start: Start, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run = start(test_run.FOREVER, TMPDIR=str(scratch))
    test_run.up(run, 1)
    (local,) = scratch.iterdir()
    fd = os.open(local, os.O_RDONLY)
    try:
        # As systemd-tmpfiles does, tmpfiles.d(5).
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)
    run.process.terminate()
    assert run.wait() == 143
    assert list(scratch.iterdir()) == []


# Launchers within a rank

NESTED = """
import torch.distributed.elastic.timer as timer_module
with open("eval.py", "w") as file:
    file.write('''
import os, time
import torch.distributed.elastic.timer as timer
path = os.environ.get("TORCHELASTIC_TIMER_FILE")
if os.environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1":
    timer.configure(timer.FileTimerClient(path))
    with timer.expires(after=60):
        time.sleep(0.5)
open(f"evaluated{os.environ['RANK']}", "w").close()
''')
ftslurm.heartbeat()
before = os.stat(os.environ["FTSLURM_PIPE"])
"""
TORCHRUN = """
if rank == 0:
    import subprocess
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "eval.py"]
    subprocess.run(command, check=True)
"""
ELASTIC = """
def evaluate():
    open("evaluated0", "w").close()

if rank == 0:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    import runpy
    config = LaunchConfig(1, 1, 1, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="nested", max_restarts=0)
    elastic_launch(config, sys.executable)("eval.py")
"""
AFTERWARDS = """
assert os.path.samestat(os.stat(os.environ["FTSLURM_PIPE"]), before), "the pipe of the agent is another one"
until(lambda: os.path.exists(path))
client = timer()
client.acquire("save", time.time() + 60)
client.release("save")
if rank == 0:
    assert os.path.exists("evaluated0")
if os.environ["FTSLURM_ROUND"] == "1" and rank == 0:
    client.acquire("fetch", time.time() + 1)
    time.sleep(600)
"""


@pytest.mark.parametrize("enabled", [None, "1"])
@pytest.mark.parametrize("launcher", ["torchrun", "elastic_launch"])
def test_a_launcher_within_a_rank_leaves_the_pipe_and_the_ranks_timers_work_afterwards(
    start: Start, launcher: str, enabled: str | None
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    nested = TORCHRUN if launcher == "torchrun" else ELASTIC
    chosen = {} if enabled is None else {"TORCHELASTIC_ENABLE_FILE_TIMER": enabled}
    run = start(
        TIMER + NESTED + nested + AFTERWARDS, "--nproc-per-node", "2", "--max-restarts", "1",
        "--heartbeat", "0.5", **chosen,
    )  # fmt: skip
    assert run.wait(300) == 0, run.out + run.err
    assert "rank 0 failed" not in run.err and "timer 'fetch' expired" in run.err
    assert len(list(run.run_dir.glob("rounds/*"))) == 2
    assert "remade" not in messages(run)


def test_a_launcher_within_a_rank_that_serves_timers_itself_does_so_as_below_torchrun(start: Start) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    # The rank's own program sets it, not the user.
    enable = "os.environ['TORCHELASTIC_ENABLE_FILE_TIMER'] = '1'\n"
    run = start(TIMER + NESTED + enable + TORCHRUN + AFTERWARDS, "--max-restarts", "1", "--heartbeat", "0.5")
    assert run.wait(300) == 0, run.out + run.err
    assert "timer 'fetch' expired" in run.err and "remade" not in messages(run)


# What the user has chosen


def timer_variables(start: Start, **chosen: str) -> list[str]:
    run = start(
        "import os; print([os.environ.get('TORCHELASTIC_' + n) for n in ('ENABLE_FILE_TIMER', 'TIMER_FILE')])",
        **chosen,
    )
    assert run.wait() == 0, run.err
    line = next(line for line in run.out.splitlines() if line.startswith("[rank 0]"))
    return [value.strip("' ") for value in line.removeprefix("[rank 0] [").removesuffix("]").split(",")]


def test_a_ranks_environment_has_the_pipes_name_and_keeps_it_from_serving_timers_itself(start: Start) -> None:
    enable, path = timer_variables(start)
    assert enable == "None"
    assert path.endswith("/timer-0")


def test_timers_that_the_user_has_switched_off_stay_off(start: Start) -> None:
    assert timer_variables(start, TORCHELASTIC_ENABLE_FILE_TIMER="0") == ["0", "None"]


def test_a_timer_server_of_the_users_own_stays_theirs(start: Start, tmp_path: Path) -> None:
    assert timer_variables(start, TORCHELASTIC_TIMER_FILE=str(tmp_path / "mine")) == ["None", str(tmp_path / "mine")]
    assert not os.path.lexists(tmp_path / "mine")


def test_timers_are_served_at_a_path_that_the_user_has_chosen(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    script = """
assert path == os.path.abspath("mine")
if os.environ["FTSLURM_ROUND"] == "1":
    timer().acquire("fetch", time.time() + 0.5)
    time.sleep(600)
"""
    chosen = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(tmp_path / "mine")}
    run = start(TIMER + script, "--max-restarts", "1", **chosen)
    assert run.wait(120) == 0, run.err
    assert "timer 'fetch' expired" in run.err
    assert not os.path.lexists(tmp_path / "mine")

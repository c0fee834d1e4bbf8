"""`--worker-prefix`: ranks in a container, whose runtime becomes the rank, has it as a child, or numbers it anew."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
import test_run
from hang_story import RANK, hung, pid_of, stacks, workers
from test_run import Start, Started

start = test_run.start

# None passes the environment on, as `apptainer exec --cleanenv` and `enroot start` do not.
CLEAN = 'env -i PATH="$PATH" PWD_MARK="$PWD_MARK"'
RUNTIMES = {
    "becomes the rank": f'#!/bin/bash\nshift 3\nexec {CLEAN} "$@"\n',
    "has it as a child": f"""\
#!{sys.executable}
import os, subprocess, sys
kept = {{name: os.environ[name] for name in ("PATH", "PWD_MARK")}}
code = subprocess.call(sys.argv[4:], env=kept)
sys.exit(128 - code if code < 0 else code)
""",
    # Its init ends with the code of the rank, as apptainer's; unshare alone makes 1 of a child that SIGKILL ended.
    "gives it other process ids": f"""\
#!/bin/bash
shift 3
unshare --fork --pid --mount-proc {CLEAN} bash -c '"$@"; exit $?' init "$@"
""",
}


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Put a stand-in for apptainer on PATH, whose Python is this one; return the variables that this takes."""
    if "ids" in request.param and os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    return on_path(tmp_path, RUNTIMES[request.param])


def on_path(directory: Path, text: str) -> dict[str, str]:
    (directory / "bin").mkdir()
    program = directory / "bin" / "apptainer"
    program.write_text(text)
    program.chmod(0o755)
    return {"PATH": f"{directory / 'bin'}:{os.environ['PATH']}", "PYTHON_EXEC": sys.executable}


PREFIX = ("--worker-prefix", "apptainer exec --nv 'my image.sif'")
TWO = ("--nproc-per-node", "2", "--grace", "5", "--heartbeat", "0.5")


def pid_outside(run: Started, rank: int) -> int:
    """Return the process id of a rank as this test has it."""
    (found,) = (pid for pid, line in run.marked() if line.startswith(sys.executable) and f"/{rank:05d} " in line)
    return found


def test_a_rank_in_a_container_has_its_variables_and_records_and_its_exit_code_counts(
    start: Start, runtime: dict[str, str]
) -> None:
    script = """
import os, sys, time
import ftslurm
ftslurm.progress(7)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
open("printed" + os.environ["RANK"], "w").close()
while not os.path.exists("printed0"):
    time.sleep(0.01)  # else its stop may come before its line
sys.exit(3 if os.environ["RANK"] == "1" else 0)
"""
    run = start(script, *PREFIX, *TWO, "--max-restarts", "0", after=("a b", ""), **runtime)
    assert run.wait() == 1, run.err
    assert "[rank 0] rank 0 of 2 ['a b', '']" in run.out
    ends = workers(run)
    assert (ends[1]["exit_code"], ends[1]["progress"]["last_step"]) == (3, 7)


def test_an_exception_in_a_container_is_the_first_failure(start: Start, runtime: dict[str, str]) -> None:
    run = start("raise ValueError('bad batch')", *PREFIX, "--max-restarts", "0", **runtime)
    assert run.wait() == 1
    assert "ValueError: bad batch" in run.out


def test_a_stop_reaches_the_rank_in_its_container_which_saves_and_ends(start: Start, runtime: dict[str, str]) -> None:
    script = """
def save(*_):
    time.sleep(0.5)
    up("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR1, lambda *_: up("asked"))
train()
"""
    run = start(RANK + script, *PREFIX, *TWO, **runtime)
    for rank in range(2):
        pid_of(run, rank)
    run.process.send_signal(signal.SIGUSR1)
    for rank in range(2):
        pid_of(run, rank, what="asked")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    assert sorted(path.name for path in run.directory.glob("saved*")) == ["saved0.1", "saved1.1"]
    assert run.marked() == []


def test_a_rank_in_a_container_that_ignores_the_stop_is_killed_after_the_grace(
    start: Start, runtime: dict[str, str]
) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntrain()"
    run = start(RANK + script, *PREFIX, "--grace", "0.5", **runtime)
    pid_of(run, 0)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    assert run.marked() == []


def test_a_hang_in_a_container_shows_its_stacks_and_only_that_rank_is_killed_at_once(
    start: Start, runtime: dict[str, str]
) -> None:
    run = start(RANK + "train(hangs=1)", *PREFIX, *TWO, "--heartbeat-timeout", "2", **runtime)
    assert run.wait() == 0, run.err
    assert (hung(run)["rank"], hung(run)["step"]) == (1, 5)
    shown = stacks(run)
    assert [shown[rank].stacks.problem for rank in (0, 1)] == [None, None]
    assert "in fetch" in shown[1].stacks.text and "in train" in shown[0].stacks.text
    # Where the runtime is not the rank itself, it may see the end first, and end with the code that means it.
    killed = workers(run)[1]
    assert killed.get("signal") == "SIGKILL" or killed["exit_code"] == 128 + signal.SIGKILL


def test_a_stopped_rank_in_a_container_is_called_so(start: Start, runtime: dict[str, str]) -> None:
    script = "train(hangs=1, act=lambda: os.kill(os.getpid(), signal.SIGSTOP) or fetch())"
    if "unshare" in (Path(runtime["PATH"].partition(":")[0]) / "apptainer").read_text():
        script = "train(hangs=1, act=lambda: (up('halt'), fetch()))"
    run = start(RANK + script, *PREFIX, *TWO, "--heartbeat-timeout", "2", **runtime)
    if "halt" in script:
        # The first process of a PID namespace can be stopped from outside only.
        pid_of(run, 1, what="halt")
        os.kill(pid_outside(run, 1), signal.SIGSTOP)
    assert run.wait() == 0, run.err
    assert stacks(run)[1].stacks.problem == "stopped (SIGSTOP)"


def test_messages_of_a_rank_in_a_container_are_known_as_its_own(start: Start, runtime: dict[str, str]) -> None:
    script = """
def up_and_wait():
    up("limited")
    fetch()
train(hangs=0, act=lambda: (ftslurm.set_timeouts(heartbeat=1.5), up_and_wait()))
"""
    run = start(RANK + script, *PREFIX, "--heartbeat-timeout", "600", **runtime)
    assert run.wait() == 0, run.err
    assert "time-out 1.5 s" in hung(run)["message"].replace("1.50", "1.5")
    assert "no worker of this agent" not in run.err


def test_a_container_that_cannot_start_is_one_line_beside_its_own_message(start: Start, tmp_path: Path) -> None:
    runtime = on_path(tmp_path, "#!/bin/sh\necho 'FATAL: no such image: my image.sif' >&2\nexit 255\n")
    run = start("", *PREFIX, "--max-restarts", "0", **runtime)
    assert run.wait() == 1
    assert "FATAL: no such image" in run.err
    lines = [line for line in run.err.splitlines() if "before the rank began" in line]
    assert len(lines) == 1 and "ended with code 255" in lines[0] and "docs/containers.md" in lines[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
def test_a_container_that_lacks_the_record_directory_ends_the_job_and_names_it(start: Start, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    inside = f'mount -t tmpfs none {shlex.quote(str(local))} && exec "$@"'
    runtime = on_path(tmp_path, f"#!/bin/bash\nshift 3\nexec unshare --mount bash -c '{inside}' bash \"$@\"\n")
    run = start("", *PREFIX, TMPDIR=str(local), **runtime)
    assert run.wait() == 78, run.err
    assert f"{local}/ftslurm-" in run.err and "cannot be used in the container" in run.err
    assert len(list((run.run_dir / "rounds").iterdir())) == 1


@pytest.mark.parametrize(
    ("prefix", "text"),
    [("apptainr exec x", "no such program"), ("a 'b", "no closing quotation"), (" ", "expected a command")],
)
def test_a_wrong_prefix_is_one_line_before_anything_starts(start: Start, prefix: str, text: str) -> None:
    run = start("", "--worker-prefix", prefix)
    assert run.wait() == 2
    assert run.err.count("\n") == 1 and text in run.err and "--worker-prefix" in run.err
    assert not (run.directory / "ftslurm-runs").exists()

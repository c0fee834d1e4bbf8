"""scripts/slurm-lab: what it refuses, and one life of a lab of one node."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm-lab"
FREEZER = Path("/sys/fs/cgroup/freezer")
Lab = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Run slurm-lab on a directory and with node names that no other lab has; nothing is left at the end."""
    # munge's socket must have a short path, so this is not below pytest's own temporary directory
    where = Path(f"/tmp/slurm-lab-test-{os.getpid()}")
    prefix = "t" + "".join(chr(ord("a") + int(digit)) for digit in str(os.getpid()))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
    environment |= {"SLURMLAB_DIR": str(where), "SLURMLAB_PREFIX": prefix}

    def run(*words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *words], env=environment | changes, capture_output=True, text=True, timeout=600, check=False
        )

    yield run
    if where.exists():
        run("down")


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one line with which a command was refused."""
    assert (result.returncode, result.stdout) == (2, ""), result
    (line,) = result.stderr.splitlines()
    return line


def test_help_names_every_command(lab: Lab) -> None:
    result = lab("--help")
    assert result.returncode == 0
    verbs = ("up", "down", "status", "env", "kill-node", "revive-node", "freeze-node", "thaw-node", "exec", "procs")
    for verb in verbs:
        assert f"slurm-lab {verb} " in result.stdout


def test_no_command_prints_the_usage_as_an_error(lab: Lab) -> None:
    result = lab()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["begin"], "unknown command 'begin'"),
        (["up", "0"], "'0'"),
        (["up", "65"], "'65'"),
        (["up", "2", "3"], "'3'"),
        (["up", "--gpu"], "'--gpu'"),
        (["up", "--cpus"], "--cpus needs a number"),
        (["up", "--gpus", "two"], "'two'"),
        (["up", "--set", "KillWait"], "KEY=VALUE"),
        (["down", "now"], "'now'"),
        (["kill-node"], "NAME"),
        (["thaw-node", "n1", "n2"], "'n1 n2'"),
        (["exec", "n1"], "a command"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line_that_names_it(lab: Lab, words: list[str], named: str) -> None:
    assert named in refused(lab(*words))


@pytest.mark.parametrize("path", ["relative", "/tmp/" + "x" * 80])
def test_a_directory_that_cannot_hold_a_socket_is_refused(lab: Lab, path: str) -> None:
    assert "SLURMLAB_DIR" in refused(lab("up", "1", SLURMLAB_DIR=path))


def test_what_needs_a_lab_says_that_none_is_up(lab: Lab) -> None:
    for verb in ("env", "status"):
        result = lab(verb)
        assert (result.returncode, result.stdout) == (1, "")
        assert "nothing is up" in result.stderr


needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("slurmctld", path="/usr/sbin") or shutil.which("apt-get")),
    reason="needs root, and Slurm or apt-get to install it",
)


@needs_slurm
def test_down_without_a_lab_is_no_error(lab: Lab) -> None:
    assert lab("down").returncode == 0


@needs_slurm
def test_a_directory_with_something_else_in_it_is_left_alone(lab: Lab) -> None:
    precious = Path(f"/tmp/slurm-lab-test-{os.getpid()}/precious")
    precious.parent.mkdir()
    precious.touch()
    try:
        assert "holds something else" in refused(lab("up", "1"))
        assert "holds something else" in refused(lab("down"))
        assert precious.exists()
    finally:
        precious.unlink()
        precious.parent.rmdir()


@needs_slurm
def test_a_lab_runs_jobs_loses_and_regains_its_node_and_leaves_nothing(lab: Lab) -> None:
    result = lab("up", "1", "--set", "KillWait=7")
    if "could not install" in result.stderr:
        pytest.skip("Slurm could not be installed: " + result.stderr.splitlines()[-1])
    assert result.returncode == 0, result.stderr
    assert result.stdout == lab("env").stdout
    config = result.stdout.removeprefix("export SLURM_CONF=").strip()
    directory = Path(config).parent
    node = (directory / "nodes").read_text().strip()

    def slurm(*words: str) -> str:
        done = subprocess.run(
            words, env=dict(os.environ, SLURM_CONF=config), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done
        return done.stdout.strip()

    assert slurm("srun", "hostname") == node
    assert slurm("scontrol", "show", "config").count("KillWait                = 7 sec") == 1
    assert "already up" in refused(lab("up", "1"))
    assert f"only {node}" in refused(lab("kill-node", node + "1"))
    assert lab("exec", node, "hostname").stdout.strip() == node
    assert lab("freeze-node", node).returncode == 0
    states = [line.split()[2] for line in lab("procs", node).stdout.splitlines()[1:]]
    assert states
    assert all(state.startswith("T") for state in states)
    assert lab("thaw-node", node).returncode == 0

    slurm("sbatch", "--output=/dev/null", "--wrap", "setsid sleep 600 & wait")
    pid = wait_for(lambda: pid_of("sleep 600", lab("procs", node).stdout))
    assert lab("kill-node", node).returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (lab("kill-node", node).returncode, lab("procs", node).stdout) == (0, "")
    assert f"{node} is dead" in lab("freeze-node", node).stderr
    revived = lab("revive-node", node)
    assert revived.returncode == 0, revived.stderr
    assert slurm("srun", "hostname") == node

    daemons = [int(file.read_text().split()[0]) for file in (directory / "pid").iterdir()]
    assert lab("down").returncode == 0
    assert not directory.exists()
    assert not (FREEZER / f"slurm_{node}").exists()
    wait_for(lambda: not any(runs(daemon) for daemon in daemons))
    assert lab("down").returncode == 0


def runs(pid: int) -> bool:
    """Whether a process is there and not a zombie that its parent has yet to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def pid_of(command: str, processes: str) -> int:
    """The pid in the line of ps that ends with a command, 0 if there is none."""
    return next((int(line.split()[0]) for line in processes.splitlines() if line.endswith(command)), 0)


def wait_for(look: Callable[[], int], seconds: float = 20) -> int:
    """What look returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return seen

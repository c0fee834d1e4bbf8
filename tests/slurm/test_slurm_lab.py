"""scripts/slurm-lab: what it refuses, and one life of a lab of one node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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

    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *arguments], env=environment | changes, capture_output=True, text=True, timeout=600, check=False
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
    nodes = ("kill-node", "revive-node", "freeze-node", "thaw-node", "kill-daemon", "start-daemon", "exec", "procs")
    network = ("cut-link", "restore-link", "block-datagrams", "allow-datagrams")
    for verb in ("up", "down", "status", "env", *nodes, *network):
        assert f"slurm-lab {verb} " in result.stdout


def test_no_command_prints_the_usage_as_an_error(lab: Lab) -> None:
    result = lab()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["begin"], "unknown command 'begin'"),
        (["up", "0"], "'0'"),
        (["up", "65"], "'65'"),
        (["up", "2", "3"], "'3'"),
        (["up", "--gpu"], "'--gpu'"),
        (["up", "--cpus"], "--cpus needs a number"),
        (["up", "--gpus", "two"], "'two'"),
        (["up", "--set", "KillWait"], "KEY=VALUE"),
        (["up", "--boot"], "--boot needs a COMMAND"),
        (["down", "now"], "'now'"),
        (["kill-node"], "NAME"),
        (["thaw-node", "n1", "n2"], "'n1 n2'"),
        (["cut-link", "n1", "n2"], "'n1 n2'"),
        (["kill-daemon"], "NAME"),
        (["block-datagrams", "n1"], "'n1'"),
        (["exec", "n1"], "a command"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line_that_names_it(lab: Lab, arguments: list[str], named: str) -> None:
    assert named in refused(lab(*arguments))


@pytest.mark.parametrize("path", ["relative", "/tmp/" + "x" * 80])
def test_a_directory_that_cannot_hold_a_socket_is_refused(lab: Lab, path: str) -> None:
    assert "SLURMLAB_DIR" in refused(lab("up", "1", SLURMLAB_DIR=path))


def test_a_command_that_needs_a_lab_names_its_absence(lab: Lab) -> None:
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
    result = lab("up", "1", "--set", "KillWait=7", "--boot", "mkdir -p /dev/shm/$SLURMLAB_NODE")
    if "could not install" in result.stderr:
        pytest.skip("Slurm could not be installed: " + result.stderr.splitlines()[-1])
    assert result.returncode == 0, result.stderr
    assert result.stdout == lab("env").stdout
    config = result.stdout.removeprefix("export SLURM_CONF=").strip()
    directory = Path(config).parent
    node = (directory / "nodes").read_text().strip()

    def slurm(*argv: str) -> str:
        done = subprocess.run(
            argv, env=dict(os.environ, SLURM_CONF=config), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done
        return done.stdout.strip()

    assert slurm("srun", "hostname") == node
    assert slurm("scontrol", "show", "config").count("KillWait                = 7 sec") == 1
    assert "already up" in refused(lab("up", "1"))
    assert f"only {node}" in refused(lab("kill-node", node + "1"))
    assert lab("exec", node, "hostname").stdout.strip() == node
    assert lab("exec", node, "ls", "/dev/shm").stdout.strip() == node
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
    assert lab("exec", node, "ls", "/dev/shm").stdout.strip() == node
    assert slurm("srun", "hostname") == node
    assert "--network" in refused(lab("cut-link", node))

    daemons = [int(file.read_text().split()[0]) for file in (directory / "pid").iterdir()]
    assert lab("down").returncode == 0
    assert not directory.exists()
    assert not (FREEZER / f"slurm_{node}").exists()
    wait_for(lambda: not any(runs(daemon) for daemon in daemons))
    assert lab("down").returncode == 0


@pytest.fixture
def network(lab: Lab) -> tuple[str, str]:
    """A lab of two nodes with a network of their own is up: the nodes' names."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    result = lab("up", "2", "--network")
    if any(why in result.stderr for why in ("could not install", "no apt-get", "does not let us")):
        pytest.skip(result.stderr.splitlines()[-1])
    assert result.returncode == 0, result.stderr
    directory = Path(result.stdout.removeprefix("export SLURM_CONF=").strip()).parent
    first, second = (directory / "nodes").read_text().split()
    return first, second


# Takes one connection, or datagrams, and writes down what comes.
LISTEN = """
import socket, sys
end = socket.socket(socket.AF_INET, getattr(socket, sys.argv[1]))
end.bind(("", 7100))
if sys.argv[1] == "SOCK_STREAM":
    end.listen()
    end = end.accept()[0]
try:
    while data := end.recv(100):
        print(data.decode(), flush=True)
    print("closed", flush=True)
except OSError as error:
    print("broken", error, flush=True)
"""
# Waits for a listener and talks to it for as long as it lives.
TALK = """
import socket, sys, time
while True:
    try:
        end = socket.create_connection((sys.argv[1], 7100), 1)
        break
    except OSError:
        time.sleep(0.05)
for number in range(6000):
    end.sendall(f"<{number}>".encode())
    time.sleep(0.05)
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)"
SEND = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 7100))
"""


class Listener:
    """A listener on a node: what it heard is in a file."""

    def __init__(self, lab: Lab, node: str, kind: str, path: Path) -> None:
        self.path = path
        line = f"exec {sys.executable} -uc '{LISTEN}' {kind} >{path} 2>&1 &"
        lab("exec", node, "bash", "-c", f"touch {path}; {line}")

    @property
    def heard(self) -> str:
        return self.path.read_text()

    def hears_more(self) -> None:
        before = len(self.heard)
        wait_for(lambda: len(self.heard) > before)


def test_a_node_with_its_own_network_that_dies_closes_no_connection(
    lab: Lab, network: tuple[str, str], tmp_path: Path
) -> None:
    first, second = network
    listener = Listener(lab, second, "SOCK_STREAM", tmp_path / "heard")
    lab("exec", first, "bash", "-c", f"{sys.executable} -c '{TALK}' {second} >/dev/null 2>&1 &")
    listener.hears_more()
    assert lab("kill-node", first).returncode == 0
    lab("exec", second, "true")
    assert "closed" not in listener.heard and "broken" not in listener.heard
    assert lab("revive-node", first).returncode == 0
    # Its port was closed for good: the new kernel, so to speak, knows of no connection.
    assert lab("exec", first, sys.executable, "-c", CONNECT, second, slurmd_port(lab, second)).returncode == 0


def test_a_cut_link_lets_nothing_through_and_a_restored_one_goes_on(
    lab: Lab, network: tuple[str, str], tmp_path: Path
) -> None:
    first, second = network
    listener = Listener(lab, second, "SOCK_STREAM", tmp_path / "heard")
    lab("exec", first, "bash", "-c", f"{sys.executable} -c '{TALK}' {second} >/dev/null 2>&1 &")
    listener.hears_more()
    assert lab("cut-link", first).returncode == 0
    reach = ("exec", second, sys.executable, "-c", CONNECT, first, slurmd_port(lab, first))
    assert lab(*reach).returncode != 0
    assert lab("restore-link", first).returncode == 0
    assert lab(*reach).returncode == 0
    listener.hears_more()
    assert "closed" not in listener.heard and "broken" not in listener.heard


def test_blocked_datagrams_do_not_arrive_and_connections_do(lab: Lab, network: tuple[str, str], tmp_path: Path) -> None:
    first, second = network
    listener = Listener(lab, second, "SOCK_DGRAM", tmp_path / "heard")

    def arrives(text: str) -> bool:
        # In the order in which they were sent, so the last one says that the ones before are lost.
        lab("exec", first, sys.executable, "-c", SEND, second, text)
        return text in listener.heard

    wait_for(lambda: arrives("before"))
    assert lab("block-datagrams").returncode == 0
    arrives("meanwhile")
    assert lab("exec", first, sys.executable, "-c", CONNECT, second, slurmd_port(lab, second)).returncode == 0
    assert lab("allow-datagrams").returncode == 0
    wait_for(lambda: arrives("after"))
    assert "meanwhile" not in listener.heard


def test_a_job_survives_that_slurms_daemons_are_killed_and_started_again(
    lab: Lab, network: tuple[str, str], tmp_path: Path
) -> None:
    first, _ = network
    config = lab("env").stdout.removeprefix("export SLURM_CONF=").strip()

    def slurm(*argv: str) -> str:
        environment = dict(os.environ, SLURM_CONF=config)
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout

    go_on = tmp_path / "go on"
    wait = f"until [ -e '{go_on}' ]; do sleep 0.1; done"
    job = slurm("sbatch", "--parsable", "--output=/dev/null", "-w", first, "--wrap", wait).strip()
    wait_for(lambda: " RUNNING " in slurm("squeue", "-o", " %T ", "-j", job))
    saved, running = Path(config).with_name("state") / "job_state", time.time()
    # What slurmctld has not written no successor knows, and it does not write down the start of a job by itself.
    slurm("scontrol", "update", f"jobid={job}", "comment=started")
    wait_for(lambda: saved.exists() and saved.stat().st_mtime > running)
    for daemon in (first, "slurmctld"):
        assert lab("kill-daemon", daemon).returncode == 0
        assert lab("start-daemon", daemon).returncode == 0
        assert "runs" in refused(lab("start-daemon", daemon))
    go_on.touch()
    wait_for(lambda: "JobState=COMPLETED" in slurm("scontrol", "show", "job", job), 60)


def slurmd_port(lab: Lab, node: str) -> str:
    """A port on which that node listens."""
    config = Path(lab("env").stdout.removeprefix("export SLURM_CONF=").strip()).read_text()
    (line,) = (line for line in config.splitlines() if line.startswith(f"NodeName={node} "))
    return dict(field.split("=", 1) for field in line.split())["Port"]


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

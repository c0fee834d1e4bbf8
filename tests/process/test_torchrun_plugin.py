"""Stock torchrun with `--rdzv-backend=sharedfs`: real agents, real workers, failures and murders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

FAST = "keep_alive_interval=0.3,keep_alive_max_attempt=5"
# Notes down its rank and that it has begun; then the test's own lines.
WORKER = """
import os, sys, time
from pathlib import Path
here = Path(__file__).parent
rank, world, restart = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
def note(what):
    with open(here / "notes", "a") as file:
        file.write(f"{what} {rank} {world} {os.environ['MASTER_PORT']} {os.getpid()} {os.environ['GROUP_RANK']}\\n")
def noted(what):
    return [l.split() for l in (here / "notes").read_text().splitlines() if l.startswith(what + " ")]
note("begun")
"""
UNTIL_STOPPED = WORKER + "while not (here / 'stop').exists(): time.sleep(0.02)\nnote('done')\n"


class Agents:
    """torchrun agents on this machine, which think that they are nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, *arguments: str, conf: str = FAST, **environment: str) -> subprocess.Popen[bytes]:
        (self.directory / "train.py").write_text(script)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM", "TORCH"))}
        rendezvous = ("--rdzv-backend=sharedfs", f"--rdzv-endpoint={self.directory / 'shared'}", "--rdzv-id=job")
        command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, f"--rdzv-conf={conf}", *arguments]
        with (self.directory / f"agent{len(self.processes)}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [*command, "train.py"],
                    cwd=self.directory,
                    env={**clean, "AGENTS_OF": str(self.directory), **environment},
                    stdout=log,
                    stderr=log,
                )
            )
        return self.processes[-1]

    def two(self, script: str, *arguments: str, **more: str) -> None:
        for _ in range(2):
            self.start(script, *arguments, **more)

    def codes(self, seconds: float = 60) -> list[int]:
        end = time.monotonic() + seconds
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]

    def notes(self, what: str) -> list[list[str]]:
        path = self.directory / "notes"
        text = path.read_text() if path.exists() else ""
        return [line.split()[1:] for line in text.splitlines() if line.startswith(what + " ")]

    def until(self, true: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for real processes to get somewhere; the bound is for a hang, not a measurement."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"not within {seconds} s:\n{self.log()}\n{self.notes('begun')}"
            time.sleep(0.02)

    def log(self, number: int | None = None) -> str:
        numbers = range(len(self.processes)) if number is None else [number]
        return "\n".join((self.directory / f"agent{n}.log").read_text(errors="replace") for n in numbers)

    def stop(self) -> None:
        (self.directory / "stop").touch()

    @property
    def state(self) -> dict:
        newest = max((self.directory / "shared" / "job" / "state").glob("0*.json"))
        return json.loads(newest.read_text())["value"]

    def leftovers(self) -> list[int]:
        mark = f"AGENTS_OF={self.directory}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    agents = Agents(tmp_path)
    yield agents
    for process in agents.processes:
        if process.poll() is None:
            process.kill()
    for pid in agents.leftovers():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for process in agents.processes:
        process.wait(30)


def test_one_node_runs_to_its_end(agents: Agents) -> None:
    agents.start(WORKER, "--nproc-per-node=2")
    assert agents.codes() == [0], agents.log()
    assert sorted(note[:2] for note in agents.notes("begun")) == [["0", "2"], ["1", "2"]]
    assert agents.state["closed"]["outcome"] == "succeeded"
    assert agents.state["history"][-1]["outcome"] == "succeeded"


def test_a_run_of_fixed_size_can_be_run_again_under_its_name(agents: Agents) -> None:
    for _ in range(2):
        agents.start(WORKER)
        assert agents.codes()[-1] == 0, agents.log()
    assert agents.state["attempts"] == ["torchrun.0", "torchrun.1"]


def skip_without_libuv() -> None:
    """Workers open the store of their agent by libuv alone, whatever USE_LIBUV is; Debian builds torch without it."""
    from torch.distributed import TCPStore

    try:
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    except RuntimeError as error:
        pytest.skip(f"this torch's workers cannot open the store of any torchrun: {error}")


def test_two_agents_on_one_host_form_one_world_that_computes_together(agents: Agents) -> None:
    skip_without_libuv()
    script = WORKER + (
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "x = torch.ones(1)\ndist.all_reduce(x)\nnote(f'sum={x.item():g}')\n"
        "dist.barrier()\ndist.destroy_process_group()\n"
    )
    agents.two(script, "--nnodes=2", "--nproc-per-node=2")
    assert agents.codes(120) == [0, 0], agents.log()
    assert sorted(note[0] for note in agents.notes("sum=4")) == ["0", "1", "2", "3"]


def test_when_a_worker_fails_both_nodes_restart_and_finish(agents: Agents) -> None:
    script = WORKER + (
        "if rank == 1 and len(noted('begun')) <= 2:\n    time.sleep(0.5)\n    sys.exit(3)\n"
        "while len(noted('begun')) < 4: time.sleep(0.02)\n"
    )
    agents.two(script, "--nnodes=2", "--max-restarts=1")
    assert agents.codes() == [0, 0], agents.log()
    begun = agents.notes("begun")
    assert sorted(note[0] for note in begun) == ["0", "0", "1", "1"]
    ports = [{note[2] for note in begun[:2]}, {note[2] for note in begun[2:]}]
    assert len(ports[0]) == len(ports[1]) == 1, "the ranks of a round have one master"
    assert ports[0] != ports[1], "each round has a fresh master port"
    assert [past["outcome"] for past in agents.state["history"]] == ["failed", "succeeded"]


def test_a_worker_that_fails_once_too_often_ends_the_job_on_all_nodes(agents: Agents) -> None:
    script = WORKER + "if rank == 0: time.sleep(0.5); sys.exit(3)\ntime.sleep(100)\n"
    agents.two(script, "--nnodes=2", "--max-restarts=0")
    assert agents.codes(40) == [1, 1], agents.log()
    closed = agents.state["closed"]
    assert closed["outcome"] == "failed"
    assert closed["reason"].startswith("rank 0 on ")
    assert "exit code 3" in closed["reason"]


def test_when_an_agent_is_murdered_the_other_goes_on_alone(agents: Agents) -> None:
    agents.two(UNTIL_STOPPED, "--nnodes=1:2")
    agents.until(lambda: len(agents.notes("begun")) == 2)
    # The one with rank 0, which hosts the round's store: its loss is the harder one.
    host = agents.state["master"]["port"]
    records = [json.loads(path.read_text()) for path in (agents.directory / "shared/job/nodes").glob("[!.]*.json")]
    victim = next(record["pid"] for record in records if record["port"] == host)
    os.kill(victim, signal.SIGKILL)
    agents.until(lambda: ["0", "1"] in [note[:2] for note in agents.notes("begun")])
    agents.stop()
    assert sorted(agents.codes()) == [-signal.SIGKILL, 0], agents.log()
    assert len(agents.state["lost"]) == 1


def test_an_agent_that_is_requested_to_stop_is_not_waited_for(agents: Agents) -> None:
    agents.two(UNTIL_STOPPED, "--nnodes=1:2", conf="keep_alive_interval=1,keep_alive_max_attempt=60")
    agents.until(lambda: len(agents.notes("begun")) == 2)
    agents.processes[0].send_signal(signal.SIGTERM)
    agents.until(lambda: ["0", "1"] in [note[:2] for note in agents.notes("begun")], 30)
    agents.stop()
    assert agents.codes()[1] == 0, agents.log()


def test_an_agent_of_a_fixed_number_that_is_stopped_ends_the_others(agents: Agents) -> None:
    """With the c10d backend of torch, the other one waits for a node that does not come."""
    agents.two(UNTIL_STOPPED, "--nnodes=2", conf="keep_alive_interval=0.5,keep_alive_max_attempt=60")
    agents.until(lambda: len(agents.notes("begun")) == 2)
    agents.processes[0].send_signal(signal.SIGTERM)
    codes = agents.codes(40)
    assert all(codes), agents.log()
    closed = agents.state["closed"]
    assert closed["outcome"] == "stopped"
    assert closed["reason"].endswith("left (its torchrun was stopped): 1 of 2 nodes is left")
    # The name can be used again, as after another end.
    (agents.directory / "stop").touch()
    agents.two(UNTIL_STOPPED, "--nnodes=2")
    assert agents.codes(60)[-2:] == [0, 0], agents.log()


def test_a_late_node_gets_in(agents: Agents) -> None:
    agents.start(UNTIL_STOPPED, "--nnodes=1:2", conf=FAST + ",last_call_timeout=1")
    agents.until(lambda: ["0", "1"] in [note[:2] for note in agents.notes("begun")])
    agents.start(UNTIL_STOPPED, "--nnodes=1:2", conf=FAST + ",last_call_timeout=1")
    agents.until(lambda: len([note for note in agents.notes("begun") if note[1] == "2"]) == 2)
    agents.stop()
    assert agents.codes() == [0, 0], agents.log()
    assert agents.state["history"][0]["reason"].endswith("joined")


def test_a_spare_waits_and_ends_well_when_the_job_does(agents: Agents) -> None:
    for _ in range(3):
        agents.start(UNTIL_STOPPED, "--nnodes=2")
    agents.until(lambda: len(agents.notes("begun")) == 2 and len(agents.state["participants"]) == 2)
    nodes = agents.directory / "shared/job/nodes"
    agents.until(lambda: len(list(nodes.glob("[!.]*.json"))) == 3)
    agents.stop()
    assert agents.codes() == [0, 0, 0], agents.log()
    assert len(agents.notes("begun")) == 2


def test_a_spare_takes_the_place_of_a_murdered_node(agents: Agents) -> None:
    for _ in range(3):
        agents.start(UNTIL_STOPPED, "--nnodes=2")
    nodes = agents.directory / "shared/job/nodes"
    agents.until(lambda: len(agents.notes("begun")) == 2 and len(list(nodes.glob("[!.]*.json"))) == 3)
    taking_part = {participant["node"] for participant in agents.state["participants"]}
    records = [json.loads(path.read_text()) for path in nodes.glob("[!.]*.json")]
    os.kill(next(record["pid"] for record in records if record["node"] in taking_part), signal.SIGKILL)
    agents.until(lambda: len(agents.notes("begun")) == 4)
    agents.stop()
    assert sorted(agents.codes()) == [-signal.SIGKILL, 0, 0], agents.log()


def test_too_few_nodes_are_waited_for_no_longer_than_the_join_timeout(agents: Agents) -> None:
    agents.start(WORKER, "--nnodes=2", conf=FAST + ",join_timeout=1")
    assert agents.codes(40) == [1]
    assert "RendezvousTimeoutError: rendezvous job: 1 node left, at least 2 needed" in agents.log()
    assert agents.notes("begun") == []


def test_a_node_that_asks_for_another_size_is_refused_and_disturbs_no_other(agents: Agents) -> None:
    agents.start(UNTIL_STOPPED, "--nnodes=1")
    agents.until(lambda: len(agents.notes("begun")) == 1)
    other = agents.start(UNTIL_STOPPED, "--nnodes=2")
    assert other.wait(40) == 1
    assert "2:2" in agents.log(1)
    assert "1:1" in agents.log(1)
    agents.stop()
    assert agents.codes() == [0, 1], agents.log()


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("store_size=1", "--rdzv-conf store_size: the backend sharedfs supports only"),
        ("protocol=other", "--rdzv-conf protocol=other: expected fold or dynamic"),
        ("join_timeout=soon", "--rdzv-conf join_timeout=soon: expected seconds"),
    ],
)
def test_a_wrong_option_is_refused_with_one_line(agents: Agents, conf: str, expected: str) -> None:
    agents.start(WORKER, conf=conf)
    assert agents.codes() == [1]
    assert expected in agents.log()
    assert "Traceback" not in agents.log()


def test_torchs_own_protocol_forms_a_world_on_the_shared_directory(agents: Agents) -> None:
    agents.two(WORKER, "--nnodes=2", conf="protocol=dynamic,last_call_timeout=1")
    assert agents.codes() == [0, 0], agents.log()
    assert sorted(note[:2] for note in agents.notes("begun")) == [["0", "2"], ["1", "2"]]


def test_torchs_own_protocol_restarts_both_nodes_when_a_worker_fails(agents: Agents) -> None:
    script = WORKER + (
        "if rank == 1 and len(noted('begun')) <= 2:\n    time.sleep(0.5)\n    sys.exit(3)\n"
        "if len(noted('begun')) <= 2: time.sleep(1); sys.exit(4)\n"
        "while len(noted('begun')) < 4: time.sleep(0.02)\n"
    )
    agents.two(script, "--nnodes=2", "--max-restarts=1", conf="protocol=dynamic,last_call_timeout=1")
    assert agents.codes() == [0, 0], agents.log()
    assert len(agents.notes("begun")) == 4


def test_agents_of_different_protocols_end_with_an_error_that_names_them(agents: Agents) -> None:
    agents.start(WORKER)
    assert agents.codes() == [0], agents.log()
    agents.start(WORKER, conf="protocol=dynamic")
    assert agents.codes() == [0, 1]
    assert "its agents use the fold protocol" in agents.log(1)

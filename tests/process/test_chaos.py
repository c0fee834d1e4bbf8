"""Kill anything at any time: whatever was killed or frozen, the run ends, reports the truth and leaves nothing behind.

FTSLURM_CHAOS_SEEDS=N runs N seeds instead of a few, FTSLURM_CHAOS_FIRST=S begins with seed S.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SEEDS = int(os.environ.get("FTSLURM_CHAOS_SEEDS", "5"))
FIRST = int(os.environ.get("FTSLURM_CHAOS_FIRST", "1"))
NODE_TIMEOUT_S = 2.0
END_S = 60.0
"""A run must have ended so long after the last blow, on a busy machine too; the longest way there (a join timeout, a
grace, a farewell) takes about 20 seconds."""
OPTIONS = [
    *("--local-nodes", "3", "--nnodes", "2:3", "--nproc-per-node", "2", "--max-restarts", "6"),
    *("--heartbeat", "0.2", "--node-timeout", str(NODE_TIMEOUT_S), "--join-timeout", "10", "--grace", "1"),
]
SCRIPT = """
import os, signal, subprocess, sys, time
rank, round_, world = os.environ["RANK"], os.environ["FTSLURM_ROUND"], os.environ["WORLD_SIZE"]
log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def mark(what):
    os.write(log, f"{time.monotonic()} {what} {round_} {rank} {world} {os.environ['FTSLURM_NODE']}\\n".encode())
def stop_slowly(*_):
    for _ in range(12):
        time.sleep(0.05)
        mark("stopping")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
if os.environ["CHAOS_SLOW"] == "1":
    signal.signal(signal.SIGTERM, stop_slowly)
mark("start")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
for step in range(40):
    time.sleep(0.05)
    mark("step")
mark("stop")
"""


@dataclass
class Process:
    pid: int
    parent: int
    environment: dict[str, str]
    command: str


@dataclass
class Chaos:
    """One run and what was done to it."""

    seed: int
    directory: Path
    blows: list[str] = field(default_factory=list)
    killed_workers: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    hit_nodes: set[str] = field(default_factory=set)
    frozen_nodes: set[str] = field(default_factory=set)
    top_signals: list[signal.Signals] = field(default_factory=list)
    top_was_killed: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
        (self.directory / "train.py").write_text(SCRIPT)
        (self.directory / "tmp").mkdir()
        with (self.directory / "out").open("w") as out, (self.directory / "err").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ftslurm.cli", "run", *OPTIONS, "train.py"],
                cwd=self.directory,
                env={
                    **clean,
                    "CHAOS_MARK": str(self.directory),
                    "CHAOS_SLOW": self.random.choice("01"),
                    "TMPDIR": str(self.directory / "tmp"),
                },
                stdout=out,
                stderr=err,
            )
        self.started = time.monotonic()

    def living(self) -> list[Process]:
        mark = f"CHAOS_MARK={self.directory}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                state, parent = (entry / "stat").read_text().rsplit(") ", 1)[1].split()[:2]
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if mark in variables and state not in "ZX":
                environment = dict(w.decode().partition("=")[::2] for w in variables if b"=" in w)
                found.append(Process(int(entry.name), int(parent), environment, command))
        return found

    def cast(self) -> dict[str, list[Process]]:
        """Return the living processes by their part; `launcher` is the one that starts the agents."""
        living = self.living()
        local = {p.pid: p for p in living if "FTSLURM__LOCAL_NODE" in p.environment}
        roles: dict[str, list[Process]] = {"worker": [], "agent": [], "guardian": [], "launcher": [], "top": []}
        for p in living:
            if "sleep(600)" in p.command:
                continue
            if "FTSLURM_RECORD_DIR" in p.environment:
                roles["worker"].append(p)
            elif p.pid == self.process.pid:
                roles["top"].append(p)
            elif "FTSLURM__LOCAL_NODE" not in p.environment:
                roles["launcher"].append(p)
            elif p.parent not in local:
                roles["guardian"].append(p)
            elif local[p.parent].parent not in local:
                roles["agent"].append(p)
            # Else a worker about to be one.
        return roles

    # Blows

    def strike(self) -> None:
        roles = self.cast()
        weights = {"worker": 8, "agent": 5, "guardian": 3, "node": 4, "launcher": 1, "top": 2}
        role = self.random.choices(list(weights), list(weights.values()))[0]
        victims = roles["guardian" if role == "node" else role]
        if not victims:
            return
        victim = self.random.choice(sorted(victims, key=lambda p: p.pid))
        if role == "node":
            self._freeze(victim)
        elif role == "worker":
            self._hit_worker(victim)
        elif role in ("agent", "guardian"):
            self._hit_agent(role, victim)
        else:
            number = self.random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            self.top_signals.append(number)
            if number == signal.SIGKILL:
                self.top_was_killed = True
            elif role == "launcher" and number == signal.SIGINT:
                number = signal.SIGTERM
            self._send(role, victim, number)

    def _hit_worker(self, victim: Process) -> None:
        number = self.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
        if number == signal.SIGSTOP:
            self._pause("worker", [victim], self.random.uniform(0.05, 1.5))
            return
        key = int(victim.environment["FTSLURM_ROUND"]), int(victim.environment["RANK"])
        self.killed_workers.setdefault(key, set()).add(number.name)
        self._send(f"rank {key[1]} of round {key[0]}", victim, number)

    def _hit_agent(self, role: str, victim: Process) -> None:
        number = self.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
        node = self._node(victim)
        self.hit_nodes.add(node)
        if number == signal.SIGSTOP:
            self._pause(f"{role} of {node}", [victim], self.random.uniform(0.05, 2 * NODE_TIMEOUT_S))
        else:
            self._send(f"{role} of {node}", victim, number)

    def _freeze(self, guardian: Process) -> None:
        node = self._node(guardian)
        self.hit_nodes.add(node)
        self.frozen_nodes.add(node)
        everybody = [p for p in self.living() if self._node(p) == node]
        self._pause(f"all of {node}", everybody, self.random.uniform(0.05, 2 * NODE_TIMEOUT_S))

    def _pause(self, target: str, victims: list[Process], seconds: float) -> None:
        self._note(f"SIGSTOP for {seconds:.2f} s to {target}")
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for victim in victims:
                _kill(victim.pid, number)
            if number == signal.SIGSTOP:
                time.sleep(seconds)

    def _send(self, target: str, victim: Process, number: signal.Signals) -> None:
        self._note(f"{number.name} to {target} ({victim.pid})")
        _kill(victim.pid, number)

    def _note(self, text: str) -> None:
        self.blows.append(f"{time.monotonic() - self.started:6.2f} s: {text}")

    @staticmethod
    def _node(process: Process) -> str:
        local = process.environment.get("FTSLURM__LOCAL_NODE", "").partition("/")[0]
        return f"local{local}" if local else process.environment.get("FTSLURM_NODE", "")

    # What came of it

    def end(self) -> int:
        return self.process.wait(END_S)

    @property
    def run_dir(self) -> Path | None:
        runs = list(self.directory.glob("ftslurm-runs/*"))
        return runs[0] if runs else None

    def state(self) -> dict[str, Any] | None:
        """Return the newest state; None when the run was over before there was one."""
        files = sorted(self.run_dir.glob("state/0*.json")) if self.run_dir else []
        if not files:
            return None
        value: dict[str, Any] = json.loads(files[-1].read_text())["value"]
        return value

    def story(self) -> str:
        state = self.state()
        lines = [f"FTSLURM_CHAOS_SEEDS=1 FTSLURM_CHAOS_FIRST={self.seed}", *self.blows]
        lines += [(self.directory / "err").read_text(), (self.directory / "out").read_text()]
        if state:
            lines += [json.dumps(state[key]) for key in ("history", "lost", "closed")]
        lines += [f"{p.pid} {p.parent} {p.command}" for p in self.living()]
        return "\n".join(lines)


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _log(chaos: Chaos) -> list[tuple[float, int, int, int, str]]:
    """Return the workers' marks: time, round, rank, world size, node."""
    path = chaos.directory / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    fields = [line.split() for line in lines]
    return [(float(w[0]), int(w[2]), int(w[3]), int(w[4]), w[5]) for w in fields]


def _check_rounds(chaos: Chaos, state: dict[str, Any]) -> None:
    marks = _log(chaos)
    for entry in state["history"]:
        assert 2 <= len(entry["nodes"]) <= 3, chaos.story()
        assert entry["world_size"] == 2 * len(entry["nodes"]), chaos.story()
    sizes = {entry["round"]: entry["world_size"] for entry in state["history"]}
    assert all(sizes[round_] == world for _, round_, _, world, _ in marks), chaos.story()
    # A node that is frozen for longer than the timeout is rightly replaced; when it wakes up, its workers live on until
    # its agent has read that.
    first: dict[int, float] = {}
    for at, round_, _, _, _ in marks:
        first[round_] = min(first.get(round_, at), at)
    for at, round_, rank, _, node in marks:
        later = [begin for other, begin in first.items() if other > round_]
        if later and at > min(later):
            assert node in chaos.frozen_nodes, f"rank {rank} of round {round_} at {at}\n{chaos.story()}"


def _check_truth(chaos: Chaos, state: dict[str, Any]) -> None:
    for entry in state["history"]:
        failure = entry["failure"]
        if failure is not None:
            done = chaos.killed_workers.get((failure["round"], failure["rank"]), set())
            stopped = bool(chaos.top_signals) and failure["signal"] in ("SIGTERM", "SIGINT")
            assert failure["signal"] in done or stopped, f"{failure}\n{chaos.story()}"
        assert entry["outcome"] != "running" or chaos.top_was_killed, chaos.story()
    for lost in state["lost"]:
        assert lost["node"] in chaos.hit_nodes or chaos.top_signals, f"{lost}\n{chaos.story()}"


def _check_code(chaos: Chaos, code: int, state: dict[str, Any] | None) -> None:
    closed = state["closed"] if state else None
    if closed is None:
        # No process was left to write it down.
        assert (chaos.top_signals or len(chaos.hit_nodes) == 3) and code != 0, f"code {code}\n{chaos.story()}"
    elif chaos.top_was_killed:
        assert code in (closed["exit_code"], -signal.SIGKILL, 128 + signal.SIGKILL), f"code {code}\n{chaos.story()}"
    else:
        # Stopped when the run was over, the launcher ends by that signal in the middle of its report.
        late = {128 + number for number in chaos.top_signals} if closed["outcome"] == "succeeded" else set()
        assert code in {closed["exit_code"], *late}, f"code {code}\n{chaos.story()}"
        assert (closed["exit_code"] == 0) == (closed["outcome"] == "succeeded"), chaos.story()


def _check_report(chaos: Chaos, state: dict[str, Any] | None) -> None:
    if chaos.run_dir is None:
        return
    done = subprocess.run(
        [sys.executable, "-m", "ftslurm.cli", "report", str(chaos.run_dir)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    text = done.stdout + done.stderr
    assert "Traceback" not in text and "Traceback" not in (chaos.directory / "err").read_text(), text + chaos.story()
    closed = state["closed"] if state else None
    if closed:
        assert closed["outcome"] in text.lower(), text + chaos.story()
        last = state["history"][-1] if state and state["history"] else None
        if last and last["failure"] and closed["outcome"] == "failed":
            assert f"rank {last['failure']['rank']}" in text, text + chaos.story()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_whatever_is_killed_the_run_ends_with_a_true_report_and_leaves_nothing(seed: int, tmp_path: Path) -> None:
    chaos = Chaos(seed, tmp_path)
    try:
        for _ in range(chaos.random.randint(1, 5)):
            time.sleep(chaos.random.choice([chaos.random.uniform(0, 0.5), chaos.random.uniform(0, 3)]))
            if chaos.process.poll() is None:
                chaos.strike()
        try:
            code = chaos.end()
        except subprocess.TimeoutExpired:
            pytest.fail(f"it has not ended\n{chaos.story()}")
        if chaos.top_was_killed:
            # No process is left to wait for the rest: it must go by itself.
            end = time.monotonic() + 15
            while chaos.living() and time.monotonic() < end:
                time.sleep(0.05)
        assert chaos.living() == [], chaos.story()
        state = chaos.state()
        _check_code(chaos, code, state)
        _check_report(chaos, state)
        if state:
            _check_rounds(chaos, state)
            _check_truth(chaos, state)
        print(f"seed {seed}: code {code}; {'; '.join(chaos.blows)}")
    finally:
        for process in chaos.living():
            _kill(process.pid, signal.SIGKILL)
        chaos.process.wait()

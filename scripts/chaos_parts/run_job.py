"""One job: submission, faults according to its plan, observation until it ends or is given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join

from chaos_parts.collect import RunState, read_state, run_directory
from chaos_parts.faults import DIRECTORY, NODE
from chaos_parts.history import Injection
from chaos_parts.processes import AGENT, GUARDIAN, Process, left_of_past_rounds, roles
from chaos_parts.schedule import BEFORE, STEP_S, TIME_LIMIT, TRAINING, Plan
from chaos_parts.strikes import Scene, Strikes
from chaos_parts.world import World

COUNT = Path(__file__).with_name("count.py")
TICK_S, OBSERVE_S = 0.1, 1.0
ALONE_S = 45.0
"""Time after which a job that is RUNNING without processes is stuck, in seconds: longer than KillWait, than Slurm
takes to detect that a node is down (SlurmdTimeout), and than its batch script may take for the report."""
END_S = 120.0
"""Time that a job may take after the last fault in addition to its remaining work, in seconds: time-outs of nodes and
of joining."""
SETTLE_S = 25.0
STALE_COUNT = 3
"""Number of consecutive observations of a process of a past round; while a round begins, one may be about to end."""
OVER = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "NODE_FAIL",
    "TIMEOUT",
    "BOOT_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "DEADLINE",
)
JOIN_TIMEOUT_S, HEARTBEAT_TIMEOUT_S, INITIAL_TIMEOUT_S, MAX_RESTARTS = 30, 30, 75, 6


@dataclass(frozen=True)
class Watched:
    """Observations of a job from outside.

    Attributes:
        job: the Slurm job id; empty if it could not be submitted.
        name: its directory's name in the shared directory.
        facts: Slurm's last data on it.
        running, stale: see `chaos_parts.history.History`.
    """

    job: str
    name: str
    begin_ns: int
    end_ns: int
    facts: dict[str, str]
    injections: tuple[Injection, ...]
    stuck: str
    running: tuple[str, ...]
    stale: tuple[str, ...]


@dataclass(frozen=True)
class Sight:
    """One observation of a running job; times in monotonic seconds.

    Attributes:
        state: according to Slurm; empty: no answer.
        deadline: latest end.
        processes: whether it has any.
        agents: whether it has agents.
        closed: whether its run is closed.
        processes_at, agents_at: when there were any last.
    """

    now: float
    state: str
    deadline: float
    processes: bool
    agents: bool
    closed: bool
    processes_at: float
    agents_at: float


def stuck(sight: Sight) -> str:
    """Return why a job will never end; empty: it may."""
    if sight.now > sight.deadline:
        return f"{sight.state} still, {END_S:.0f} s and more after the last fault was over"
    if sight.state != "RUNNING":
        return ""
    if not sight.processes and sight.now - sight.processes_at > ALONE_S:
        return f"RUNNING without a process for {ALONE_S:.0f} s"
    if sight.closed and not sight.agents and sight.now - sight.agents_at > ALONE_S:
        return f"RUNNING, {ALONE_S:.0f} s after its run was closed and its agents were gone"
    return ""


@dataclass
class JobRun:
    """See `run`."""

    world: World
    plan: Plan
    min_nodes: int
    requeue: str
    note: Callable[..., None]
    job: str = ""
    facts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = f"job-{self.plan.number}"
        self.directory = self.world.shared.path / self.name
        self.events = self.world.events / f"{self.name}.jsonl"
        self.strikes = Strikes(self.world, self._scene, self.note)
        self._stale: dict[tuple[int, int], tuple[int, str]] = {}
        self._training = False
        self._restarts = "0"
        self._state: RunState | None = None
        self._parts: dict[str, list[Process]] = {}
        self._quiet_at = self._processes_at = self._agents_at = time.monotonic()

    @property
    def beneath(self) -> Path:
        """The job's directory in the backing directory, which has no faults."""
        return self.world.shared.beneath / self.name

    def run(self) -> Watched:
        """Run the job; return the observations.

        Raises:
            chaos_parts.world.LabError: the lab itself failed.
        """
        begin_ns = time.time_ns()
        self._submit()
        why = self._watch() if self.job else ""
        end_ns = time.time_ns()
        self.strikes.undo_all()
        if why:
            self.note("given up", why=why)
        running = self._settle(bool(why)) if self.job else ()
        stale = tuple(line for times, line in self._stale.values() if times >= STALE_COUNT)
        done = tuple(self.strikes.injections)
        return Watched(self.job, self.name, begin_ns, end_ns, self.facts, done, why, running, stale)

    # The job

    def _submit(self) -> None:
        self.beneath.mkdir()
        (self.beneath / "checkpoints").mkdir()
        plan = self.plan
        ours = [
            *("--nnodes", str(self.min_nodes), "--nproc-per-node", str(plan.per_node)),
            *("--max-restarts", str(MAX_RESTARTS), "--join-timeout", str(JOIN_TIMEOUT_S)),
            *("--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)),
            *("--initial-heartbeat-timeout", str(INITIAL_TIMEOUT_S), "--requeue", self.requeue, *plan.options),
        ]
        program = [
            *(str(COUNT), "--steps", str(plan.steps), "--step-s", str(STEP_S), "--link", plan.link),
            *("--slow-stop-s", str(plan.slow_stop_s), "--events", str(self.events)),
            *(["--polls"] if plan.polls else []),
            *("--checkpoints", str(self.directory / "checkpoints")),
        ]
        (self.beneath / "job.sbatch").write_text(f"#!/bin/bash\nexec ftsrun {join([*ours, *program])}\n")
        command = ["sbatch", "--parsable", f"--nodes={len(self.world.nodes)}", "--ntasks-per-node=1", "--no-kill"]
        command += ["--requeue", "--open-mode=append", "--output=slurm-%j.out", "job.sbatch"]
        self.job = self.world.slurm(*command, cwd=self.directory).strip().partition(";")[0]
        self.note("submitted", job=self.job, name=self.name)
        self._plan(BEFORE)

    def _plan(self, since: str) -> None:
        for blow in self.plan.blows:
            if blow.since == since:
                self.strikes.plan(blow)

    def _watch(self) -> str:
        observe_at = 0.0
        while True:
            self.strikes.act()
            if time.monotonic() >= observe_at:
                observe_at = time.monotonic() + OBSERVE_S
                why = self._observe()
                if why is not None:
                    return why
            time.sleep(TICK_S)

    def _observe(self) -> str | None:
        """Observe the job; return why it is given up, "" if it has ended, None while it runs."""
        self.facts = self.world.job(self.job) or self.facts
        state = self.facts.get("JobState", "")
        if state in OVER:
            return ""
        self._read_processes()
        if state == "PENDING" and self.facts.get("Restarts", "0") != self._restarts:
            self._start_now()
        if not self._training and self.events.exists() and '"counting"' in self.events.read_text():
            self._training = True
            self._plan(TRAINING)
        now = time.monotonic()
        planned_s = self.plan.steps * STEP_S * 2 + END_S
        has_any, agents = any(self._parts.values()), bool(self._parts[AGENT] or self._parts[GUARDIAN])
        self._processes_at = now if has_any or state != "RUNNING" else self._processes_at
        self._agents_at = now if agents or state != "RUNNING" else self._agents_at
        self._quiet_at = now if self.strikes.busy else self._quiet_at
        closed = self._state is not None and self._state.closed is not None
        sight = Sight(
            now, state, self._quiet_at + planned_s, has_any, agents, closed, self._processes_at, self._agents_at
        )
        return stuck(sight) or None

    def _read_processes(self) -> None:
        """Read the job's processes, and its run's state."""
        self._parts = roles(self.world.processes(), self.job)
        self._state = read_state(self.beneath) or self._state
        hurt = self.strikes.hurt | set(self.world.down)
        found = {(one.pid, one.started): one for one in left_of_past_rounds(self._parts) if one.node not in hurt}
        for key in {*found, *self._stale}:
            times, line = self._stale.get(key, (0, ""))
            if times < STALE_COUNT:
                self._stale[key] = (times + 1, found[key].text) if key in found else (0, line)

    def _scene(self) -> Scene:
        """Return the current possible targets."""
        self._read_processes()
        nodes = [node for node in self.world.nodes if node not in self.world.down]
        run = run_directory(self.beneath)
        joined = {path.stem for path in run.glob("nodes/*.json")} if run is not None else set()
        return Scene(self.job, self._parts, nodes, joined >= set(nodes), self._state.round if self._state else 0)

    def _start_now(self) -> None:
        """Start a requeued job at once: restore its nodes and its directory, and skip Slurm's delay."""
        self._restarts = self.facts.get("Restarts", "0")
        self.note("requeued", restarts=self._restarts)
        self.strikes.undo_all(lambda fault: fault.hits == NODE or fault.shared in (DIRECTORY, TIME_LIMIT))
        self.world.slurm("scontrol", "update", f"jobid={self.job}", "starttime=now")

    # Its end

    def _settle(self, given_up: bool) -> tuple[str, ...]:
        """End a job that was given up; return the job's processes that are left after `SETTLE_S`."""
        found = self._left()
        if given_up:
            for line in found:
                self.note("was there", process=line)
            self.world.slurm("scancel", self.job)
        deadline = time.monotonic() + SETTLE_S
        while found and time.monotonic() < deadline:
            time.sleep(0.5)
            found = self._left()
        return tuple(found)

    def _left(self) -> list[str]:
        mine = f"[{self.job}."
        return [
            one.text
            for one in self.world.processes()
            if one.state not in "ZX" and (one.job == self.job or (one.name == "slurmstepd" and mine in one.command))
        ]

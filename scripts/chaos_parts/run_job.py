"""One job: submitted, hit by what its plan says, watched until it is over or given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join

from chaos_parts.collect import RunState, read_state, run_directory
from chaos_parts.faults import AGENT, DIRECTORY, GUARDIAN, NODE
from chaos_parts.history import Injection
from chaos_parts.processes import Process, left_of_past_rounds, roles
from chaos_parts.schedule import BEFORE, STEP_S, TRAINING, Plan
from chaos_parts.strikes import Scene, Strikes
from chaos_parts.world import World

COUNT = Path(__file__).with_name("count.py")
TICK_S, LOOK_S = 0.1, 1.0
ALONE_S = 45.0
"""A job that is RUNNING without what keeps it alive is stuck after this: longer than KillWait, than Slurm takes to
notice that a node is down (SlurmdTimeout), and than its batch script may take for the report."""
END_S = 120.0
"""Beside the work that is left, so long a job may take after the last fault: time-outs of nodes and of joining."""
SETTLE_S = 25.0
STALE_LOOKS = 3
"""Looks in a row at which a process of a past round must be there; while a round begins, one may be on its way out."""
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
    """What was seen of a job from outside.

    Attributes:
        job: Slurm's number of it; empty when it could not be submitted.
        name: its directory's name in the shared directory.
        facts: what Slurm said of it last.
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
    """What a look at a running job shows; times in monotonic seconds.

    Attributes:
        state: as Slurm says; empty: it did not answer.
        deadline: when it should be over.
        processes: whether it has any.
        agents: whether agents are among them.
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
    """Return why a job will not end any more; empty: it may."""
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
        """The job's directory, beneath what may fail."""
        return self.world.shared.beneath / self.name

    def run(self) -> Watched:
        """Do it all; return what was seen.

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
        stale = tuple(line for looks, line in self._stale.values() if looks >= STALE_LOOKS)
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
            *("--initial-heartbeat-timeout", str(INITIAL_TIMEOUT_S), *plan.options),
        ]
        program = [
            *(str(COUNT), "--steps", str(plan.steps), "--step-s", str(STEP_S), "--link", plan.link),
            *("--slow-stop-s", str(plan.slow_stop_s), "--events", str(self.events)),
            *("--checkpoints", str(self.directory / "checkpoints")),
        ]
        (self.beneath / "job.sbatch").write_text(f"#!/bin/bash\nexec ftsrun {join([*ours, *program])}\n")
        words = ["sbatch", "--parsable", f"--nodes={len(self.world.nodes)}", "--ntasks-per-node=1", "--no-kill"]
        words += ["--requeue", "--open-mode=append", "--output=slurm-%j.out", "job.sbatch"]
        self.job = self.world.slurm(*words, cwd=self.directory).strip().partition(";")[0]
        self.note("submitted", job=self.job, name=self.name)
        self._plan(BEFORE)

    def _plan(self, since: str) -> None:
        for blow in self.plan.blows:
            if blow.since == since:
                self.strikes.plan(blow)

    def _watch(self) -> str:
        look_at = 0.0
        while True:
            self.strikes.act()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_S
                why = self._look()
                if why is not None:
                    return why
            time.sleep(TICK_S)

    def _look(self) -> str | None:
        """Look at the job; return why it is given up, "" when it is over, None while it goes on."""
        self.facts = self.world.job(self.job) or self.facts
        state = self.facts.get("JobState", "")
        if state in OVER:
            return ""
        self._see()
        if state == "PENDING" and self.facts.get("Restarts", "0") != self._restarts:
            self._hurry()
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

    def _see(self) -> None:
        """See the job's processes, and what its run's state says."""
        self._parts = roles(self.world.processes(), self.job)
        self._state = read_state(self.beneath) or self._state
        hurt = self.strikes.hurt | set(self.world.down)
        seen = {(one.pid, one.started): one for one in left_of_past_rounds(self._parts) if one.node not in hurt}
        for key in {*seen, *self._stale}:
            looks, line = self._stale.get(key, (0, ""))
            if looks < STALE_LOOKS:
                self._stale[key] = (looks + 1, seen[key].text) if key in seen else (0, line)

    def _scene(self) -> Scene:
        """Return what there is to hit now."""
        self._see()
        nodes = [node for node in self.world.nodes if node not in self.world.down]
        run = run_directory(self.beneath)
        joined = {path.stem for path in run.glob("nodes/*.json")} if run is not None else set()
        return Scene(self.job, self._parts, nodes, joined >= set(nodes), self._state.round if self._state else 0)

    def _hurry(self) -> None:
        """Have a requeued job start as soon as it can: it needs all nodes and its directory, and Slurm would wait."""
        self._restarts = self.facts.get("Restarts", "0")
        self.note("requeued", restarts=self._restarts)
        self.strikes.undo_all(lambda fault: fault.hits == NODE or fault.shared == DIRECTORY)
        self.world.slurm("scontrol", "update", f"jobid={self.job}", "starttime=now")

    # Its end

    def _settle(self, given_up: bool) -> tuple[str, ...]:
        """End a job that was given up; return the processes that are left of the job, once they had time to go."""
        seen = self._left()
        if given_up:
            for line in seen:
                self.note("was there", process=line)
            self.world.slurm("scancel", self.job)
        deadline = time.monotonic() + SETTLE_S
        while seen and time.monotonic() < deadline:
            time.sleep(0.5)
            seen = self._left()
        return tuple(seen)

    def _left(self) -> list[str]:
        mine = f"[{self.job}."
        return [
            one.text
            for one in self.world.processes()
            if one.state not in "ZX" and (one.job == self.job or (one.name == "slurmstepd" and mine in one.command))
        ]

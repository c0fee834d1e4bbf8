"""One job: submitted, hit by what its plan says, watched until it is over or given up."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from shlex import join
from typing import TypeVar

from chaos_parts.collect import RunState, read_state, run_directory
from chaos_parts.faults import (
    AGENT,
    BY_NAME,
    DIRECTORY,
    GUARDIAN,
    GUARDIAN_AND_AGENT,
    NODE,
    NOWHERE,
    RANK,
    Fault,
    Target,
)
from chaos_parts.history import Injection
from chaos_parts.processes import Process, left_of_past_rounds, roles
from chaos_parts.schedule import BEFORE, STEP_S, TRAINING, Blow, Plan
from chaos_parts.world import World

T = TypeVar("T")
COUNT = Path(__file__).with_name("count.py")
TICK_S, LOOK_S = 0.1, 1.0
TARGET_S = 15.0
"""So long a fault waits for something that it can hit."""
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
class _Active:
    """A fault that goes on."""

    index: int
    fault: Fault
    undo: Callable[[], None]


@dataclass
class JobRun:
    """See `run`."""

    world: World
    plan: Plan
    min_nodes: int
    note: Callable[..., None]
    job: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    injections: list[Injection] = field(default_factory=list)
    stale: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = f"job-{self.plan.number}"
        self.directory = self.world.shared.path / self.name
        self.events = self.world.events / f"{self.name}.jsonl"
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._active: list[_Active] = []
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
        self._undo_all()
        if why:
            self.note("given up", why=why)
        running = self._settle(bool(why)) if self.job else ()
        lasting = tuple(line for line, looks in self.stale.items() if looks >= STALE_LOOKS)
        return Watched(self.job, self.name, begin_ns, end_ns, self.facts, tuple(self.injections), why, running, lasting)

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
                self._at(blow.at_s, partial(self._strike, blow, TARGET_S))

    def _at(self, after_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + after_s, next(self._order), act))

    def _watch(self) -> str:
        look_at = 0.0
        while True:
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
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
        busy = bool(self._active or self._due)
        self._quiet_at = now if busy else self._quiet_at
        closed = self._state is not None and self._state.closed is not None
        sight = Sight(
            now, state, self._quiet_at + planned_s, has_any, agents, closed, self._processes_at, self._agents_at
        )
        return stuck(sight) or None

    def _see(self) -> None:
        """See the job's processes, and what its run's state says."""
        self._parts = roles(self.world.processes(), self.job)
        self._state = read_state(self.beneath) or self._state
        hurt = {self.injections[active.index].node for active in self._active} | set(self.world.down)
        seen = {one.text for one in left_of_past_rounds(self._parts) if one.node not in hurt}
        for line in seen | set(self.stale):
            if self.stale.get(line, 0) < STALE_LOOKS:
                self.stale[line] = self.stale.get(line, 0) + 1 if line in seen else 0

    def _hurry(self) -> None:
        """Have a requeued job start as soon as it can: it needs all nodes and its directory, and Slurm would wait."""
        self._restarts = self.facts.get("Restarts", "0")
        self.note("requeued", restarts=self._restarts)
        self._undo_all(lambda fault: fault.hits == NODE or fault.shared == DIRECTORY)
        self.world.slurm("scontrol", "update", f"jobid={self.job}", "starttime=now")

    # Its faults

    def _strike(self, blow: Blow, patience_s: float) -> None:
        fault = BY_NAME[blow.fault]
        going_on = {active.fault.shared for active in self._active}
        if fault.shared and fault.shared in going_on:
            self.note("skipped", fault=fault.name, why=f"another fault of {fault.shared} goes on")
            return
        self._see()
        target = self._target(fault, blow.choice)
        if target is None:
            if patience_s > 0:
                self._at(0.3, partial(self._strike, blow, patience_s - 0.3))
            else:
                self.note("skipped", fault=fault.name, why="there was nothing to hit")
            return
        main = target.processes[0] if target.processes else None
        rank = main.rank if main is not None and fault.hits == RANK else None
        number = main.round if main is not None and main.round else self._state.round if self._state else 0
        begin_ns = time.time_ns()
        undo = fault.inject(self.world, target)
        injection = Injection(fault.name, begin_ns, None, target.node, rank, number)
        self.injections.append(injection)
        self.note("injected", fault=fault.name, node=target.node, rank=rank, round=number, last_s=blow.last_s)
        if undo is not None:
            active = _Active(len(self.injections) - 1, fault, undo)
            self._active.append(active)
            self._at(blow.last_s, partial(self._undo, active))

    def _target(self, fault: Fault, choice: float) -> Target | None:
        if fault.shared == DIRECTORY and not self._has_begun():
            # A job that finds its directory failing is refused, and rightly so.
            return None
        if fault.hits == NOWHERE:
            return Target(self.job)
        if fault.hits == NODE:
            nodes = [node for node in self.world.nodes if node not in self.world.down]
            return Target(self.job, _choose(nodes, choice)) if nodes else None
        part = GUARDIAN if fault.hits == GUARDIAN_AND_AGENT else fault.hits
        candidates = [one for one in self._parts[part] if one.node not in self.world.down]
        if part == RANK:
            newest = max((one.round for one in candidates), default=0)
            candidates = [one for one in candidates if one.round == newest]
        if not candidates:
            return None
        main = _choose(candidates, choice)
        if fault.hits != GUARDIAN_AND_AGENT:
            return Target(self.job, main.node, (main,))
        return Target(self.job, main.node, (main, *(one for one in self._parts[AGENT] if one.node == main.node)))

    def _has_begun(self) -> bool:
        """Tell whether all living nodes have published their records."""
        run = run_directory(self.beneath)
        joined = {path.stem for path in run.glob("nodes/*.json")} if run is not None else set()
        return set(self.world.nodes) - set(self.world.down) <= joined

    def _undo(self, active: _Active) -> None:
        if active in self._active:
            self._active.remove(active)
            active.undo()
            self.injections[active.index] = replace(self.injections[active.index], end_ns=time.time_ns())
            self.note("undone", fault=active.fault.name, node=self.injections[active.index].node)

    def _undo_all(self, these: Callable[[Fault], bool] = lambda fault: True) -> None:
        for active in list(self._active):
            if these(active.fault):
                self._undo(active)

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


def _choose(candidates: Sequence[T], choice: float) -> T:
    return candidates[min(int(choice * len(candidates)), len(candidates) - 1)]

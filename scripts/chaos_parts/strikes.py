"""The faults of one job: each is injected into a possible target at its time, and removed after its duration."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TypeVar

from chaos_parts.faults import BY_NAME, DIRECTORY, GUARDIAN_AND_AGENT, NODE, NOWHERE, Fault, Target
from chaos_parts.history import Injection
from chaos_parts.processes import AGENT, GUARDIAN, RANK, Process
from chaos_parts.schedule import Blow
from chaos_parts.world import World

T = TypeVar("T")
TARGET_S, RETRY_S = 15.0, 0.3
"""Time that a fault waits for a target, and interval of its attempts, in seconds."""


@dataclass(frozen=True)
class Scene:
    """Possible targets.

    Attributes:
        job: the Slurm job id.
        parts: its processes, by role.
        nodes: the live and reachable nodes.
        begun: all of these nodes have published their records.
        round: the newest round, 0 before the first.
    """

    job: str
    parts: Mapping[str, Sequence[Process]]
    nodes: Sequence[str]
    begun: bool
    round: int


def target_of(fault: Fault, choice: float, scene: Scene) -> Target | None:
    """Return the target of a fault, None while there is none.

    Args:
        choice: from 0 to 1, selects one of the possible targets.
    """
    if fault.shared == DIRECTORY and not scene.begun:
        # A job whose directory fails at its start is refused, as intended.
        return None
    if fault.hits == NOWHERE:
        return Target(scene.job)
    if fault.hits == NODE:
        return Target(scene.job, _choose(scene.nodes, choice)) if scene.nodes else None
    part = GUARDIAN if fault.hits == GUARDIAN_AND_AGENT else fault.hits
    candidates = [one for one in scene.parts[part] if one.node in scene.nodes]
    if part == RANK:
        newest = max((one.round for one in candidates), default=0)
        candidates = [one for one in candidates if one.round == newest]
    if not candidates:
        return None
    main = _choose(candidates, choice)
    agents = [one for one in scene.parts[AGENT] if one.node == main.node and fault.hits == GUARDIAN_AND_AGENT]
    return Target(scene.job, main.node, (main, *agents))


def _choose(candidates: Sequence[T], choice: float) -> T:
    return candidates[min(int(choice * len(candidates)), len(candidates) - 1)]


@dataclass(frozen=True)
class _Active:
    """An active fault."""

    index: int
    fault: Fault
    undo: Callable[[], None]


class Strikes:
    """Injects and removes the faults of a job.

    Args:
        world: the lab.
        scene: returns the current possible targets.
        note: logs actions.

    Attributes:
        injections: the faults injected so far.
    """

    def __init__(self, world: World, scene: Callable[[], Scene], note: Callable[..., None]) -> None:
        self._world, self._scene, self._note = world, scene, note
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._active: list[_Active] = []
        self.injections: list[Injection] = []

    @property
    def busy(self) -> bool:
        """Whether a fault is active or planned."""
        return bool(self._active or self._due)

    @property
    def hurt(self) -> set[str | None]:
        """The nodes with an active fault."""
        return {self.injections[active.index].node for active in self._active}

    def plan(self, blow: Blow) -> None:
        """Schedule a fault; its time counts from now."""
        self._at(blow.at_s, partial(self._strike, blow, TARGET_S))

    def act(self) -> None:
        """Inject and remove the faults that are due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def undo_all(self, these: Callable[[Fault], bool] = lambda fault: True) -> None:
        """Remove active faults now; `these` selects them."""
        for active in list(self._active):
            if these(active.fault):
                self._undo(active)

    def _at(self, after_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + after_s, next(self._order), act))

    def _strike(self, blow: Blow, patience_s: float) -> None:
        fault = BY_NAME[blow.fault]
        if fault.shared and fault.shared in {active.fault.shared for active in self._active}:
            self._note("skipped", fault=fault.name, why=f"another fault of {fault.shared} goes on")
            return
        scene = self._scene()
        target = target_of(fault, blow.choice, scene)
        if target is not None:
            self._inject(fault, target, scene, blow.last_s)
        elif patience_s > 0:
            self._at(RETRY_S, partial(self._strike, blow, patience_s - RETRY_S))
        else:
            self._note("skipped", fault=fault.name, why="no target")

    def _inject(self, fault: Fault, target: Target, scene: Scene, last_s: float) -> None:
        main = target.processes[0] if target.processes else None
        rank = main.rank if main is not None and fault.hits == RANK else None
        number = main.round if main is not None and main.round else scene.round
        begin_ns = time.time_ns()
        undo = fault.inject(self._world, target)
        self.injections.append(Injection(fault.name, begin_ns, None, target.node, rank, number))
        self._note("injected", fault=fault.name, node=target.node, rank=rank, round=number, last_s=last_s)
        if undo is not None:
            active = _Active(len(self.injections) - 1, fault, undo)
            self._active.append(active)
            self._at(last_s, partial(self._undo, active))

    def _undo(self, active: _Active) -> None:
        if active in self._active:
            self._active.remove(active)
            active.undo()
            done = self.injections[active.index] = replace(self.injections[active.index], end_ns=time.time_ns())
            self._note("undone", fault=done.kind, node=done.node)

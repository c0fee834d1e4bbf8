"""The effects of an agent's loop on standby workers: start them if there is room, collect their ends, drop them.

Imported by agents with `--warm-imports` only, see `ftslurm.agent.components.preload_standby`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ftslurm.agent.actions import StandbyEnded
from ftslurm.agent.containment import STANDBY, Containment
from ftslurm.agent.host_resources import available_memory
from ftslurm.agent.option_groups import AUTO
from ftslurm.agent.output import Console
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.standby import StandbyEvents, Standbys
from ftslurm.agent.waiting import Waiting
from ftslurm.agent.workers import Workers
from ftslurm.standby_imports import PRIVATE_LIMIT, read_list
from ftslurm.text import size

SHARE = 1 / 8
"""Of a node's CPU time that all its standby workers may take for their imports beside ranks."""
LEAST_SHARE = 1 / 4
"""Of one CPU's time, on a node with few CPUs."""


class StandbyEffects:
    """The standby workers of one agent process.

    Args:
        settings: see `AgentSettings`.
        slots: number of workers of this node.
        workers: take the standby workers over when a round needs them.
        waiting: the sources of events.
        console: of the agent.
        containment: of the components.
        monotonic: clock, seconds.
    """

    def __init__(
        self,
        settings: AgentSettings,
        slots: int,
        workers: Workers,
        waiting: Waiting,
        console: Console,
        containment: Containment,
        monotonic: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._workers = workers
        self._waiting = waiting
        self._console = console
        self._containment = containment
        self._monotonic = monotonic
        self._has_logged = False
        self._refused = False

    def start(self, local_ranks: tuple[int, ...]) -> list[StandbyEnded]:
        """Start standby workers for these local ranks, if that is worth it and there is room.

        Returns:
            The ends of those that could not be started, or not yet.
        """
        beside_ranks = any(worker.ended_ns is None for worker in self._workers.all)
        imports_torch = self._imports_torch()
        if imports_torch is None and beside_ranks:
            return [StandbyEnded(local_rank, by_itself=False) for local_rank in local_ranks]
        if not imports_torch or self._refused or not self._has_room():
            return []
        share = cpu_share(len(os.sched_getaffinity(0)), self._slots) if beside_ranks else 1.0
        standbys = self._workers.standbys
        if standbys is None:
            facts = (self._settings, self._slots, self._workers.collect, self._monotonic)
            standbys = self._workers.standbys = self._containment.hold(
                STANDBY,
                Standbys,
                *facts,
                answers={"all": (), "poll": StandbyEvents},
                passes=(OSError,),
                close="drop_all",
            )
            self._waiting.listen(standbys.fd, STANDBY)
        failed: list[StandbyEnded] = []
        for local_rank in local_ranks:
            try:
                standbys.start(local_rank, share)
            except OSError as error:
                self._console.warn(f"a standby worker cannot be started: {error.strerror or error}")
                failed.append(StandbyEnded(local_rank))
        return failed

    def events(self) -> Iterator[StandbyEnded]:
        """Log what they report, and yield the ends of those that have ended."""
        assert self._workers.standbys is not None
        event = self._workers.standbys.poll()
        self._refused = self._refused or event.refused
        for line in event.lines:
            # What `auto` finds, it finds on all nodes.
            if self._settings.warm_imports != AUTO or any(worker.rank == 0 for worker in self._workers.all):
                self._console.log(line)
        for local_rank in event.ended:
            yield StandbyEnded(local_rank, local_rank not in event.unusable)

    def drop(self) -> None:
        """End them all."""
        if self._workers.standbys is not None:
            self._workers.standbys.drop_all()

    def _imports_torch(self) -> bool | None:
        """Whether the script does, or the user has named modules; None: it is not known yet."""
        if self._settings.warm_imports != AUTO:
            return True
        try:
            return "torch" in read_list(self._settings.imports_list)[0]
        except OSError:
            return None

    def _has_room(self) -> bool:
        memory = available_memory()
        if memory is None or has_room(*memory, self._slots):
            return True
        least = needed_bytes(memory[1], self._slots)
        line = f"no standby workers: {size(memory[0])} of memory are available, expected {size(least)}"
        if not self._has_logged:
            self._console.log(line)
        self._has_logged = True
        return False


def cpu_share(cpus: int, slots: int) -> float:
    """Return the share of one CPU's time for the imports of each of a node's standby workers (pure)."""
    return min(1.0, max(LEAST_SHARE, SHARE * cpus) / slots)


def needed_bytes(total: int, slots: int) -> int:
    """Return how much memory must be available for standby workers in all slots (pure)."""
    return slots * PRIVATE_LIMIT + total // 10


def has_room(available: int, total: int, slots: int) -> bool:
    """Return whether standby workers in all slots leave a tenth of the memory (pure)."""
    return available >= needed_bytes(total, slots)

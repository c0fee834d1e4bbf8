"""The effects of an agent's loop on a spare's standby workers: start them, collect their ends, drop them.

Imported by agents with `--spare-imports` only, see `ftslurm.agent.components.preload_standby`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ftslurm.agent.actions import StandbyEnded
from ftslurm.agent.containment import STANDBY, Containment
from ftslurm.agent.output import Console
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.standby import StandbyEvents, Standbys
from ftslurm.agent.waiting import Waiting
from ftslurm.agent.workers import Workers


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

    def start(self, local_ranks: tuple[int, ...]) -> list[int]:
        """Start standby workers for these local ranks; return those that could not be started."""
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
        failed = []
        for local_rank in local_ranks:
            try:
                standbys.start(local_rank)
            except OSError as error:
                self._console.log(f"spare: a standby worker cannot be started: {error.strerror or error}")
                failed.append(local_rank)
        return failed

    def events(self) -> Iterator[StandbyEnded]:
        """Log what they report, and yield the ends of those that have ended."""
        assert self._workers.standbys is not None
        event = self._workers.standbys.poll()
        for line in event.lines:
            self._console.log(line)
        for local_rank in event.ended:
            yield StandbyEnded(local_rank)

    def drop(self) -> None:
        """End them all."""
        if self._workers.standbys is not None:
            self._workers.standbys.drop_all()

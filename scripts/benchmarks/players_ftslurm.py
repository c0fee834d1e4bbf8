"""ftslurm's members: `Member` under the agent's own courier, each with the smallest agent that obeys the state."""

from __future__ import annotations

import getpass
import os
import selectors
import threading
import time
from dataclasses import replace
from typing import Any

from benchmarks.players import Worlds
from ftslurm import __version__
from ftslurm.agent.courier import CourierThread, Evicted
from ftslurm.agent.doorbell import Doorbell
from ftslurm.records.node import first_record
from ftslurm.records.state import FAILED, FORMING, READY, RUNNING, SUCCEEDED
from ftslurm.rendezvous.member import Member, View
from ftslurm.rendezvous.observation import RunSpec, Timing
from ftslurm.rendezvous.pace import Pace
from ftslurm.sharedfs.filesystem import DEFAULT_READ_LIMIT, PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory, open_run

ATTEMPT = "1.0"
RESTARTS = 1 << 20
FINISH_S = 10.0


class CountingFileSystem:
    """The real filesystem, with each call and byte counted; one thread uses it."""

    overlaps = False

    def __init__(self) -> None:
        self._fs = PosixFileSystem(owner=os.geteuid())
        self.calls = self.sets = self.bytes_read = self.bytes_written = 0

    def create(self, path: str, data: bytes, durable: bool) -> None:
        """See `FileSystem`, as for all that follow."""
        self.bytes_written += len(data)
        self._count(writes=True)
        self._fs.create(path, data, durable)

    def link(self, source: str, target: str) -> None:
        """Count and pass on."""
        self._count(writes=True)
        self._fs.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Count and pass on."""
        self._count(writes=True)
        self._fs.rename(source, target)

    def unlink(self, path: str) -> None:
        """Count and pass on."""
        self._count(writes=True)
        self._fs.unlink(path)

    def read(self, path: str, limit: int = DEFAULT_READ_LIMIT) -> bytes:
        """Count and pass on."""
        self._count()
        data = self._fs.read(path, limit)
        self.bytes_read += len(data)
        return data

    def listdir(self, path: str) -> list[str]:
        """Count and pass on."""
        self._count()
        return self._fs.listdir(path)

    def refresh(self, path: str) -> None:
        """Count and pass on."""
        self._count()
        self._fs.refresh(path)

    def check_own(self, path: str) -> None:
        self._count()
        self._fs.check_own(path)

    def makedirs(self, path: str) -> None:
        """Count and pass on."""
        self._count(writes=True)
        self._fs.makedirs(path)

    def _count(self, writes: bool = False) -> None:
        self.calls += 1
        self.sets += writes


class Agent:
    """One member, its courier, and what the agent's loop would publish."""

    def __init__(self, number: int, names: tuple[str, ...], run: RunDirectory, worlds: Worlds) -> None:
        self.number = number
        self.fs = CountingFileSystem()
        self.coordinating = False
        self.lost: str | None = None
        self._worlds = worlds
        self._record = first_record(names[number], f"incarnation-{number:04d}", ATTEMPT, number, 1)
        self._record = replace(self._record, address="127.0.0.1", port=29400)
        shape = RunSpec(os.path.basename(run.root), ATTEMPT, names, len(names), len(names), RESTARTS)
        timing = Timing(node_timeout_s=8.0, join_timeout_s=600.0, last_call_s=30.0)
        self.bell = Doorbell(self._record.address, self._record.incarnation)
        self._record = replace(self._record, doorbell_port=self.bell.port)
        ring = self.bell.ring
        member = Member(
            self.fs, run, shape, self._record, timing, Pace(), time.monotonic, time.time_ns, wake_agents=ring
        )
        self.courier = CourierThread(member, time.monotonic)

    def handle_events(self) -> None:
        """Do what the courier's events ask for."""
        os.read(self.courier.wake_r, 1 << 16)
        while self.courier.events:
            event = self.courier.events.popleft()
            if isinstance(event, View):
                self._obey(event)
            elif isinstance(event, Evicted):
                raise SystemExit(f"member {self.number} is out: {event.reason}")

    def answer_doorbell(self) -> None:
        """Look at once when another agent reports news."""
        if self.bell.answer():
            self.courier.wake()

    def _obey(self, view: View) -> None:
        state = view.state
        assert state is not None
        self.coordinating = view.coordinating
        part = state.participant(self._record.node, self._record.incarnation)
        if state.phase == RUNNING and part is not None and self._record.round < state.round:
            self._worlds.had(self.number, state.round, part.group_rank, len(state.participants))
            self._publish(status=RUNNING, round=state.round)
        elif state.phase == FORMING and self._record.status in (RUNNING, FAILED, SUCCEEDED):
            self._publish(status=READY)

    def again(self) -> None:
        """Ask for the next round, as an agent whose workers must start anew."""
        self._publish(status=READY)

    def _publish(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        self.courier.publish(self._record)


class FtslurmMembers:
    """The members of one process; one thread is the agents' loop for all of them."""

    def __init__(self, members: list[int], size: int, root: str) -> None:
        self.worlds = Worlds(members)
        run = open_run(root, getpass.getuser(), time.time_ns(), __version__)
        names = tuple(f"n{number:04d}" for number in range(size))
        self._agents = {number: Agent(number, names, run, self.worlds) for number in members}
        self._over = threading.Event()
        self._loop = threading.Thread(target=self._work, daemon=True)

    def facts(self) -> dict[str, Any]:
        """The run directory is all that the others need to know."""
        return {}

    def go(self) -> None:
        """Start all couriers."""
        self._loop.start()
        for agent in self._agents.values():
            agent.courier.start()

    def again(self, member: int) -> None:
        """Let this member ask for the next round."""
        self._agents[member].again()

    def costs(self) -> dict[int, tuple[tuple[int, int, int, int], bool]]:
        """See `Members`."""
        return {
            number: ((fs.calls, fs.sets, fs.bytes_read, fs.bytes_written), agent.coordinating)
            for number, agent in self._agents.items()
            for fs in [agent.fs]
        }

    def dismiss(self) -> None:
        """Let all couriers end."""
        self._over.set()
        self._loop.join()
        for agent in self._agents.values():
            agent.courier.finish(0.0)
        for agent in self._agents.values():
            agent.courier.finish(FINISH_S)
            os.close(agent.courier.wake_r)

    def _work(self) -> None:
        with selectors.DefaultSelector() as selector:
            for agent in self._agents.values():
                selector.register(agent.courier.wake_r, selectors.EVENT_READ, agent.handle_events)
                selector.register(agent.bell, selectors.EVENT_READ, agent.answer_doorbell)
            while not self._over.is_set():
                for key, _ in selector.select(0.1):
                    key.data()


def assemble(size: int, members: list[int], root: str) -> FtslurmMembers:
    """Make the members of one process."""
    return FtslurmMembers(members, size, root)

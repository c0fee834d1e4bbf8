"""A spare's standby workers: started ahead, they import what was named and wait until a round needs them.

They are no workers yet: not watched, not signalled, not in the records. Nothing that goes wrong with one of them is a
failure of the job; a worker that cannot be made of one is started as always.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent.environment import standby_environment, worker_command
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.workers import Launch, spawn
from ftslurm.dataclasses import dataclass, field
from ftslurm.kernel import pidfd_send_signal, signal_name

CHUNK = 1 << 16
ORDER_BYTES = 1 << 20
"""Asked for as room in the socket: an order that does not fit is not given, for nobody here may wait."""


@dataclass
class Standby:
    """A process that may become the worker of that local rank; `status` is set when it has been collected."""

    local_rank: int
    pid: int
    pidfd: int
    channel: socket.socket
    command: Sequence[str]
    environment: Mapping[str, str]
    started_s: float
    heard: bytes = b""
    ready: bool = False
    deaf: bool = False
    status: int | None = None


@dataclass
class StandbyEvents:
    """What there is to be told: lines for the user, and the local ranks whose standby has ended."""

    lines: list[str] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)


class Standbys:
    """The standby workers of this node.

    Args:
        settings: the agent's; `spare_imports` are the modules.
        slots: workers on this node.
        collect: collects ended children, and sets the `status` of those in `all`.
        monotonic: clock, seconds.

    Attributes:
        fd: becomes readable when `look` has something to do.
        all: those that wait, or prepare to.
    """

    def __init__(
        self, settings: AgentSettings, slots: int, collect: Callable[[], None], monotonic: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._collect = collect
        self._monotonic = monotonic
        self._poll = select.epoll()
        self._told: set[str] = set()
        self.fd = self._poll.fileno()
        self.all: list[Standby] = []

    def start(self, local_rank: int) -> None:
        """Start one; `OSError` when it cannot be. From the main thread, as `Workers.start`."""
        settings = self._settings
        environment = standby_environment(settings.inherited, settings.facts, self._slots, local_rank)
        command = worker_command(settings.program, os.getpid(), None, None, settings.spare_imports)
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_BYTES)
            pid, pidfd = spawn(command, environment, (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.all.append(Standby(local_rank, pid, pidfd, ours, command, environment, self._monotonic()))
        self._poll.register(pidfd, select.EPOLLIN)
        self._poll.register(ours, select.EPOLLIN)

    def look(self) -> StandbyEvents:
        """Take what they have to say, and note which have ended."""
        news = StandbyEvents()
        for standby in list(self.all):
            before = standby.ready
            self._hear(standby, news)
            if standby.ready and not before and all(one.ready for one in self.all):
                seconds = self._monotonic() - min(one.started_s for one in self.all)
                news.lines.append(
                    f"spare: its standby workers are ready ({len(self.all)}, after {seconds:.1f} s of imports)"
                )
            if _is_readable(standby.pidfd):
                self._collect()
                self._tell(news, f"spare: a standby worker {_how(standby)}")
                news.ended.append(standby.local_rank)
                self._forget(standby)
        return news

    def take(self, launch: Launch) -> tuple[int, int] | None:
        """Make the standby of that local rank the worker.

        Returns:
            Its pid and pidfd, which are the caller's from now on; None when there is none that is ready and fits.
        """
        standby = next((one for one in self.all if one.local_rank == launch.local_rank), None)
        if standby is None:
            return None
        usable = standby.ready and not _is_readable(standby.pidfd) and _fits(standby, launch)
        if not usable or not _order(standby, launch):
            self._drop(standby)
            return None
        self._poll.unregister(standby.pidfd)
        self._close(standby)
        return standby.pid, standby.pidfd

    def drop_all(self) -> None:
        """Kill them; SIGCHLD says when they can be collected."""
        for standby in list(self.all):
            self._drop(standby)

    def _hear(self, standby: Standby, news: StandbyEvents) -> None:
        try:
            data = standby.channel.recv(CHUNK)
        except OSError:
            data = None
        if data == b"" and not standby.deaf:
            # It has ended, as its pidfd will say, or a module has closed all descriptors: nothing to wake up for.
            standby.deaf = True
            self._poll.unregister(standby.channel)
        standby.heard += data or b""
        *lines, standby.heard = standby.heard.split(b"\n")
        for line in lines:
            kind, _, text = line.decode("utf-8", "replace").partition(" ")
            if kind == "ready":
                standby.ready = True
            else:
                self._tell(news, f"spare: standby workers go on without a module: {text}")

    def _tell(self, news: StandbyEvents, line: str) -> None:
        # All slots say the same.
        if line not in self._told:
            self._told.add(line)
            news.lines.append(line)

    def _drop(self, standby: Standby) -> None:
        try:
            pidfd_send_signal(standby.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._forget(standby)

    def _forget(self, standby: Standby) -> None:
        self._poll.unregister(standby.pidfd)
        os.close(standby.pidfd)
        self._close(standby)

    def _close(self, standby: Standby) -> None:
        if not standby.deaf:
            self._poll.unregister(standby.channel)
        standby.channel.close()
        self.all.remove(standby)


def _fits(standby: Standby, launch: Launch) -> bool:
    """Tell whether interpreter and parent are the same, and nothing that the imports may have gone by has changed."""
    end = standby.command.index("--standby")
    same = list(standby.command[:end]) == list(launch.command[:end])
    return same and standby.environment.items() <= launch.environment.items()


def _order(standby: Standby, launch: Launch) -> bool:
    """Send the order, see `ftslurm.boot.standby`; False when it cannot be sent as a whole at once."""
    words = launch.command[launch.command.index("--parent") :]
    variables = (f"{name}={value}" for name, value in launch.environment.items())
    data = os.fsencode("\0".join((str(len(words)), *words, *variables)))
    data = b"%d\n%b" % (len(data), data)
    try:
        return standby.channel.send(data) == len(data)
    except OSError:
        return False


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _how(standby: Standby) -> str:
    if standby.status is None:
        return "has ended"
    if os.WIFSIGNALED(standby.status):
        return f"was killed by {signal_name(os.WTERMSIG(standby.status))}"
    return f"ended with code {os.WEXITSTATUS(standby.status)}"

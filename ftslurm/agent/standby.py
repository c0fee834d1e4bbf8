"""A node's standby workers: started while a round runs, they import modules and wait until the next one needs them.

They are not workers yet: not watched, not signalled, not in the records. No error of a standby worker is a failure of
the job; if one cannot be used, the worker is started as usual.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent.environment import standby_environment, worker_command
from ftslurm.agent.option_groups import AUTO
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.torchrun_options import substituted
from ftslurm.agent.worker_launch import WorkerLaunch, spawn
from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.kernel import pidfd_send_signal, signal_name
from ftslurm.text import duration

CHUNK = 1 << 16
LEFT_OUT = 8
"""Number of packages that may make standby workers unusable; after that they are taken to have no chance."""
ORDER_BYTES = 1 << 20
"""Requested size of the socket's buffer: an order that does not fit is not sent, because the loop must not block."""


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
    buffer: bytes = b""
    ready: bool = False
    unusable: bool = False
    channel_closed: bool = False
    status: int | None = None


@dataclass
class StandbyEvents:
    """Lines for the user, and the local ranks whose standby worker has ended.

    Attributes:
        unusable: those of them whose next one imports less.
        refused: there is to be no next one.
    """

    lines: list[str] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    unusable: list[int] = field(default_factory=list)
    refused: bool = False


class Standbys:
    """The standby workers of this node.

    Args:
        settings: the agent's; `warm_imports` are the modules.
        slots: workers on this node.
        collect: collects ended children, and sets the `status` of those in `all`.
        monotonic: clock, seconds.

    Attributes:
        fd: becomes readable when `poll` has something to do.
        all: those that wait or still import.
    """

    def __init__(
        self, settings: AgentSettings, slots: int, collect: Callable[[], None], monotonic: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._collect = collect
        self._monotonic = monotonic
        self._poll = select.epoll()
        self._logged: set[str] = set()
        self._left_out: list[str] = []
        self._is_auto = settings.warm_imports == AUTO
        self.fd = self._poll.fileno()
        self.all: list[Standby] = []

    def start(self, local_rank: int, share: float = 1.0) -> None:
        """Start one; `OSError` when it cannot be. From the main thread, as `Workers.start`.

        Args:
            share: of one CPU's time that its imports may take.
        """
        settings = self._settings
        environment = standby_environment(settings.inherited, settings.facts, self._slots, local_rank)
        program = replace(settings.program, arguments=substituted(settings.program.arguments, local_rank))
        command = worker_command(program, os.getpid(), None, None, self._options(share))
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_BYTES)
            stdin = (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)
            pid, pidfd = spawn(command, environment, stdin, settings.cpus_of(local_rank))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.all.append(Standby(local_rank, pid, pidfd, ours, command, environment, self._monotonic()))
        self._poll.register(pidfd, select.EPOLLIN)
        self._poll.register(ours, select.EPOLLIN)

    def _options(self, share: float) -> list[str]:
        options = ["--standby", ",".join(self._settings.warm_imports), "--standby-share", f"{share:.3f}"]
        if self._is_auto:
            options += ["--standby-list", self._settings.imports_list]
        return [*options, "--standby-without", ",".join(self._left_out)] if self._left_out else options

    def poll(self) -> StandbyEvents:
        """Read their messages, and note which have ended."""
        events = StandbyEvents()
        for standby in list(self.all):
            before = standby.ready
            self._read(standby, events)
            if standby.ready and not before and all(one.ready for one in self.all):
                seconds = self._monotonic() - min(one.started_s for one in self.all)
                line = f"standby workers are ready ({len(self.all)}, after {duration(seconds)} of imports)"
                events.lines += [] if self._is_auto else [line]
            if _is_readable(standby.pidfd):
                self._collect()
                if not standby.unusable:
                    self._log_once(events, f"a standby worker {_end_of(standby)}")
                events.ended.append(standby.local_rank)
                if standby.unusable and len(self._left_out) < LEFT_OUT:
                    events.unusable.append(standby.local_rank)
                self._forget(standby)
        return events

    def take(self, launch: WorkerLaunch) -> tuple[int, int] | None:
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
        """Kill them; they are collected upon SIGCHLD."""
        for standby in list(self.all):
            self._drop(standby)

    def _read(self, standby: Standby, events: StandbyEvents) -> None:
        try:
            data = standby.channel.recv(CHUNK)
        except OSError:
            data = None
        if data == b"" and not standby.channel_closed:
            # It has ended (its pidfd reports that), or a module has closed all descriptors: no further wakes.
            standby.channel_closed = True
            self._poll.unregister(standby.channel)
        standby.buffer += data or b""
        *lines, standby.buffer = standby.buffer.split(b"\n")
        for line in lines:
            kind, _, text = line.decode("utf-8", "replace").partition(" ")
            if kind == "ready":
                standby.ready = True
            elif kind == "refused":
                standby.unusable = events.refused = True
                why = f"the script sets {text}, and imports may depend on that"
                self._log_once(events, f"no standby workers: {why}; see --warm-imports")
            elif kind == "unusable":
                standby.unusable = True
                package = text.partition(" ")[0].partition(".")[0]
                if package not in self._left_out:
                    self._left_out.append(package)
                self._log_once(events, f"standby workers: {text}, which is for workers only: it is not imported ahead")
            else:
                self._log_once(events, f"standby workers go on without a module: {text}")

    def _log_once(self, events: StandbyEvents, line: str) -> None:
        # All slots log the same lines.
        if line not in self._logged:
            self._logged.add(line)
            events.lines.append(line)

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
        if not standby.channel_closed:
            self._poll.unregister(standby.channel)
        standby.channel.close()
        self.all.remove(standby)


def _fits(standby: Standby, launch: WorkerLaunch) -> bool:
    """Return whether interpreter, parent and all variables that the imports may have read are the same."""
    end = standby.command.index("--standby")
    same = list(standby.command[:end]) == list(launch.command[:end])
    return same and standby.environment.items() <= launch.environment.items()


def _order(standby: Standby, launch: WorkerLaunch) -> bool:
    """Send the order, see `ftslurm.standby`; False when it cannot be sent as a whole at once."""
    arguments = launch.command[launch.command.index("--parent") :]
    variables = (f"{name}={value}" for name, value in launch.environment.items())
    data = os.fsencode("\0".join((str(len(arguments)), *arguments, *variables)))
    data = b"%d\n%b" % (len(data), data)
    try:
        return standby.channel.send(data) == len(data)
    except OSError:
        return False


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _end_of(standby: Standby) -> str:
    if standby.status is None:
        return "has ended"
    if os.WIFSIGNALED(standby.status):
        return f"was killed by {signal_name(os.WTERMSIG(standby.status))}"
    return f"ended with code {os.WEXITSTATUS(standby.status)}"

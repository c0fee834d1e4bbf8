"""Looks at this node's health while the agent works: the processes around `HealthGate`, and what the node's word says.

A look is a process of its own; what the GPUs' driver tells of by itself (Xid events) is heard by another one, where
there are such GPUs. Whatever hangs in a driver hangs there.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable

from ftslurm.agent.health_gate import OFF, XID, HealthGate
from ftslurm.boot import module_command
from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.health.check import CONFIRM, Context, Peer, request_for
from ftslurm.health.node_health import HealthFinding
from ftslurm.health.result import RunResult, decode
from ftslurm.health.verdict import SEVERITY
from ftslurm.kernel import kill_descendants, parent_of, pidfd_send_signal, spawn_unawaited
from ftslurm.localdir import make_private
from ftslurm.rendezvous.node_record import NodeRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.early_check import EarlyCheck
    from ftslurm.health.verdict import Json
    from ftslurm.rendezvous.node_record import NodeRecord
    from ftslurm.rendezvous.state import Failure, State

START_S = 120.0
"""A look that has not begun with its checks by then is given up: its modules come from a filesystem that hangs."""
LOADING_S = 5.0
"""After so many seconds the user is told that they are still being loaded."""
SLACK_S = 10.0
"""A look that has begun says how long its checks may take; it gets so much more."""

STUCK = 16
"""While more processes than so many, left by earlier looks, hang in the kernel, none is begun: each would leave some
more, until the node has no process numbers."""

_RESULT_LIMIT = 8 << 20
_LINE_LIMIT = 4096
DRIVER = "gpu-driver"
"""The check that finds something to look at where NVIDIA's driver is."""


@dataclass
class HealthSettings:
    """What the user asked for.

    Attributes:
        mode, every_s: see `HealthGate`.
        python: the interpreter.
        local_dir: node-local directory of this agent.
        context: of this node's checks, as while no rank runs; its environment is the processes' own, too.
        spread_s: see `HealthGate`.
        early: the process of the first look, which has begun already; None: it has not.
    """

    mode: str
    every_s: float
    python: str
    local_dir: str
    context: Context
    spread_s: float = 0.0
    early: EarlyCheck | None = None


@dataclass
class _Process:
    pid: int
    pidfd: int
    fd: int
    data: bytearray = field(default_factory=bytearray)
    over: bool = False

    def lines(self) -> list[bytes]:
        """Take the whole lines that it has written."""
        *lines, rest = bytes(self.data).split(b"\n")
        self.data[:] = rest
        return lines


class HealthMonitor:
    """This node's health, as the agent's loop uses it.

    Args:
        settings: what is asked for.
        monotonic, now_ns: the clocks.
        spared: gets the pids that no sweep is for: who listens to the driver, and checks that were killed but hang in
            the kernel. Whoever collects a process takes it out.

    Attributes:
        fd: becomes readable when `look` has something to do.
    """

    def __init__(
        self,
        settings: HealthSettings,
        monotonic: Callable[[], float],
        now_ns: Callable[[], int],
        spared: set[int],
    ) -> None:
        self._settings = settings
        self._spared = spared
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._fitness = HealthGate(settings.mode, settings.every_s, settings.spread_s)
        self._poll = select.epoll()
        self._look: _Process | None = None
        self._set = ""
        self._look_by: float | None = None
        self._loading_told_at: float | None = None
        self._sentinel: _Process | None = None
        self._busy = False
        self._present: tuple[str, ...] = ()
        self._peers: tuple[Peer, ...] = ()
        self.fd = self._poll.fileno()

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `look` wants to be called."""
        moments = (self._fitness.deadline, self._look_by, self._loading_told_at)
        return min((at for at in moments if at is not None), default=None)

    def begin(self) -> None:
        """Start the first look, or take the one that goes on already."""
        self._fitness.begin()
        early = self._settings.early
        if early is None or self._fitness.wanted is None:
            self._start_wanted()
            return
        self._set = self._fitness.begun()
        self._look = _Process(early.pid, early.pidfd, early.fd)
        self._poll.register(early.fd, select.EPOLLIN)
        self._give_time()

    def on_state(self, state: State) -> None:
        """The newest state was read: looks try to reach the master of its round, where that is another node."""
        first = next((one.node for one in state.participants if one.group_rank == 0), None)
        if state.master is not None and first is not None and first != self._settings.context.node:
            self._peers = (Peer(first, state.master.address, state.master.port),)

    def with_health(self, record: NodeRecord) -> NodeRecord:
        """Return the word with what there is to say of this node's health."""
        fitness = self._fitness
        return replace(record, health=fitness.health, unhealthy=fitness.unhealthy, health_pending=fitness.looking)

    def on_round(self) -> None:
        """Ranks run from now on."""
        self._busy = True
        self._fitness.on_round(self._monotonic())
        # One that was started for a spare looks at a node without ranks.
        self._drop_run()
        self._start_event_reader()

    def on_swept(self, failure: Failure | None) -> None:
        """Nothing of the round is left, nor of what this watch had started."""
        self._busy = False
        self._drop_run()
        self._fitness.on_swept(failure, self._monotonic(), self._now_ns())
        self._start_wanted()

    def poll(self) -> list[str]:
        """Take what came, start what is due; return lines for the user. `say` may say something new then."""
        lines: list[str] = []
        now = self._monotonic()
        if self._look is not None:
            over = self._receive(self._look)
            lines += self._follow(self._look, now)
            if over:
                lines += self._finish(_result(self._look.data))
            elif self._look_by is not None and now >= self._look_by:
                lines += self._finish(None)
        if self._sentinel is not None:
            over = self._receive(self._sentinel)
            lines += self._read_events(self._sentinel)
            if over:
                self._drop(self._sentinel)
                self._sentinel = None
        self._fitness.on_time(now)
        self._start_wanted()
        return lines

    def close(self) -> None:
        """Look no more."""
        self._drop_run()
        if self._sentinel is not None:
            self._drop(self._sentinel)
            self._sentinel = None

    # Looks

    def _start_wanted(self) -> None:
        if self._fitness.wanted is None or self._look is not None:
            return
        names = self._fitness.pending
        self._set = self._fitness.begun()
        if len(self._spared) > STUCK:
            self._fitness.on_result(self._set, None, self._monotonic(), self._now_ns())
            return
        settings = self._settings
        context = replace(settings.context, busy=self._busy, hurry=self._fitness.looking, peers=self._peers)
        request = request_for(self._set, names, context, settings.local_dir)
        path = os.path.join(settings.local_dir, "health-request.json")
        try:
            make_private(settings.local_dir)
            with open(path, "w") as file:
                json.dump(request, file)
            self._look = self._start("ftslurm.health.agent_run", path)
        except OSError:
            # A full /tmp, no process left: what cannot be looked at is not found sick.
            self._fitness.on_result(self._set, None, self._monotonic(), self._now_ns())
            return
        self._give_time()

    def _give_time(self) -> None:
        now = self._monotonic()
        self._look_by = now + START_S
        self._loading_told_at = now + LOADING_S if self._fitness.looking else None

    def _follow(self, look: _Process, now: float) -> list[str]:
        """Take what a look says before its result."""
        lines: list[str] = []
        for line in look.lines():
            said = _object(line)
            if isinstance(said.get("longest_s"), (int, float)):
                self._look_by = now + said["longest_s"] + SLACK_S
                self._loading_told_at = None
            if isinstance(said.get("waiting"), list) and self._fitness.looking:
                names = ", ".join(str(name)[:80] for name in said["waiting"])
                lines.append(f"health: still being checked: no answer yet from {names}")
        if self._loading_told_at is not None and now >= self._loading_told_at:
            self._loading_told_at = None
            lines.append("health: still being checked: the checks are being loaded, from a slow filesystem perhaps")
        return lines

    def _finish(self, looked: RunResult | None) -> list[str]:
        assert self._look is not None
        pid, late = self._look.pid, not self._look.over
        self._drop_run()
        unhealthy = self._fitness.unhealthy
        new = self._fitness.on_result(self._set, looked, self._monotonic(), self._now_ns())
        if looked is not None:
            # Some may have ended since, and be collected: their numbers may be anybody's by now.
            above = {os.getpid(), pid, *looked.stuck}
            self._spared |= {stuck for stuck in looked.stuck if parent_of(stuck) in above}
            if self._set != CONFIRM:
                self._present = looked.present
        # Several checks may say the same of one cause (a driver that hangs): the worst of them says it.
        told = {one.line(): one for one in reversed(new)}
        lines = [f"health: {one.status}: {one.line()}{_advice(one)}" for one in reversed(told.values())]
        # While ranks run, one that has ended was swept away with them.
        if looked is None and (late or not self._busy):
            lines.append("health: this look at the node came to nothing: its process hung or was killed")
        # The reason's text changes with time ("2 min ago").
        if (self._fitness.unhealthy is None) != (unhealthy is None):
            part = "the next round" if self._busy else "any round"
            lines.append(
                "health: this node is healthy again" if unhealthy else f"health: unhealthy: it takes no part in {part}"
            )
        return lines

    def _drop_run(self) -> None:
        self._look_by = self._loading_told_at = None
        if self._look is not None:
            self._drop(self._look)
            self._look = None

    # What the driver tells

    def _start_event_reader(self) -> None:
        if self._sentinel is not None or self._settings.mode == OFF or XID in self._settings.context.skip:
            return
        if DRIVER not in self._present:
            return
        try:
            self._sentinel = self._start("ftslurm.health.xid", os.devnull)
            self._spared.add(self._sentinel.pid)
        except OSError:
            # The kernel's log may tell of them later.
            pass

    def _read_events(self, process: _Process) -> list[str]:
        lines: list[str] = []
        for text in process.lines():
            finding = _event(text)
            if finding is not None and self._fitness.on_event(finding, self._monotonic(), self._now_ns()):
                lines.append(f"health: {finding.status}: {finding.line()}{_advice(finding)}")
        # A line without end is none.
        del process.data[:-_LINE_LIMIT]
        return lines

    # Processes

    def _start(self, module: str, stdin: str) -> _Process:
        """Start a module of ours in a session of its own; from the main thread, as `Workers.start`."""
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        actions = [(os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, write, 1)]
        command = module_command(self._settings.python, module)
        try:
            pid, pidfd = spawn_unawaited(command, self._settings.context.environ, actions)
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._poll.register(read, select.EPOLLIN)
        return _Process(pid, pidfd, read)

    def _receive(self, process: _Process) -> bool:
        """Take what it wrote; True when it will write no more."""
        while True:
            try:
                chunk = os.read(process.fd, 1 << 16)
            except BlockingIOError:
                return False
            process.data += chunk
            process.over = not chunk
            if not chunk or len(process.data) > _RESULT_LIMIT:
                return True

    def _drop(self, process: _Process) -> None:
        """Kill it, if it is there, with what it has started; the agent collects it."""
        self._poll.unregister(process.fd)
        os.close(process.fd)
        try:
            if not process.over:
                # A user's command that goes on would be in the ranks' way. Stopped, it starts no other meanwhile.
                pidfd_send_signal(process.pidfd, signal.SIGSTOP)
                kill_descendants(process.pid)
            pidfd_send_signal(process.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(process.pidfd)


def _advice(finding: HealthFinding) -> str:
    return f" ({finding.advice})" if finding.advice else ""


def _object(line: bytes) -> Json:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _result(data: bytes | bytearray) -> RunResult | None:
    try:
        return decode(bytes(data))
    except ValueError:
        return None


def _event(line: bytes) -> HealthFinding | None:
    try:
        said = json.loads(line)
        status = said["status"]
        if status not in SEVERITY:
            return None
        which = "a GPU" if said["gpu"] is None else f"GPU {said['gpu']}"
        where = which + (f" ({said['bus_id']})" if said.get("bus_id") else "")
        text, advice = (str(said[name])[:300] for name in ("text", "advice"))
        number = f"Xid {said['xid']}: " if said.get("xid") is not None else ""
        return HealthFinding(XID, status, where, number + text, advice, int(said["time_ns"]))
    except (ValueError, KeyError, TypeError):
        return None

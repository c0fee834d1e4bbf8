"""Checks of this node's health while the agent runs: the processes around `HealthGate`, and the node record's part.

A run of a check set is a separate process; another one reads the events of the GPUs' driver (Xid), where there are such
GPUs. A call that hangs in a driver hangs only there.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable

from ftslurm.agent.health_gate import XID, HealthGate
from ftslurm.agent.helper_process import HelperProcess
from ftslurm.agent.option_groups import OFF, HealthOptions
from ftslurm.boot import module_command
from ftslurm.dataclasses import dataclass, replace
from ftslurm.health.check import CONFIRM, Context, Peer, request_for
from ftslurm.health.result import RunResult, decode
from ftslurm.kernel import parent_of
from ftslurm.local_directory import make_private
from ftslurm.records.health import SEVERITY, HealthFinding
from ftslurm.records.node import NodeRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.early_check import EarlyCheck
    from ftslurm.health.verdict import Json
    from ftslurm.records.node import NodeRecord
    from ftslurm.records.state import Failure, State

START_S = 120.0
"""Seconds after which a run whose checks have not started is given up: its modules lie on a filesystem that
hangs."""
LOADING_S = 5.0
"""Seconds after which the user is informed that the checks are still being loaded."""
SLACK_S = 10.0
"""Seconds granted to a run in addition to the time limit that it announces."""

STUCK = 16
"""No run starts while more than so many processes of earlier runs hang in the kernel: each run would add some, until
the node has no process numbers left."""

_LINE_LIMIT = 4096
DRIVER = "gpu-driver"
"""The check that is present on nodes with NVIDIA's driver."""


@dataclass
class HealthSettings:
    """Settings of this node's health checks.

    Attributes:
        options: see `HealthOptions`.
        python: the interpreter.
        local_dir: node-local directory of this agent.
        context: of this node's checks, as while no rank runs; its environment is the processes' own, too.
        spread_s: see `HealthGate`.
        early: the process of the first run if that has started already, else None.
    """

    options: HealthOptions
    python: str
    local_dir: str
    context: Context
    spread_s: float = 0.0
    early: EarlyCheck | None = None


class HealthMonitor:
    """This node's health, as the agent's loop uses it.

    Args:
        settings: see `HealthSettings`.
        monotonic, now_ns: the clocks.
        spared: receives the pids that sweeps leave alone: the event reader, and killed checks that hang in the
            kernel. The collector of a process removes its pid.

    Attributes:
        fd: becomes readable when `poll` is due.
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
        self._gate = HealthGate(settings.options, settings.spread_s)
        self._poll = select.epoll()
        self._run: HelperProcess | None = None
        self._set = ""
        self._run_by: float | None = None
        self._loading_notice_at: float | None = None
        self._event_reader: HelperProcess | None = None
        self._busy = False
        self._present: tuple[str, ...] = ()
        self._peers: tuple[Peer, ...] = ()
        self.fd = self._poll.fileno()

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `poll` is due."""
        moments = (self._gate.deadline, self._run_by, self._loading_notice_at)
        return min((at for at in moments if at is not None), default=None)

    def begin(self) -> None:
        """Start the first run, or adopt the one that is running already."""
        self._gate.begin()
        early = self._settings.early
        if early is None or self._gate.wanted is None:
            self._start_wanted()
            return
        self._set = self._gate.take_wanted()
        self._run = HelperProcess(early.pid, early.pidfd, early.fd)
        self._poll.register(early.fd, select.EPOLLIN)
        self._give_time()

    def on_state(self, state: State) -> None:
        """The newest state was read: runs test the connection to its round's master if that is another node."""
        first = next((one.node for one in state.participants if one.group_rank == 0), None)
        if state.master is not None and first is not None and first != self._settings.context.node:
            self._peers = (Peer(first, state.master.address, state.master.port),)

    def with_health(self, record: NodeRecord) -> NodeRecord:
        """Return the record with this node's health."""
        gate = self._gate
        return replace(record, health=gate.health, unhealthy=gate.unhealthy, health_pending=gate.health_pending)

    def on_round(self) -> None:
        """Ranks run from now on."""
        self._busy = True
        self._gate.on_round(self._monotonic())
        # A run that was started for a spare assumes a node without ranks.
        self._drop_run()
        self._start_event_reader()

    def on_swept(self, failure: Failure | None) -> None:
        """The round is swept, including the processes of this monitor."""
        self._busy = False
        self._drop_run()
        self._gate.on_swept(failure, self._monotonic(), self._now_ns())
        self._start_wanted()

    def poll(self) -> list[str]:
        """Read results, start due runs; return lines for the user. `with_health` may change then."""
        lines: list[str] = []
        now = self._monotonic()
        if self._run is not None:
            over = self._run.receive()
            lines += self._follow(self._run, now)
            if over:
                lines += self._finish(_result(self._run.data))
            elif self._run_by is not None and now >= self._run_by:
                lines += self._finish(None)
        if self._event_reader is not None:
            over = self._event_reader.receive()
            lines += self._read_events(self._event_reader)
            if over:
                self._event_reader.drop(self._poll)
                self._event_reader = None
        self._gate.on_time(now)
        self._start_wanted()
        return lines

    def close(self) -> None:
        """Stop all runs."""
        self._drop_run()
        if self._event_reader is not None:
            self._event_reader.drop(self._poll)
            self._event_reader = None

    # Runs

    def _start_wanted(self) -> None:
        if self._gate.wanted is None or self._run is not None:
            return
        names = self._gate.unconfirmed
        self._set = self._gate.take_wanted()
        if len(self._spared) > STUCK:
            self._gate.on_result(self._set, None, self._monotonic(), self._now_ns())
            return
        settings = self._settings
        context = replace(settings.context, busy=self._busy, hurry=self._gate.health_pending, peers=self._peers)
        request = request_for(self._set, names, context, settings.local_dir)
        path = os.path.join(settings.local_dir, "health-request.json")
        try:
            make_private(settings.local_dir)
            with open(path, "w") as file:
                json.dump(request, file)
            self._run = self._start("ftslurm.health.agent_run", path)
        except OSError:
            # A full /tmp, no process left: a node that cannot be checked is not unhealthy.
            self._gate.on_result(self._set, None, self._monotonic(), self._now_ns())
            return
        self._give_time()

    def _give_time(self) -> None:
        now = self._monotonic()
        self._run_by = now + START_S
        self._loading_notice_at = now + LOADING_S if self._gate.health_pending else None

    def _follow(self, run: HelperProcess, now: float) -> list[str]:
        """Read the messages of a run before its result."""
        lines: list[str] = []
        for line in run.lines():
            message = _object(line)
            if isinstance(message.get("longest_s"), (int, float)):
                self._run_by = now + message["longest_s"] + SLACK_S
                self._loading_notice_at = None
            if isinstance(message.get("waiting"), list) and self._gate.health_pending:
                names = ", ".join(str(name)[:80] for name in message["waiting"])
                lines.append(f"health: still being checked: no answer yet from {names}")
        if self._loading_notice_at is not None and now >= self._loading_notice_at:
            self._loading_notice_at = None
            lines.append("health: still being checked: the checks are being loaded, from a slow filesystem perhaps")
        return lines

    def _finish(self, result: RunResult | None) -> list[str]:
        assert self._run is not None
        pid, late = self._run.pid, not self._run.over
        self._drop_run()
        unhealthy = self._gate.unhealthy
        new = self._gate.on_result(self._set, result, self._monotonic(), self._now_ns())
        if result is not None:
            # Some may have ended and been collected since: their pids may be reused.
            above = {os.getpid(), pid, *result.stuck}
            self._spared |= {stuck for stuck in result.stuck if parent_of(stuck) in above}
            if self._set != CONFIRM:
                self._present = result.present
        # Several checks may report the same cause (a driver that hangs): only the worst is logged.
        distinct = {one.line(): one for one in reversed(new)}
        lines = [f"health: {one.status}: {one.line()}{_advice(one)}" for one in reversed(distinct.values())]
        # While ranks run, an ended run was swept together with them.
        if result is None and (late or not self._busy):
            lines.append("health: check run failed: its process hung or was killed")
        # The reason's text changes with time ("2 min ago").
        if (self._gate.unhealthy is None) != (unhealthy is None):
            part = "the next round" if self._busy else "any round"
            lines.append(
                "health: this node is healthy again" if unhealthy else f"health: unhealthy: it takes no part in {part}"
            )
        return lines

    def _drop_run(self) -> None:
        self._run_by = self._loading_notice_at = None
        if self._run is not None:
            self._run.drop(self._poll)
            self._run = None

    def _start(self, module: str, stdin: str) -> HelperProcess:
        command = module_command(self._settings.python, module)
        return HelperProcess.start(command, self._settings.context.environ, self._poll, stdin)

    # Events of the driver

    def _start_event_reader(self) -> None:
        if self._event_reader is not None or self._settings.options.mode == OFF or XID in self._settings.context.skip:
            return
        if DRIVER not in self._present:
            return
        try:
            self._event_reader = self._start("ftslurm.health.xid", os.devnull)
            self._spared.add(self._event_reader.pid)
        except OSError:
            # The kernel's log may report them later.
            pass

    def _read_events(self, process: HelperProcess) -> list[str]:
        lines: list[str] = []
        for text in process.lines():
            finding = _event(text)
            if finding is not None and self._gate.on_event(finding, self._monotonic(), self._now_ns()):
                lines.append(f"health: {finding.status}: {finding.line()}{_advice(finding)}")
        # Drop an endless line.
        del process.data[:-_LINE_LIMIT]
        return lines


def _advice(finding: HealthFinding) -> str:
    return f" ({finding.advice})" if finding.advice else ""


def _object(line: bytes) -> Json:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _result(data: bytes | bytearray) -> RunResult | None:
    try:
        return decode(bytes(data))
    except ValueError:
        return None


def _event(line: bytes) -> HealthFinding | None:
    try:
        message = json.loads(line)
        status = message["status"]
        if status not in SEVERITY:
            return None
        which = "a GPU" if message["gpu"] is None else f"GPU {message['gpu']}"
        where = which + (f" ({message['bus_id']})" if message.get("bus_id") else "")
        text, advice = (str(message[name])[:300] for name in ("text", "advice"))
        number = f"Xid {message['xid']}: " if message.get("xid") is not None else ""
        return HealthFinding(XID, status, where, number + text, advice, int(message["time_ns"]))
    except (ValueError, KeyError, TypeError):
        return None

"""One agent process: its loop on this node, from the first record to the last."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from ftslurm.agent.components import Components, make_components, preload_standby
from ftslurm.agent.containment import (
    ANALYSIS,
    DOORBELL,
    EXCLUSION,
    HEALTH,
    JOB_WATCH,
    MONITOR,
    Containment,
    defect_of,
)
from ftslurm.agent.courier import CourierThread
from ftslurm.agent.defect_records import DefectRecords
from ftslurm.agent.doorbell import Doorbell
from ftslurm.agent.exclusion import Excluder
from ftslurm.agent.health_monitor import HealthSettings
from ftslurm.agent.loop import BY_DEFECT, SWEEP_RETRY_S, AgentLoop
from ftslurm.agent.machine import AgentMachine
from ftslurm.agent.node_effects import COURIER, GUARDIAN, LATE, NodeEffects
from ftslurm.agent.option_groups import OFF, REPORT
from ftslurm.agent.output import Console
from ftslurm.agent.ports import ReservedPort
from ftslurm.agent.round_setup import REACH
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.waiting import Waiting
from ftslurm.event_log.writer import EventLog
from ftslurm.kernel import FORWARDED, kill_descendants
from ftslurm.local_directory import remove_tree
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import State
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.text import duration

FINISH_S = 6.0
DEFECTS_S = 2.0
BREAK_OFF_S = 5.0
EXCLUSION_S = 2.0
CLEAN_UP_S = 2.0
DRAIN_S = 2.0


class NodeAgent:
    """Runs one agent until it may leave.

    Args:
        loop, effects, parts, waiting, courier: of the agent.
        settings: see `AgentSettings`.
        containment: of its components.
        defects: records defects of ftslurm itself.
        explain: gives the guardian the reason of this agent's end, in case the agent cannot publish it.
    """

    def __init__(
        self,
        loop: AgentLoop,
        effects: NodeEffects,
        parts: Components,
        waiting: Waiting,
        courier: CourierThread,
        settings: AgentSettings,
        containment: Containment,
        defects: DefectRecords,
        explain: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._effects = effects
        self._parts = parts
        self._waiting = waiting
        self._courier = courier
        self._settings = settings
        self._containment = containment
        self._defects = defects
        self._explain = explain

    @property
    def state(self) -> State | None:
        """The newest state that this agent has read."""
        return self._loop.state

    @property
    def record(self) -> NodeRecord:
        """This node's newest record."""
        return self._loop.record

    @property
    def kept(self) -> str | None:
        """The node-local directory of records that could not be written to the run directory."""
        return self._parts.journal.kept

    def run(self) -> int:
        """Run until the machine decides to leave; return the exit code."""
        try:
            self._begin()
            while self._loop.exit_code is None:
                self._effects.wait(self._loop.deadline)
                self._loop.turn()
        except Exception as error:
            self._break_off(error)
        code = self._loop.exit_code
        assert code is not None
        try:
            self._leave(code)
        except Exception as error:
            # No worker runs any more: the verdict stands, and the guardian publishes that this agent has left.
            self._effects.log_defect(defect_of(None, error), LATE, self._loop.record.round)
            self._defects.finish(DEFECTS_S)
            self._parts.console.drain(DRAIN_S)
        return code

    def _begin(self) -> None:
        parts, listen = self._parts, self._waiting.listen
        self._waiting.handle((*FORWARDED, signal.SIGCHLD))
        listen(self._settings.guardian, GUARDIAN)
        listen(self._courier.wake_r, COURIER)
        listen(parts.monitor.fd, MONITOR)
        listen(parts.bell.fileno() if parts.bell.port else None, DOORBELL)
        listen(parts.health.fd, HEALTH)
        listen(parts.stop.job_watch.fd, JOB_WATCH)
        parts.health.begin()
        self._loop.begin(parts.bell.port or 0)
        self._courier.start()
        parts.guard.start()
        # Concurrent with the courier's first tick.
        if self._settings.warm_imports:
            self._containment.call(ANALYSIS, None, preload_standby)

    def _break_off(self, error: Exception) -> None:
        """End in any state: kill the workers, then publish that this node has left and why."""
        defect = defect_of(None, error)
        self._effects.log_defect(defect, "its workers are killed and this node leaves", self._loop.record.round)
        self._explain(defect.text)
        end = time.monotonic() + BREAK_OFF_S
        workers = self._parts.workers
        while kill_descendants(os.getpid(), spared=workers.spared) and time.monotonic() < end:
            time.sleep(SWEEP_RETRY_S)
            workers.collect()
        self._loop.break_off(f"{BY_DEFECT}{defect.text}")

    def _leave(self, code: int) -> None:
        parts, log = self._parts, self._parts.console.warn
        self._effects.leaving = True
        if parts.workers.standbys is not None:
            parts.workers.standbys.drop_all()
        parts.health.close()
        parts.stop.job_watch.close()
        parts.journal.again()
        if parts.monitor.timer_file is not None:
            self._courier.send(parts.monitor.timer_file.withdraw)
        if parts.hooks is not None:
            # Before this node's record says that it has left: ftsrun waits for that.
            from ftslurm.agent.last_hooks import await_hooks

            facts = (parts.workers.collect, time.monotonic, self._settings.kill_wait_s, self._effects.terminated_s)
            parts.guard.waiting()
            await_hooks(parts.hooks, self._waiting, GUARDIAN, *facts)
            parts.guard.working()
        finished = self._courier.finish(FINISH_S)
        self._loop.on_last_events()
        parts.revocation.finish(CLEAN_UP_S)
        if not parts.excluder.finish(EXCLUSION_S) and self._containment.works(EXCLUSION):
            log("not all exclusions of nodes could be recorded for later jobs in time")
        if not finished:
            parts.console.error(f"the shared directory has not responded for {duration(FINISH_S)}: leaving anyway")
        if line := parts.journal.leave(stays=code != 0):
            log(line)
        self._defects.finish(DEFECTS_S if finished else 0.0)
        parts.console.drain(DRAIN_S)
        parts.guard.stop()
        if not finished:
            if code == 0 and self.kept is not None:
                remove_tree(self.kept)
            # The courier's thread hangs in the filesystem; a normal exit would wait for it.
            os._exit(code)


def make_agent(
    settings: AgentSettings,
    machine: AgentMachine,
    record: NodeRecord,
    courier: CourierThread,
    console: Console,
    fs: FileSystem,
    run: RunDirectory,
    reserve: Callable[[], ReservedPort],
    bell: Doorbell,
    health: HealthSettings,
    excluder: Excluder,
    events: EventLog,
    containment: Containment,
    defects: DefectRecords,
    explain: Callable[[str], None],
) -> NodeAgent:
    """Make an agent.

    Args:
        settings: see `AgentSettings`.
        machine: makes the decisions.
        record: this node's first record, the same as the courier's member has.
        courier: carries records and tasks to the shared filesystem; not yet started.
        console: writes log lines.
        fs, run: where tasks write.
        reserve: reserves a port for the next round.
        bell: the doorbell, by which other nodes wake this agent.
        health: settings of this node's health checks.
        excluder: records nodes that repeatedly fail first.
        events: logs the run's events.
        containment: of the components, those given here and those made here.
        defects, explain: see `NodeAgent`.
    """
    clocks = (time.monotonic, time.time_ns)
    shared = (courier, fs, run)
    parts = make_components(containment, settings, console, bell, excluder, events, *shared, health, *clocks)
    waiting = Waiting()
    facts = (settings, parts, waiting, record.slots)
    effects = NodeEffects(*facts, *shared, reserve, containment, defects, explain, *clocks)
    # Not all programs connect to the master: with this check switched off, the round must begin.
    connects = health.options.mode != OFF and REACH not in health.context.skip
    log_unreachable = console.warn if health.options.mode == REPORT else None
    loop = AgentLoop(effects, machine, courier, record, containment, settings.trouble_s, connects, log_unreachable)
    return NodeAgent(loop, effects, parts, waiting, courier, settings, containment, defects, explain)

"""The parts of an agent that its effects are made of; the components among them are contained."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ftslurm.agent.arrival_sampling import ArrivalSampler
from ftslurm.agent.build_locks import BuildLocks
from ftslurm.agent.containment import (
    ARRIVALS,
    BUILD_LOCKS,
    GUARD,
    HEALTH,
    HOOKS,
    HOST_RESOURCES,
    JOB_WATCH,
    MONITOR,
    RECORDS,
    STOP_PAGES,
    Containment,
)
from ftslurm.agent.courier import CourierThread, Notice
from ftslurm.agent.doorbell import Doorbell
from ftslurm.agent.exclusion import Excluder
from ftslurm.agent.health_monitor import HealthMonitor, HealthSettings
from ftslurm.agent.host_resources import ResourceSampler
from ftslurm.agent.job_watch import JobWatch, JobWatchSettings
from ftslurm.agent.journal import Journal
from ftslurm.agent.option_groups import ON, StopWhen
from ftslurm.agent.output import Console
from ftslurm.agent.rank_monitor import RankMonitor
from ftslurm.agent.revocation import Revocation
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.stop_pages import StopPages
from ftslurm.agent.stop_parts import StopParts, StopSignals
from ftslurm.agent.worker_exits import WorkerExits
from ftslurm.agent.workers import Workers
from ftslurm.dataclasses import dataclass, replace
from ftslurm.kernel import soft_limit
from ftslurm.monitor.loop_watchdog import LoopWatchdog
from ftslurm.monitor.timer_file import FILE
from ftslurm.records.stop import StopVote
from ftslurm.sharedfs.commits import Commits
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.rundir import RunDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.event_log.writer import EventLog
    from ftslurm.hooks.component import Hooks


def preload_standby() -> None:
    """Import the modules of standby workers, which the loop needs only later.

    By then the filesystem of Python itself may hang, and an import that hangs in the loop would keep the agent from its
    signals, its ranks and its heartbeat. Imports on separate threads (a connection test) and after the end (the report)
    may hang there.
    """
    import ftslurm.agent.standby_effects  # noqa: F401


@dataclass(frozen=True)
class Components:
    """See each class."""

    console: Console
    bell: Doorbell
    excluder: Excluder
    workers: Workers
    commits: Commits
    revocation: Revocation
    exits: WorkerExits
    health: HealthMonitor
    journal: Journal
    guard: LoopWatchdog
    monitor: RankMonitor
    stop: StopParts
    build_locks: BuildLocks
    arrivals: ArrivalSampler
    hooks: Hooks | None
    events: EventLog


def make_components(
    containment: Containment,
    settings: AgentSettings,
    console: Console,
    bell: Doorbell,
    excluder: Excluder,
    events: EventLog,
    courier: CourierThread,
    fs: FileSystem,
    run: RunDirectory,
    health: HealthSettings,
    monotonic: Callable[[], float],
    now_ns: Callable[[], int],
) -> Components:
    """Make the components; one whose construction fails is disabled from the start.

    Args:
        console, bell, excluder, events: contained already.
        courier: runs the components' tasks.
        fs, run: where records go.
        health: settings of the health checks.
        monotonic, now_ns: the clocks.
    """
    hold, task = containment.hold, containment.contained_task
    workers, commits = Workers(now_ns), Commits(fs, run)
    health_monitor = hold(
        HEALTH,
        HealthMonitor,
        health,
        monotonic,
        now_ns,
        workers.spared,
        # Its last findings stand, but the node is no longer health pending.
        answers={"poll": list, "with_health": lambda record: replace(record, health_pending=False)},
        close="close",
    )
    host_resources = hold(
        HOST_RESOURCES,
        ResourceSampler,
        settings.local_dir,
        monotonic=monotonic,
        core_limit=soft_limit("Max core file size"),
        cpu_limit_s=soft_limit("Max cpu time"),
        answers={"begin": dict},
    )
    local = os.path.dirname(settings.local_dir)
    facts = (settings.facts.run_id, now_ns, host_resources, local, lambda: courier.clock)
    journal = hold(RECORDS, Journal, task(RECORDS, courier.send), fs, run, *facts)
    guard = hold(GUARD, LoopWatchdog, monotonic=monotonic, answers={"stuck": 0})
    discarded = {} if FILE in settings.inherited else {FILE: os.devnull}

    def on_log_sizes(sizes: object) -> None:
        monitor.on_log_sizes(sizes)

    monitor: RankMonitor = hold(
        MONITOR,
        RankMonitor,
        settings,
        workers,
        journal,
        host_resources,
        lambda read: task(MONITOR, courier.send)(read, on_log_sizes),
        monotonic,
        lambda: now_ns() / 1e9,
        lambda: guard.stuck,
        answers={"environment": lambda _: discarded, "counts": dict, "turn": lambda *_: iter(())},
    )
    locks = hold(BUILD_LOCKS, BuildLocks, settings.local_dir, monotonic, lambda text: courier.post(Notice(text)))
    files = (fs, run, task(ARRIVALS, courier.send))
    recorded = settings.options.output.flight_recorder == ON
    arrivals = hold(ARRIVALS, ArrivalSampler, settings.facts.node, workers, *files, monotonic, now_ns, recorded)
    stop_pages = hold(
        STOP_PAGES,
        StopPages,
        workers,
        monotonic,
        answers={
            "stoppable": int,
            "follow": lambda stop, kill_at: StopVote(stop.round, stop.proposal),
            "saving": set,
            "catching": set,
        },
    )
    when = settings.options.stop.stop_when or StopWhen()
    watched = JobWatchSettings(
        settings.job_id, settings.nodes, sys.executable, os.environ, when.file, when.command, when.drain
    )
    job_watch = hold(
        JOB_WATCH,
        JobWatch,
        watched,
        task(JOB_WATCH, courier.send),
        workers.spared,
        monotonic,
        now_ns,
        console.warn,
        answers={"poll": list},
        close="close",
    )
    exits = WorkerExits(journal, containment, courier.send, monotonic)
    revocation = Revocation(commits, settings.facts.node, monotonic, time.sleep)
    on_event = settings.options.events.command
    hooks = None
    if on_event is not None:
        from ftslurm.hooks.component import Hooks

        where = (run.root, settings.facts.node, settings.inherited, workers.spared)
        hooks = hold(HOOKS, Hooks, on_event, *where, monotonic, console.warn, close="finish")
    core = (workers, commits, revocation, exits)
    return Components(
        console,
        bell,
        excluder,
        *core,
        health_monitor,
        journal,
        guard,
        monitor,
        StopParts(stop_pages, StopSignals(stop_pages, workers, monotonic, monitor.delays_stop), job_watch),
        locks,
        arrivals,
        hooks,
        events,
    )

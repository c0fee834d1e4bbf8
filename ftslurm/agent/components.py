"""The agent's components that its loop drives, each contained."""

from __future__ import annotations

import os
from collections.abc import Callable

from ftslurm.agent.build_locks import BuildLocks
from ftslurm.agent.containment import BUILD_LOCKS, GUARD, HEALTH, HOST_RESOURCES, MONITOR, RECORDS, Containment
from ftslurm.agent.courier import Courier, Notice
from ftslurm.agent.health_monitor import HealthMonitor, HealthSettings
from ftslurm.agent.host_resources import HostResources
from ftslurm.agent.journal import Journal
from ftslurm.agent.rank_monitor import RankMonitor
from ftslurm.agent.rank_watch import RankWatch
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.workers import Workers
from ftslurm.dataclasses import dataclass, replace
from ftslurm.kernel import soft_limit
from ftslurm.monitor.loop_watchdog import LoopWatchdog
from ftslurm.monitor.timer_file import FILE
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.rundir import RunDirectory


@dataclass(frozen=True)
class Components:
    """See each class."""

    health: HealthMonitor
    journal: Journal
    guard: LoopWatchdog
    monitor: RankMonitor
    watch: RankWatch
    build_locks: BuildLocks


def make_components(
    containment: Containment,
    settings: AgentSettings,
    workers: Workers,
    courier: Courier,
    fs: FileSystem,
    run: RunDirectory,
    health: HealthSettings,
    monotonic: Callable[[], float],
    now_ns: Callable[[], int],
) -> Components:
    """Make the components; one whose construction fails is disabled from the start.

    Args:
        workers: the agent's.
        courier: runs the components' tasks.
        fs, run: where records go.
        health: settings of the health checks.
        monotonic, now_ns: the clocks.
    """
    hold, task = containment.hold, containment.contained_task
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
        HostResources,
        settings.local_dir,
        monotonic=monotonic,
        core_limit=soft_limit("Max core file size"),
        cpu_limit_s=soft_limit("Max cpu time"),
        answers={"begin": dict, "at_a_failure": dict},
    )
    local = os.path.dirname(settings.local_dir)
    facts = (settings.facts.run_id, now_ns, host_resources, local, lambda: courier.clock)
    journal = hold(RECORDS, Journal, task(RECORDS, courier.send), fs, run, *facts)
    guard = hold(GUARD, LoopWatchdog, monotonic=monotonic, answers={"stuck": 0})
    discarded = {} if FILE in settings.inherited else {FILE: os.devnull}
    monitor = hold(
        MONITOR,
        RankMonitor,
        settings.timeouts,
        settings.inherited,
        settings.local_dir,
        workers,
        monotonic,
        lambda: now_ns() / 1e9,
        lambda: guard.stuck,
        answers={"environment": lambda _: discarded, "counts": dict},
    )
    rank_watch = hold(
        MONITOR,
        RankWatch,
        settings,
        monitor,
        journal,
        host_resources,
        task(MONITOR, courier.send),
        monotonic,
        answers={"turn": lambda *_: iter(())},
    )
    locks = hold(BUILD_LOCKS, BuildLocks, settings.local_dir, monotonic, lambda text: courier.post(Notice(text)))
    return Components(health_monitor, journal, guard, monitor, rank_watch, locks)

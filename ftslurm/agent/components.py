"""The helper parts of an agent that its loop drives, each in its containment."""

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
from ftslurm.kernel import core_limit
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
    """Make the parts; one that cannot be made is disabled from the start.

    Args:
        workers: the agent's.
        courier: takes the parts' errands.
        fs, run: where records go.
        health: how to look at this node's health.
        monotonic, now_ns: the clocks.
    """
    hold, errand = containment.hold, containment.contained_task
    watch = hold(
        HEALTH,
        HealthMonitor,
        health,
        monotonic,
        now_ns,
        workers.spared,
        # What it found last stands, but nobody waits for it any more.
        answers={"poll": list, "with_health": lambda record: replace(record, health_pending=False)},
        close="close",
    )
    surroundings = hold(
        HOST_RESOURCES,
        HostResources,
        settings.local_dir,
        monotonic=monotonic,
        core_limit=core_limit(),
        answers={"begin": dict, "at_a_failure": dict},
    )
    local = os.path.dirname(settings.local_dir)
    facts = (settings.facts.run_id, now_ns, surroundings, local, lambda: courier.clock)
    journal = hold(RECORDS, Journal, errand(RECORDS, courier.send), fs, run, *facts)
    guard = hold(GUARD, LoopWatchdog, monotonic=monotonic, answers={"stuck": 0})
    nowhere = {} if FILE in settings.inherited else {FILE: os.devnull}
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
        answers={"environment": lambda _: nowhere, "counts": dict},
    )
    rank_watch = hold(
        MONITOR,
        RankWatch,
        settings,
        monitor,
        journal,
        surroundings,
        errand(MONITOR, courier.send),
        monotonic,
        answers={"turn": lambda *_: iter(())},
    )
    locks = hold(BUILD_LOCKS, BuildLocks, settings.local_dir, monotonic, lambda text: courier.post(Notice(text)))
    return Components(watch, journal, guard, monitor, rank_watch, locks)

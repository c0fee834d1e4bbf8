"""Settings of one agent, and the launch of a worker that follows from them (pure)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ftslurm.agent.actions import Assignment
from ftslurm.agent.environment import (
    BOTH,
    STDERR,
    STDOUT,
    Program,
    RunFacts,
    streams_of,
    worker_command,
    worker_environment,
)
from ftslurm.agent.workers import Launch
from ftslurm.dataclasses import dataclass
from ftslurm.monitor.timeouts import Timeouts
from ftslurm.sharedfs.rundir import rank_directory


@dataclass(frozen=True)
class AgentSettings:
    """Settings that stay the same for this agent's life.

    Attributes:
        facts: see `RunFacts`.
        program: what the workers run.
        redirects, tee: see `parse_streams`; tee None shows both streams of rank 0.
        logs: directory under which the ranks' log files lie (the run directory, or --log-dir's).
        local_dir: node-local directory of this agent alone.
        inherited: the environment that workers start from.
        guardian: pidfd of the guardian; when the guardian ends, so does this agent.
        timeouts: as requested by the user.
        hang_signal: ends a rank that hangs, unless its own timer names another one.
        vitals_s: interval between samples of the ranks' vitals.
        trouble_s: an agent without workers gives up after so many seconds of failed access to the shared directory. A
            directory that *hangs* is waited for without limit.
        spare_imports: modules that a spare's standby workers import ahead; empty: it has none.
    """

    facts: RunFacts
    program: Program
    redirects: int | dict[int, int]
    tee: int | dict[int, int] | None
    logs: str
    local_dir: str
    inherited: Mapping[str, str]
    guardian: int
    timeouts: Timeouts
    hang_signal: int
    vitals_s: float
    trouble_s: float
    spare_imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A worker to be started.

    Attributes:
        launch: how.
        logs: the files that its output goes to.
        shown: those of them that are copied to the user's terminal, each with its stream (STDOUT or STDERR).
    """

    launch: Launch
    logs: tuple[str, ...]
    shown: tuple[tuple[str, int], ...]


def plan(
    settings: AgentSettings, assignment: Assignment, local_rank: int, agent_pid: int, monitor: Mapping[str, str]
) -> Plan:
    """Return how to start one worker of a round.

    Args:
        agent_pid: when that process ends, so does the worker.
        monitor: the rank monitor's part of the environment.
    """
    rank = assignment.first_rank + local_rank
    record_dir = os.path.join(settings.local_dir, f"{assignment.round:06d}", f"{rank:05d}")
    logs = rank_directory(settings.logs, assignment.round, rank)
    redirected = streams_of(settings.redirects, local_rank)
    paths = [os.path.join(logs, name) for name in ("stdout.log", "stderr.log")]
    files = [path if redirected & bit else None for path, bit in zip(paths, (STDOUT, STDERR), strict=True)]
    shown = BOTH if settings.tee is None and rank == 0 else streams_of(settings.tee or 0, local_rank)
    environment = worker_environment(settings.inherited, settings.facts, assignment, local_rank, record_dir)
    command = worker_command(settings.program, agent_pid, files[0], files[1], logs=settings.logs)
    return Plan(
        Launch(local_rank, rank, command, {**environment, **monitor}, record_dir, files[1]),
        tuple(path for path in files if path is not None),
        tuple((path, bit) for path, bit in zip(files, (STDOUT, STDERR), strict=True) if path and shown & bit),
    )

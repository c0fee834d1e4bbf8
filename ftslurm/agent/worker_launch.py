"""Launch of one worker: its command line, environment and files, and the start of its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from ftslurm import kernel
from ftslurm.agent.actions import Assignment
from ftslurm.agent.environment import BOTH, STDERR, STDOUT, streams_of, worker_command, worker_environment
from ftslurm.agent.settings import AgentSettings
from ftslurm.dataclasses import dataclass
from ftslurm.sharedfs.rundir import rank_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NO_INPUT = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)


@dataclass(frozen=True)
class WorkerLaunch:
    """One worker to start.

    Attributes:
        record_dir: node-local directory of its records.
        stderr: the file that its stderr goes to; None: it has none of its own.
        logs: the files that its output goes to.
        tee: those of them that are copied to the user's terminal, each with its stream (STDOUT or STDERR).
        own: variables that the agent adds to its own ones, for a worker in a container; None: there is no container.
    """

    local_rank: int
    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    record_dir: str
    stderr: str | None = None
    logs: tuple[str, ...] = ()
    tee: tuple[tuple[str, int], ...] = ()
    own: Mapping[str, str] | None = None


def launch_of(
    settings: AgentSettings, assignment: Assignment, local_rank: int, agent_pid: int, monitor: Mapping[str, str]
) -> WorkerLaunch:
    """Return how to start one worker of a round (pure).

    Args:
        agent_pid: when that process ends, so does the worker.
        monitor: the rank monitor's part of the environment.
    """
    output = settings.options.output
    rank = assignment.first_rank + local_rank
    record_dir = os.path.join(settings.local_dir, f"{assignment.round:06d}", f"{rank:05d}")
    logs = rank_directory(settings.logs, assignment.round, rank)
    redirected = streams_of(output.redirects, local_rank)
    paths = [os.path.join(logs, name) for name in ("stdout.log", "stderr.log")]
    files = [path if redirected & bit else None for path, bit in zip(paths, (STDOUT, STDERR), strict=True)]
    copied = BOTH if output.tee is None and rank == 0 else streams_of(output.tee or 0, local_rank)
    environment = worker_environment(settings.inherited, settings.facts, assignment, local_rank, record_dir)
    environment.update(monitor)
    contained = bool(settings.program.prefix)
    own = {name: value for name, value in environment.items() if settings.inherited.get(name) != value}
    inside = record_dir if contained else None
    return WorkerLaunch(
        local_rank,
        rank,
        worker_command(settings.program, agent_pid, files[0], files[1], logs=settings.logs, container=inside),
        environment,
        record_dir,
        files[1],
        tuple(path for path in files if path is not None),
        tuple((path, bit) for path, bit in zip(files, (STDOUT, STDERR), strict=True) if path and copied & bit),
        own if contained else None,
    )


def spawn(command: Sequence[str], environment: Mapping[str, str], stdin: Any) -> tuple[int, int]:
    """Start a worker process in a session of its own; return its pid and pidfd.

    Args:
        stdin: what posix_spawn does to its standard input, such as `NO_INPUT`.

    Raises:
        OSError: it cannot be started.
    """
    # Python ignores the first two, the agent the third; programs expect them to be as a shell leaves them.
    ignored = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU)
    try:
        return kernel.spawn(command, environment, [stdin], ignored)
    except OSError:
        # posix_spawn(3) does not report which of its steps failed.
        if stdin == NO_INPUT:
            os.close(os.open(NO_INPUT[2], NO_INPUT[3] | os.O_CLOEXEC))
        raise

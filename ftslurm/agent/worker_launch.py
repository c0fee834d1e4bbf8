"""Launch of one worker: its command line, environment and files, and the start of its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence, Set

from ftslurm import kernel
from ftslurm.agent.actions import Assignment
from ftslurm.agent.environment import STDERR, STDOUT, output_of, worker_command, worker_environment
from ftslurm.agent.option_groups import AUTO, ON
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.torchrun_options import PREFIX_TEMPLATE, expanded, substituted
from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.monitor.flight_server import SOCKET, VARIABLE
from ftslurm.sharedfs.rundir import rank_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NO_INPUT = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)


@dataclass(frozen=True)
class Filtered:
    """A file below the directory `root` that gets copies of the lines with one of these texts."""

    path: str
    root: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class WorkerLaunch:
    """One worker to start.

    Attributes:
        record_dir: node-local directory of its records.
        stderr: the file that its stderr goes to; None: it has none of its own.
        logs: the files that its output goes to.
        tee: those of them that are copied to the user's terminal, each with its stream (STDOUT or STDERR).
        prefix: of each of these lines.
        filtered: by stream, the file that lines with one of some texts are also copied to, and these texts.
        own: variables that the agent adds to its own ones, for a worker in a container; None: there is no container.
        cpus: the worker is bound to these; None: it is not bound.
    """

    local_rank: int
    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    record_dir: str
    stderr: str | None = None
    logs: tuple[str, ...] = ()
    tee: tuple[tuple[str, int], ...] = ()
    prefix: str = ""
    filtered: Mapping[int, Filtered] = field(default_factory=dict)
    own: Mapping[str, str] | None = None
    cpus: frozenset[int] | None = None


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
    redirected, copied = output_of(output, rank, local_rank)
    paths = [os.path.join(logs, name) for name in ("stdout.log", "stderr.log")]
    files = [path if redirected & bit else None for path, bit in zip(paths, (STDOUT, STDERR), strict=True)]
    environment = worker_environment(settings.inherited, settings.facts, assignment, local_rank, record_dir)
    environment.update(monitor)
    if output.flight_recorder == ON:
        environment[VARIABLE] = os.path.join(record_dir, SOCKET)
    if local_rank == 0 and settings.warm_imports == AUTO:
        environment["FTSLURM_IMPORTS"] = settings.imports_list
    contained = bool(settings.program.prefix)
    own = {name: value for name, value in environment.items() if settings.inherited.get(name) != value}
    inside = record_dir if contained else None
    program = replace(settings.program, arguments=substituted(settings.program.arguments, local_rank))
    return WorkerLaunch(
        local_rank,
        rank,
        worker_command(program, agent_pid, files[0], files[1], logs=settings.logs, container=inside),
        environment,
        record_dir,
        files[1],
        tuple(path for path in files if path is not None),
        tuple((path, bit) for path, bit in zip(files, (STDOUT, STDERR), strict=True) if path and copied & bit),
        _prefix(settings, rank, local_rank),
        _filtered(settings, assignment),
        own if contained else None,
        settings.cpus_of(local_rank),
    )


def _prefix(settings: AgentSettings, rank: int, local_rank: int) -> str:
    template = settings.inherited.get(PREFIX_TEMPLATE)
    if not template:
        return f"[rank {rank}] "
    return expanded(template, {"role_name": settings.facts.role, "rank": rank, "local_rank": local_rank})


def _filtered(settings: AgentSettings, assignment: Assignment) -> dict[int, Filtered]:
    """Return the files of the node's filtered lines; they lie in the directory of its first rank."""
    output = settings.options.output
    directory = rank_directory(settings.logs, assignment.round, assignment.first_rank)
    wanted = (
        (STDOUT, "filtered_stdout.log", output.duplicate_stdout_filters),
        (STDERR, "filtered_stderr.log", output.duplicate_stderr_filters),
    )
    return {bit: Filtered(os.path.join(directory, name), settings.logs, texts) for bit, name, texts in wanted if texts}


def spawn(
    command: Sequence[str], environment: Mapping[str, str], stdin: Any, cpus: frozenset[int] | None = None
) -> tuple[int, int]:
    """Start a worker process in a session of its own; return its pid and pidfd.

    Args:
        stdin: what posix_spawn does to its standard input, such as `NO_INPUT`.
        cpus: it is bound to these, and all that it starts; None: to those of this thread.

    Raises:
        OSError: it cannot be started.
    """
    # Python ignores the first two, the agent the third; programs expect them to be as a shell leaves them.
    ignored = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU)
    own = _bind(cpus) if cpus is not None else None
    try:
        return kernel.spawn(command, environment, [stdin], ignored)
    except OSError:
        # posix_spawn(3) does not report which of its steps failed.
        if stdin == NO_INPUT:
            os.close(os.open(NO_INPUT[2], NO_INPUT[3] | os.O_CLOEXEC))
        raise
    finally:
        if own is not None:
            _bind(own)


def _bind(cpus: Set[int]) -> set[int] | None:
    """Bind this thread, and thereby what it starts, to these CPUs; return its former ones, None if that failed.

    Also a container runtime or a program without Python begins with them, before it has a thread.
    """
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)
    except OSError:
        # The job has lost these CPUs meanwhile (cpuset(7)): a worker without a binding is better than none.
        return None
    return before

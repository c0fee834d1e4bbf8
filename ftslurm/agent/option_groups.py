"""The options of a run as data, in groups; each is passed whole to what uses it. Times in seconds."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.timeouts import Timeouts
from ftslurm.records.cause import IF_NODE
from ftslurm.terminal import INFO

ACT, REPORT, ON, OFF = "act", "report", "on", "off"
AUTO = ("auto",)
"""Of `--warm-imports`: what the ranks import."""
HEALTH_MODES = (ACT, REPORT, OFF)


@dataclass(frozen=True)
class PlacementOptions:
    """Which run, where, on which nodes; None: Slurm decides.

    Attributes:
        nnodes: smallest and largest number of nodes in a round.
        nproc_per_node: number of workers on each node, or "gpu", "cpu", "auto".
        max_restarts: of the whole job, over all nodes.
        rdzv_id: name of the run.
        shared_dir: directory of the run directories.
        local_addr: this node's address.
        interface: name or network of the interface whose address this node has for the others.
        port_range: lowest and highest port for a round's master and for the doorbell.
        local_nodes: number of agents on this machine instead of one per node of Slurm.
        requeue: ends after which the job starts again, see `ftslurm.job_end.requeue`.
        dry_run: check all, print what would be started, start nothing.
    """

    nnodes: tuple[int, int] | None
    nproc_per_node: str
    max_restarts: int
    rdzv_id: str | None
    shared_dir: str | None
    local_addr: str | None
    interface: str | None
    port_range: tuple[int, int] | None
    local_nodes: int | None
    dry_run: bool
    requeue: str = IF_NODE


@dataclass(frozen=True)
class ProgramOptions:
    """The program.

    Attributes:
        module: `name` is a Python module.
        no_python: `name` is a program, not a Python script.
        role: the workers' ROLE_NAME.
        warm_imports: modules that standby workers import ahead, or `AUTO`; empty: there are none.
        prefix: command that runs the workers' command lines, split; empty: none.
        name: script, module or program.
        arguments: the program's own.
        virtual_local_rank: each worker sees its GPU alone, as device 0, and LOCAL_RANK is 0.
        signals_to_handle: of TORCHELASTIC_SIGNALS_TO_HANDLE; None: the default.
        slurm_env: see `ftslurm.agent.slurm_variables`.
        numa_binding: CPUs that each worker is bound to, see `ftslurm.numa.choice`; None: it is not.
    """

    module: bool
    no_python: bool
    role: str
    warm_imports: tuple[str, ...]
    prefix: tuple[str, ...]
    name: str
    arguments: tuple[str, ...]
    virtual_local_rank: bool = False
    signals_to_handle: str | None = None
    slurm_env: str = "task"
    numa_binding: str | None = None


@dataclass(frozen=True)
class OutputOptions:
    """Output of the ranks.

    Attributes:
        log_dir: directory of the ranks' log files; None: the run directory.
        redirects: streams that go to files, see `ftslurm.agent.environment.parse_streams`.
        tee: streams that are also copied to the terminal; None: both of rank 0.
        flight_recorder: ON: torch records the ranks' collectives, and their agent can read them; or OFF.
        local_ranks_filter: local ranks whose output may be on the terminal; empty: all.
        duplicate_stdout_filters: texts; lines with one of them are also copied to a file of the node. Empty: none.
        duplicate_stderr_filters: the same for stderr.
        chosen: `redirects` was given, so the user knows where output goes.
        quiet, verbose: as given; `level` follows from them and the environment, see `ftslurm.agent.log_level`.
    """

    log_dir: str | None
    redirects: int | dict[int, int]
    tee: int | dict[int, int] | None
    flight_recorder: str = ON
    local_ranks_filter: tuple[int, ...] = ()
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    chosen: bool = False
    quiet: bool = False
    verbose: bool = False
    level: int = INFO


@dataclass(frozen=True)
class TimingOptions:
    """Times and policies of the rendezvous, and of stopping workers.

    Attributes:
        heartbeat_s: interval between two heartbeats of a node.
        node_timeout_s: a node without a heartbeat for this time is lost.
        join_timeout_s: wait for enough nodes.
        last_call_s: wait for more nodes when there are enough.
        rejoin: effect of a late node, see `ftslurm.rendezvous.observation.Timing`.
        grace_s: time between SIGTERM and SIGKILL.
    """

    heartbeat_s: float
    node_timeout_s: float
    join_timeout_s: float
    last_call_s: float
    rejoin: str
    grace_s: float


@dataclass(frozen=True)
class TimeoutOptions:
    """Time-outs of ranks.

    Attributes:
        configured: the time-outs; None in them: learned or default.
        hang_signal: ends a rank that hangs, unless its own timer names another one.
        auto_progress: ON, or OFF: what scripts do not report is not taken from their optimizers.
    """

    configured: Timeouts
    hang_signal: int
    auto_progress: str = ON


@dataclass(frozen=True)
class HealthOptions:
    """Health checks.

    Attributes:
        mode: ACT on findings, REPORT them only, OFF: run no check.
        every_s: interval of checks while ranks run or the node waits as a spare; 0: none.
        skip: names of checks that are not run.
        command: a custom check.
        paths: directories that every node must be able to use.
    """

    mode: str
    every_s: float
    skip: tuple[str, ...]
    command: str | None
    paths: tuple[str, ...]


@dataclass(frozen=True)
class ExclusionOptions:
    """Exclusion of nodes.

    Attributes:
        after: number of first failures that exclude a node; 0: never.
        for_s: duration of an exclusion.
        directory: of the records; None: beside the run directories.
        drain: ask Slurm to drain a node whose hardware is broken.
    """

    after: int
    for_s: float
    directory: str | None
    drain: bool


@dataclass(frozen=True)
class EventOptions:
    """Events of the run.

    Attributes:
        command: run at each event, by sh -c; None: none.
    """

    command: str | None


@dataclass(frozen=True)
class StopOptions:
    """Orderly stops.

    Attributes:
        grace_s: time from a stop signal to SIGKILL; None: all that Slurm gives.
        warn_before_end_s: seconds before the end of the job at which the ranks are stopped; None: by their saves.
        stop_when: a notice that stops the run: a file, a command, or "drain"; None: none.
    """

    warn_before_end_s: float | None
    stop_when: StopWhen | None
    grace_s: float | None = None


@dataclass(frozen=True)
class StopWhen:
    """A notice of a node's own: one of these.

    Attributes:
        file: it appears.
        command: a shell command; it succeeds.
        drain: Slurm drains a node of the job.
    """

    file: str | None = None
    command: str | None = None
    drain: bool = False


@dataclass(frozen=True)
class RunOptions:
    """All options of `ftslurm run`; see each group."""

    placement: PlacementOptions
    program: ProgramOptions
    output: OutputOptions
    timing: TimingOptions
    timeouts: TimeoutOptions
    stop: StopOptions
    health: HealthOptions
    exclusion: ExclusionOptions
    events: EventOptions

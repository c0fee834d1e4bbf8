"""The registry of faults: injection, removal, weight and permitted consequences of each.

The permitted consequences are the reasons that the report may give for a round that the fault ended (no reason: it must
not end any), and permanent losses (a node, or the job itself). `chaos_parts.judge` checks them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from chaos_parts.processes import AGENT, FTSRUN, GUARDIAN, RANK, SRUN, STEPD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from chaos_parts.processes import Process
    from chaos_parts.world import World

GUARDIAN_AND_AGENT, NODE, NOWHERE = "guardian and agent", "node", "nowhere"
DIRECTORY = "directory"

THIS_RANK, THIS_NODE, ANYWHERE = "this rank", "this node", "anywhere"
STOPPED = "stopped"
"""Pseudo-cause of a round that was stopped from outside, for which the report gives no cause."""

Undo = Callable[[], None]


@dataclass(frozen=True)
class Target:
    """Target of a fault.

    Attributes:
        job: the Slurm job id.
        node: its name, None for a fault without a node.
        processes: on it, the main one first.
    """

    job: str
    node: str | None = None
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Reason:
    """A reason that a report may give for the end of a round.

    Attributes:
        causes: names of causes (`ftslurm.failures.causes`), or STOPPED.
        blames: THIS_RANK: the target rank; THIS_NODE: the node, or a rank on it; ANYWHERE.
    """

    causes: frozenset[str]
    blames: str


@dataclass(frozen=True)
class Fault:
    """One row of the registry.

    Attributes:
        name: the row's key.
        weight: relative frequency.
        hits: a kind of process, NODE, or NOWHERE.
        inject: injects it; returns the function that removes it, or None.
        last_s: the shortest and the longest time until its removal, in seconds.
        reasons: see the module.
        window_s: time after its end in which a round may still end by it, in seconds.
        takes_node: the node may be lost to the job permanently.
        ends_job: the job may end by it, in any state.
        leaves_files: the killed processes cannot clean their node's local disk.
        spares_start: not injected while the job starts.
        shared: only one fault of this name may be active at a time; empty: any number.
    """

    name: str
    weight: int
    hits: str
    inject: Callable[[World, Target], Undo | None]
    last_s: tuple[float, float] = (0.0, 0.0)
    reasons: tuple[Reason, ...] = ()
    window_s: float = 20.0
    takes_node: bool = False
    ends_job: bool = False
    leaves_files: bool = False
    spares_start: bool = False
    shared: str = ""


def _because(*causes: str, blames: str) -> Reason:
    return Reason(frozenset(causes), blames)


def _send(number: signal.Signals) -> Callable[[World, Target], Undo | None]:
    def inject(world: World, target: Target) -> Undo | None:
        for process in target.processes:
            world.signal(process, number)
        return None

    return inject


def _pause(world: World, target: Target) -> Undo:
    for process in target.processes:
        world.signal(process, signal.SIGSTOP)

    def undo() -> None:
        for process in target.processes:
            world.signal(process, signal.SIGCONT)

    return undo


def _kill_node(world: World, target: Target) -> Undo:
    assert target.node is not None
    node = target.node
    world.kill_node(node)
    return lambda: world.revive_node(node)


def _freeze_node(world: World, target: Target) -> Undo:
    assert target.node is not None
    node = target.node
    world.freeze_node(node)
    return lambda: world.thaw_node(node)


def _cut_link(world: World, target: Target) -> Undo:
    assert target.node is not None
    node = target.node
    world.cut_link(node)
    return lambda: world.restore_link(node)


def _block_datagrams(world: World, _: Target) -> Undo:
    world.lab("block-datagrams")

    def undo() -> None:
        world.lab("allow-datagrams")

    return undo


def _let(fault: str) -> Callable[[World, Target], Undo | None]:
    """Inject a fault into the shared directory; with a target node, on that node alone."""

    def inject(world: World, target: Target) -> Undo:
        world.shared.let(fault, target.node)
        return world.shared.mend

    return inject


def _rename(world: World, _: Target) -> Undo:
    world.shared.move_away()
    return world.shared.move_back


def _hold_a_commit(world: World, target: Target) -> Undo:
    """Freeze a node while a rename of one of its ranks is in flight: it is executed when the node thaws."""
    assert target.node is not None
    node = target.node
    world.shared.hold_a_commit(node)
    world.freeze_node(node)

    def undo() -> None:
        world.shared.mend()
        world.thaw_node(node)

    return undo


def _restart_daemon(name: str | None) -> Callable[[World, Target], Undo | None]:
    """Kill slurmctld, or with None the slurmd of the target node, and restart it."""

    def inject(world: World, target: Target) -> Undo:
        daemon = name or target.node or ""
        world.kill_daemon(daemon, target.job)
        return lambda: world.start_daemon(daemon)

    return inject


def _slurm(*arguments: str) -> Callable[[World, Target], Undo | None]:
    def inject(world: World, target: Target) -> Undo | None:
        world.slurm(*arguments, target.job)
        return None

    return inject


def _preempt(world: World, target: Target) -> Undo:
    """Submit a job of a partition with a higher priority, which needs all nodes."""
    # Here, since slurmctld forgets it when it is killed.
    world.slurm("scontrol", "create", "PartitionName=high", "Nodes=ALL", "PriorityTier=10", "PreemptMode=OFF")
    options = ("--parsable", "--partition=high", f"--nodes={len(world.nodes)}", "--exclusive", "--output=/dev/null")
    other = world.slurm("sbatch", *options, "--wrap=sleep 1").strip()
    return lambda: None if not other else _cancel(world, other)


def _cancel(world: World, job: str) -> None:
    world.slurm("scancel", job)


def _shorten(world: World, target: Target) -> Undo:
    """Have the job's time end as soon as possible; the next start has its time again."""
    world.slurm("scontrol", "update", f"jobid={target.job}", "timelimit=1")

    def undo() -> None:
        world.slurm("scontrol", "update", f"jobid={target.job}", "timelimit=60")

    return undo


_CONNECTION = ("peer-reset", "collective-timeout")
_STORAGE = ("spawn", "log-file", "disk-full", "filesystem", "read-only", "missing-file", "write-failed")
_LOST = (_because("node-lost", "agent-lost", blames=THIS_NODE),)
_CUT = (
    *_LOST,
    _because(*_CONNECTION, "hang", blames=ANYWHERE),
    # Not connected with the others when a round began.
    _because("unreachable", blames=ANYWHERE),
)
_STOPPED = (_because(STOPPED, blames=ANYWHERE),)
_UNABLE = (_because(*_STORAGE, blames=ANYWHERE),)
"""A round that forms while the directory fails may fail to start; a running round is not ended by it."""

_RANKS = (
    Fault("rank-killed", 10, RANK, _send(signal.SIGKILL), reasons=(_because("sigkill", blames=THIS_RANK),)),
    Fault("rank-segfault", 4, RANK, _send(signal.SIGSEGV), reasons=(_because("segfault", blames=THIS_RANK),)),
    # A rank that has just started has no handlers of these signals yet and is killed by them.
    Fault("rank-raises", 4, RANK, _send(signal.SIGUSR2), reasons=(_because("exception", "signal", blames=THIS_RANK),)),
    Fault("rank-exits", 4, RANK, _send(signal.SIGUSR1), reasons=(_because("exit", "signal", blames=THIS_RANK),)),
    # Before its first call of should_stop it is killed by it.
    Fault("rank-signalled", 4, RANK, _send(signal.SIGTERM), ends_job=True, spares_start=True,
          reasons=(*_STOPPED, _because("terminated", "signal", blames=THIS_RANK))),
    Fault("rank-stopped", 4, RANK, _pause, last_s=(1.0, 8.0)),
    # Before its first heartbeat no time-out is active; the others' waits for it time out then.
    Fault("rank-hung", 2, RANK, _send(signal.SIGSTOP), window_s=90.0, spares_start=True,
          reasons=(_because("hang", blames=THIS_RANK), _because("collective-timeout", blames=ANYWHERE))),
)  # fmt: skip
_AGENTS = (
    Fault("agent-killed", 5, AGENT, _send(signal.SIGKILL), reasons=_LOST),
    Fault("agent-stopped", 3, AGENT, _send(signal.SIGSTOP)),
    Fault("agent-terminated", 1, AGENT, _send(signal.SIGTERM), reasons=(*_LOST, *_STOPPED), takes_node=True),
    Fault("guardian-killed", 4, GUARDIAN, _send(signal.SIGKILL), reasons=_LOST, takes_node=True, leaves_files=True),
    Fault("guardian-stopped", 3, GUARDIAN, _pause, last_s=(1.0, 20.0)),
    Fault("guardian-and-agent-killed", 3, GUARDIAN_AND_AGENT, _send(signal.SIGKILL), reasons=_LOST, takes_node=True,
          leaves_files=True),
)  # fmt: skip
_NODES = (
    Fault("node-killed", 6, NODE, _kill_node, last_s=(70.0, 90.0), reasons=_LOST, window_s=0.0, takes_node=True,
          leaves_files=True),
    Fault("node-rebooted-quickly", 4, NODE, _kill_node, last_s=(2.0, 2.5), reasons=_LOST, window_s=40.0,
          takes_node=True, leaves_files=True),
    Fault("node-rebooted-slowly", 3, NODE, _kill_node, last_s=(15.0, 30.0), reasons=_LOST, window_s=40.0,
          takes_node=True, leaves_files=True),
    Fault("node-frozen-briefly", 4, NODE, _freeze_node, last_s=(1.0, 5.0), reasons=()),
    Fault("node-frozen", 5, NODE, _freeze_node, last_s=(10.0, 30.0), reasons=_LOST, window_s=30.0, takes_node=True,
          leaves_files=True),
    Fault("commit-held", 3, NODE, _hold_a_commit, last_s=(12.0, 25.0), reasons=_LOST, window_s=30.0, takes_node=True,
          leaves_files=True, spares_start=True, shared=DIRECTORY),
)  # fmt: skip
_NETWORK = (
    Fault("link-cut-briefly", 5, NODE, _cut_link, last_s=(1.0, 7.0), reasons=_CUT, window_s=30.0),
    Fault("link-cut", 4, NODE, _cut_link, last_s=(10.0, 20.0), reasons=_CUT, window_s=45.0, takes_node=True,
          leaves_files=True),
    Fault("datagrams-blocked", 2, NOWHERE, _block_datagrams, last_s=(10.0, 60.0), shared="datagrams"),
)  # fmt: skip
# Agents stopped while the directory hangs may still be blocked in it when Slurm kills them.
_DIRECTORY = (
    Fault("directory-full", 4, NOWHERE, _let("full"), (6.0, 24.0), _UNABLE, shared=DIRECTORY),
    Fault("directory-refuses-writes", 4, NOWHERE, _let("write-errors"), (6.0, 24.0), _UNABLE, shared=DIRECTORY),
    Fault("directory-fails", 3, NOWHERE, _let("errors"), (3.0, 24.0), _UNABLE, shared=DIRECTORY),
    Fault("directory-read-only", 3, NOWHERE, _let("read-only"), (6.0, 24.0), _UNABLE, shared=DIRECTORY),
    Fault("directory-hung", 4, NOWHERE, _let("hang"), (5.0, 20.0), _UNABLE, leaves_files=True, shared=DIRECTORY),
    Fault("directory-renamed", 4, NOWHERE, _rename, (2.0, 15.0), _UNABLE, shared=DIRECTORY),
    Fault("directory-hung-on-a-node", 3, NODE, _let("hang"), (3.0, 20.0), (*_LOST, *_UNABLE), 30.0, leaves_files=True,
          shared=DIRECTORY),
    Fault("directory-fails-on-a-node", 3, NODE, _let("errors"), (3.0, 20.0), (*_LOST, *_UNABLE), 30.0,
          shared=DIRECTORY),
)  # fmt: skip
_SLURM = (
    Fault("slurmctld-killed", 3, NOWHERE, _restart_daemon("slurmctld"), last_s=(3.0, 15.0), spares_start=True,
          shared="slurmctld"),
    Fault("slurmd-killed", 3, NODE, _restart_daemon(None), last_s=(2.0, 5.0), spares_start=True),
    Fault("slurmstepd-killed", 3, STEPD, _send(signal.SIGKILL), reasons=_LOST, takes_node=True, leaves_files=True),
    Fault("srun-killed", 2, SRUN, _send(signal.SIGKILL), reasons=(*_LOST, *_STOPPED), ends_job=True, leaves_files=True),
    Fault("ftsrun-killed", 2, FTSRUN, _send(signal.SIGKILL), reasons=(*_LOST, *_STOPPED), ends_job=True,
          leaves_files=True),
    Fault("ftsrun-terminated", 2, FTSRUN, _send(signal.SIGTERM), reasons=_STOPPED, ends_job=True),
    Fault("scancel", 3, NOWHERE, _slurm("scancel"), reasons=_STOPPED, ends_job=True, spares_start=True),
    Fault("stop-requested", 4, NOWHERE, _slurm("ftslurm", "stop"), reasons=_STOPPED, ends_job=True, spares_start=True),
    Fault("preempted", 4, NOWHERE, _preempt, (20.0, 30.0), _STOPPED, window_s=30.0, spares_start=True,
          shared="preempted"),
    Fault("time-limit", 2, NOWHERE, _shorten, (100.0, 110.0), _STOPPED, window_s=30.0, ends_job=True,
          spares_start=True, shared="time-limit"),
    Fault("requeue", 4, NOWHERE, _slurm("scontrol", "requeue"), reasons=_STOPPED, window_s=30.0, spares_start=True),
)  # fmt: skip

FAULTS: tuple[Fault, ...] = (*_RANKS, *_AGENTS, *_NODES, *_NETWORK, *_DIRECTORY, *_SLURM)
BY_NAME = {fault.name: fault for fault in FAULTS}

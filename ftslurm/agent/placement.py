"""This agent's run, attempt, node and position, from Slurm's environment or the local launcher's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ftslurm.agent.option_groups import PlacementOptions
from ftslurm.dataclasses import dataclass
from ftslurm.nodes.exclude import is_folder_name
from ftslurm.sharedfs.rundir import RUNS_FOLDER, RunDirectoryError, check_name
from ftslurm.slurm.environment import SlurmEnvironmentError, SlurmJob, from_environ
from ftslurm.terminal import UsageError

LOCAL_NODE, LOCAL_ATTEMPT = "FTSLURM__LOCAL_NODE", "FTSLURM__LOCAL_ATTEMPT"
"""Set by the launcher of `--local-nodes` for its agents: `index/count`, and their common attempt."""


def local_environment(name: str, count: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `--local-nodes` adds for its first agent (pure).

    Args:
        name: of the attempt, and of a run that nothing else names: neither an option nor torchrun's variable.
        count: number of agents.
        environment: the launcher's.
    """
    named = any(environment.get(variable) for variable in ("FTSLURM_RDZV_ID", "PET_RDZV_ID"))
    own = {LOCAL_NODE: f"0/{count}", LOCAL_ATTEMPT: f"{name}.0"}
    return own if named else {**own, "FTSLURM_RDZV_ID": name}


@dataclass(frozen=True)
class Placement:
    """This agent's run, attempt, node and position.

    Attributes:
        run_dir: absolute path of the run directory.
        position: index in the node order, from 0.
        expected: all nodes of this attempt, in their order.
        address: by which other nodes reach this one.
        job: from Slurm's environment; None without Slurm.
    """

    run_id: str
    run_dir: str
    attempt: str
    node: str
    position: int
    expected: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    address: str
    job: SlurmJob | None


def place(
    options: PlacementOptions, environment: Mapping[str, str], cwd: str, hostname: str, unique: str, batch: bool = False
) -> Placement:
    """Determine this agent's placement.

    Args:
        cwd: absolute.
        hostname: this machine's name.
        unique: text unique to this start of a run outside Slurm.
        batch: this process only checks, on behalf of the tasks that srun will start.

    Raises:
        UsageError: Slurm's environment and the options contradict each other; one line of reason.
    """
    try:
        job = None if options.local_nodes or LOCAL_NODE in environment else from_environ(environment)
        run_id = check_name("--rdzv-id", options.rdzv_id or (job.run_id if job else f"local-{unique}"))
        if is_folder_name(run_id):
            raise UsageError(
                f"--rdzv-id {run_id}: that name is reserved for the records of excluded nodes; choose another"
            )
        run_dir = os.path.join(shared_directory(options.shared_dir, job, cwd), run_id)
        if LOCAL_NODE in environment:
            return _local(options, environment, run_id, run_dir)
        if job is None:
            return _alone(options, run_id, run_dir, hostname, f"local-{unique}.0")
        return _in_slurm(options, job, run_id, run_dir, hostname, batch)
    except (SlurmEnvironmentError, RunDirectoryError) as error:
        raise UsageError(str(error)) from None


def _address_of(options: PlacementOptions, node: str) -> str | None:
    """Return the address that `--local-addr` has for this node; None: it has none."""
    given = options.local_addr
    if given is None or "=" not in given:
        return given
    pairs = dict(part.strip().partition("=")[::2] for part in given.split(","))
    if not pairs.get(node):
        raise UsageError(f"--local-addr {given}: no address for node {node}; expected NODE=ADDRESS for each node")
    return pairs[node]


def shared_directory(chosen: str | None, job: SlurmJob | None, cwd: str) -> str:
    """Return where run directories lie: as chosen, else `ftslurm-runs` where the job was submitted."""
    base = job.submit_dir if job and job.submit_dir else cwd
    return os.path.abspath(os.path.join(base, chosen or RUNS_FOLDER))


def _local(options: PlacementOptions, environment: Mapping[str, str], run_id: str, run_dir: str) -> Placement:
    index, _, count = environment[LOCAL_NODE].partition("/")
    names = tuple(f"local{i}" for i in range(int(count)))
    low, high = options.nnodes or (len(names), len(names))
    return Placement(
        run_id,
        run_dir,
        environment[LOCAL_ATTEMPT],
        names[int(index)],
        int(index),
        names,
        low,
        high,
        _address_of(options, names[int(index)]) or "127.0.0.1",
        None,
    )


def _alone(options: PlacementOptions, run_id: str, run_dir: str, hostname: str, attempt: str) -> Placement:
    low = options.nnodes[0] if options.nnodes else 1
    if low > 1:
        raise UsageError(
            f"--nnodes {low}: this is one node outside Slurm; use ftsrun or srun inside a job, or --local-nodes {low}"
        )
    node = check_name("host name", hostname.partition(".")[0])
    return Placement(
        run_id, run_dir, attempt, node, 0, (node,), low, 1, _address_of(options, node) or "127.0.0.1", None
    )


def _in_slurm(
    options: PlacementOptions, job: SlurmJob, run_id: str, run_dir: str, hostname: str, batch: bool
) -> Placement:
    nodes = job.node_list
    if not job.in_step and len(nodes) > 1 and not batch:
        raise UsageError(
            f"job {job.job_id} has {len(nodes)} nodes, but this is not a task on each of them; "
            "start it with ftsrun, or srun --ntasks-per-node=1 ftslurm run …"
        )
    if job.in_step and (job.localid or (job.ntasks_per_node or 1) > 1):
        # All agents exit here: a single one would wait for the other nodes.
        raise UsageError(
            "more than one ftslurm agent on a node; expected srun --ntasks-per-node=1 (and --nproc-per-node workers)"
        )
    node = check_name("Slurm's node name", job.node_name or hostname.partition(".")[0])
    expected = nodes or (node,)
    low, high = options.nnodes or (len(expected), len(expected))
    if low > len(expected):
        raise UsageError(f"--nnodes {low}: job {job.job_id} has only {len(expected)} nodes here ({','.join(expected)})")
    position = expected.index(node) if node in expected else job.node_id or 0
    if batch and options.local_addr is not None and len(expected) > 1:
        # The agents of all nodes get this same command line.
        if "=" not in options.local_addr:
            raise UsageError(
                f"--local-addr {options.local_addr}: one address for {len(expected)} nodes; expected --interface "
                f"(a name or network), or an address for each: {node}=ADDRESS,…"
            )
        for each in expected:
            _address_of(options, each)
        return Placement(run_id, run_dir, job.attempt, node, position, expected, low, high, node, job)
    address = _address_of(options, node) or ("127.0.0.1" if len(expected) == 1 else node)
    return Placement(run_id, run_dir, job.attempt, node, position, expected, low, high, address, job)

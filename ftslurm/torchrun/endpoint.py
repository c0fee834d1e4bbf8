"""Endpoint of this torchrun agent: its run directory, its name, its position among the nodes, and its attempt."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ftslurm import __version__
from ftslurm.dataclasses import dataclass
from ftslurm.records.state import CLOSED, State
from ftslurm.sharedfs.ownership import user_name
from ftslurm.sharedfs.rundir import RunDirectory, RunDirectoryError, check_name, open_run
from ftslurm.slurm.environment import SlurmEnvironmentError, SlurmJob, from_environ
from ftslurm.torchrun.options import WrongOption

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters

NO_ID = "none"
"""torchrun's default run id."""


@dataclass(frozen=True)
class Endpoint:
    """This agent's endpoint.

    Attributes:
        node: its unique name.
        position: index in the node order, from 0; agents with the same position are ordered by name.
        expected: all nodes of the attempt in their order; empty if unknown.
        address: this node's address for other nodes.
        attempts: returns the name of the run's n-th attempt, from 0; each begins after the previous one was closed.
    """

    run: RunDirectory
    run_id: str
    node: str
    position: int
    expected: tuple[str, ...]
    address: str
    attempts: Callable[[int], str]


def open_endpoint(params: RendezvousParameters, protocol: str) -> Endpoint:
    """Compute this agent's endpoint and open its run directory.

    Raises:
        WrongOption: the message is one line.
    """
    try:
        job = _job(os.environ, params.max_nodes)
        run_id = params.run_id
        if run_id == NO_ID and job is not None:
            run_id = job.run_id
        root = os.path.join(_endpoint(params.endpoint), check_name("--rdzv-id", run_id))
        hostname = check_name("host name", socket.gethostname().partition(".")[0])
        node, position, expected = _name(job, hostname, os.getpid())
        address = params.local_addr or choose_address(job, socket.gethostname(), params.max_nodes, _resolves)
        run = open_run(root, user_name(), time.time_ns(), __version__)
    except (SlurmEnvironmentError, RunDirectoryError) as error:
        raise WrongOption(str(error).replace("--shared-dir", "--rdzv-endpoint")) from None
    opened = Endpoint(run, run_id, node, position, expected, address, attempt_names(job))
    _check_protocol(opened, protocol)
    return opened


def _job(environment: Mapping[str, str], max_nodes: int) -> SlurmJob | None:
    """Return Slurm's job; for a loop of one-node sruns that form one world, the job without its step."""
    job = from_environ(environment)
    if job is not None and job.in_step and len(job.node_list) == 1 and max_nodes > 1:
        return from_environ({key: value for key, value in environment.items() if not key.startswith("SLURM_STEP")})
    return job


def _endpoint(endpoint: str) -> str:
    if not endpoint or re.fullmatch(r"[^/]*:[0-9]*", endpoint):
        found = f"found {endpoint!r}" if endpoint else "found nothing"
        raise WrongOption(f"--rdzv-endpoint: expected a directory that all nodes share, {found}")
    return os.path.abspath(endpoint)


def _name(job: SlurmJob | None, hostname: str, pid: int) -> tuple[str, int, tuple[str, ...]]:
    """Return this agent's name, its position and the names of all agents, as far as known."""
    if job is None:
        return f"{hostname}-{pid}", 0, ()
    node = check_name("Slurm's node name", job.node_name or hostname)
    position = job.node_list.index(node) if node in job.node_list else job.node_id or 0
    if job.in_step and (job.ntasks_per_node or 1) == 1:
        return node, position, job.node_list
    # Several agents on a node (or an unknown number): the process id makes the name unique.
    return f"{node}-{pid}", position, ()


def choose_address(job: SlurmJob | None, hostname: str, max_nodes: int, resolves: Callable[[str], bool]) -> str:
    """Return this node's address for other nodes, if the user has not set one.

    Not getfqdn, which torch uses: if /etc/hosts lists the host after localhost, it returns "localhost" on every node.

    Raises:
        WrongOption: this node's resolver resolves none of its names.
    """
    if max_nodes == 1:
        return "127.0.0.1"
    names = [job.node_name] if job is not None and job.node_name is not None else []
    names.append(hostname)
    for name in names:
        if resolves(name):
            return name
    raise WrongOption(
        f"{' and '.join(names)}: this node cannot resolve its own name; set its address with --local-addr"
    )


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def attempt_names(job: SlurmJob | None) -> Callable[[int], str]:
    """Return the function that names attempts: `<job>[.<step>].<restart>`, outside Slurm `torchrun.<number>`.

    A step is an attempt of its own: a batch script may start torchrun several times with one run id.
    """
    if job is None:
        return lambda number: f"torchrun.{number}"
    step = f".{job.step_id}" if job.step_id is not None else ""
    return lambda number: f"{job.job_id}{step}{f'.again{number}' if number else ''}.{job.restart_count}"


def choose_attempt(attempts: Callable[[int], str], state: State | None, fixed_size: bool) -> str:
    """Return the attempt to take part in: the open one, or the next one.

    A closed rendezvous stays closed for late nodes. With a fixed number of nodes there are no late nodes, so an agent
    that finds it closed has been restarted.
    """
    number = 0
    if state is None or not fixed_size:
        return attempts(0)
    while attempts(number) in state.attempts and not (attempts(number) == state.attempt and state.phase != CLOSED):
        number += 1
    return attempts(number)


def _check_protocol(endpoint: Endpoint, protocol: str) -> None:
    """Refuse a run directory used with the other protocol: the agents would never find each other."""
    from ftslurm.torchrun.options import DYNAMIC

    other = endpoint.run.state if protocol == DYNAMIC else os.path.join(endpoint.run.root, DYNAMIC)
    try:
        taken = any(name.endswith(".json") or protocol != DYNAMIC for name in os.listdir(other))
    except FileNotFoundError:
        return
    if taken:
        found = "the fold protocol" if protocol == DYNAMIC else "protocol=dynamic"
        raise WrongOption(f"run directory {endpoint.run.root}: its agents use {found}; choose another --rdzv-id")

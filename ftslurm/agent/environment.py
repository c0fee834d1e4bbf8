"""The environment and command line of a worker: torchrun's names, and a few of ftslurm's own.

Source of the names: torch.distributed.run ("Environment Variables") and LocalElasticAgent._start_workers (torch 2.13).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ftslurm.agent.actions import Assignment
from ftslurm.agent.guardian import SUPERVISOR
from ftslurm.agent.option_groups import OutputOptions
from ftslurm.agent.slurm_variables import STEP, inherited_variables, variables_of_task
from ftslurm.dataclasses import dataclass
from ftslurm.round_variables import OF_THE_ROUND

# Workers do not inherit ftslurm's options; the agent's own place in the Slurm step stays visible.
_OURS_KEPT = frozenset({"FTSLURM_SHARED_DIR", SUPERVISOR})
# By its path, not by -m: see there.
_START = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "boot", "worker.py")


@dataclass(frozen=True)
class Program:
    """The user's program.

    Attributes:
        kind: "script" (a Python file), "module" (`python -m`) or "exec" (any program).
        name: the file, module or program.
        arguments: everything after it, unchanged.
        python: the interpreter for scripts and modules.
        prefix: command that runs the worker's command line, such as a container runtime; empty: none.
    """

    kind: str
    name: str
    arguments: tuple[str, ...]
    python: str
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """Facts common to all workers of this node in all rounds.

    Attributes:
        virtual_local_rank: as torchrun's option of that name.
        signals: for TORCHELASTIC_SIGNALS_TO_HANDLE; None: the default.
        slurm_env: which of Slurm's variables the workers have, see `ftslurm.agent.slurm_variables`.
    """

    run_id: str
    run_dir: str
    node: str
    role: str
    virtual_local_rank: bool = False
    signals: str | None = None
    slurm_env: str = STEP


def worker_environment(
    inherited: Mapping[str, str], facts: RunFacts, assignment: Assignment, local_rank: int, record_dir: str
) -> dict[str, str]:
    """Return the whole environment of one worker.

    Args:
        inherited: the agent's own environment.
        facts: see `RunFacts`.
        assignment: this node's part in the round.
        local_rank: 0 to slots - 1.
        record_dir: node-local directory for the worker's error file, stacks and progress.
    """
    rank = assignment.first_rank + local_rank
    environment = standby_environment(inherited, facts, assignment.slots, local_rank)
    environment.update(
        RANK=str(rank),
        GROUP_RANK=str(assignment.group_rank),
        ROLE_RANK=str(rank if assignment.first_role_rank is None else assignment.first_role_rank + local_rank),
        WORLD_SIZE=str(assignment.world_size),
        GROUP_WORLD_SIZE=str(assignment.group_world_size),
        ROLE_WORLD_SIZE=str(assignment.role_world_size or assignment.world_size),
        MASTER_ADDR=assignment.master.address,
        MASTER_PORT=str(assignment.master.port),
        TORCHELASTIC_RESTART_COUNT=str(assignment.restart_count),
        TORCHELASTIC_MAX_RESTARTS=str(assignment.max_restarts),
        TORCHELASTIC_ERROR_FILE=f"{record_dir}/error.json",
        FTSLURM_ATTEMPT=assignment.attempt,
        FTSLURM_ROUND=str(assignment.round),
        FTSLURM_RECORD_DIR=record_dir,
    )
    environment.update(variables_of_task(inherited, facts.slurm_env, assignment, local_rank))
    if assignment.avoid:
        environment["FTSLURM_AVOID_CHECKPOINT"] = "\n".join(assignment.avoid)
    return environment


def standby_environment(inherited: Mapping[str, str], facts: RunFacts, slots: int, local_rank: int) -> dict[str, str]:
    """Return the part of a worker's environment that is known before there is a round for it.

    Args:
        inherited, facts, local_rank: see `worker_environment`.
        slots: workers on this node.
    """
    environment = {
        name: value
        for name, value in inherited_variables(inherited, facts.slurm_env).items()
        if (not name.startswith("FTSLURM_") or name in _OURS_KEPT) and name not in OF_THE_ROUND
    }
    environment.update(
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(slots),
        ROLE_NAME=facts.role,
        TORCHELASTIC_RUN_ID=facts.run_id,
        TORCHELASTIC_USE_AGENT_STORE="False",
        FTSLURM_RUN_DIR=facts.run_dir,
        FTSLURM_RUN_ID=facts.run_id,
        FTSLURM_NODE=facts.node,
    )
    if facts.virtual_local_rank:
        # The heartbeats and the error record name the true one.
        environment.update(LOCAL_RANK="0", FTSLURM_LOCAL_RANK=str(local_rank))
        environment["CUDA_VISIBLE_DEVICES"] = _own_device(inherited.get("CUDA_VISIBLE_DEVICES"), local_rank)
    if facts.signals is not None:
        environment["TORCHELASTIC_SIGNALS_TO_HANDLE"] = facts.signals
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    environment.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    if slots > 1:
        # As torchrun: several ranks with a thread per core each would oversubscribe the cores.
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _own_device(visible: str | None, local_rank: int) -> str:
    """Return the one device of a worker, of those visible to the agent (LocalElasticAgent._set_local_rank_env)."""
    devices = visible.split(",") if visible is not None else []
    return devices[local_rank].strip() if local_rank < len(devices) else str(local_rank)


def worker_command(
    program: Program,
    parent: int,
    stdout: str | None,
    stderr: str | None,
    standby: Sequence[str] = (),
    logs: str | None = None,
    container: str | None = None,
) -> list[str]:
    """Return the command line that starts one worker by way of `ftslurm/boot/worker.py`.

    Args:
        program: the user's program.
        parent: the agent's pid.
        stdout, stderr: files that the worker opens for its output; None: it inherits the agent's.
        logs: directory below which these files lie; from there on, all must belong to this user alone.
        standby: options of a standby worker, which waits for its order, see `ftslurm.standby`; empty: it is none.
        container: the rank's record directory, if the program has a prefix: see `ftslurm.container`.
    """
    command: list[str] = [*program.prefix, program.python, "-u", _START, "--parent", str(parent)]
    if container is not None:
        command += ["--container", container]
    command += standby
    if logs is not None:
        command += ["--log-root", logs]
    if stdout is not None:
        command += ["--log-stdout", stdout]
    if stderr is not None:
        command += ["--log-stderr", stderr]
    command += [f"--{program.kind}", program.name, "--", *program.arguments]
    return command


STDOUT, STDERR, BOTH = 1, 2, 3


def parse_streams(option: str, text: str) -> int | dict[int, int]:
    """Read torchrun's `--redirects`/`--tee` value: 0 none, 1 stdout, 2 stderr, 3 both; or `0:3,2:1` by local rank.

    Raises:
        ValueError: with one line that names `option`.
    """
    expected = f"{option} {text!r}: expected 0, 1, 2 or 3 (none, stdout, stderr, both), or like 0:3,2:1 by local rank"
    if text in ("0", "1", "2", "3"):
        return int(text)
    streams: dict[int, int] = {}
    for item in text.split(","):
        rank, colon, stream = item.partition(":")
        is_rank = rank.isascii() and rank.strip().isdigit() and len(rank) <= 9
        if not colon or not is_rank or stream.strip() not in ("0", "1", "2", "3"):
            raise ValueError(expected)
        streams[int(rank)] = int(stream)
    return streams


def streams_of(chosen: int | Mapping[int, int], local_rank: int) -> int:
    """Return which streams are chosen for that local rank."""
    return chosen if isinstance(chosen, int) else chosen.get(local_rank, 0)


def output_of(output: OutputOptions, rank: int, local_rank: int) -> tuple[int, int]:
    """Return which streams of a rank go to its files, and which of these are copied to the terminal (pure)."""
    files = streams_of(output.redirects, local_rank)
    listed = not output.local_ranks_filter or local_rank in output.local_ranks_filter
    if output.tee is None:
        shown = BOTH if (listed if output.local_ranks_filter else rank == 0) else 0
        # A stream without a file is the job's own output already.
        shown &= files
    else:
        shown = streams_of(output.tee, local_rank)
    # torchrun has what is filtered out go to /dev/null; in a file it can still be read.
    return (files | shown, shown) if listed else (BOTH, 0)


def program_argv(program: Program) -> Sequence[str]:
    """Return the user's command line, as it would be typed, for the records."""
    if program.kind == "module":
        return [program.python, "-m", program.name, *program.arguments]
    if program.kind == "script":
        return [program.python, program.name, *program.arguments]
    return [program.name, *program.arguments]

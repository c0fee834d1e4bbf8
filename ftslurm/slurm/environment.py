"""The job, the Slurm step and this task, from Slurm's environment variables (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.slurm.nodelist import NodeListError, expand

_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # slurm.h: above are batch, extern and salloc's interactive step, no srun
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


class SlurmEnvironmentError(ValueError):
    """A Slurm variable with a value that Slurm would not set; the text has the variable, the value and the remedy."""


@dataclass(frozen=True)
class SlurmJob:
    """This process's job; None (or an empty list) means that Slurm has set no value.

    A task of `srun` has all values. The batch script has all but the step; a `salloc` shell on a login node has
    neither the step nor its node. Names of the variables: sbatch(1), srun(1).
    """

    job_id: str
    restart_count: int
    """Number of requeues of this job; 0 in the first run (SLURM_RESTART_COUNT is unset then)."""
    step_id: str | None
    """The srun step that this process is a task of, else None; see `in_step`."""
    node_name: str | None
    """Slurm's name of this host (SLURMD_NODENAME); may differ from the host name."""
    node_id: int | None
    """This node's index in the step's nodes, from 0."""
    node_list: tuple[str, ...]
    """The step's nodes; outside a step the job's; in Slurm's order."""
    num_nodes: int | None
    """Number of nodes of `node_list`. SLURM_JOB_NUM_NODES is used only without a list: it is stale after the job has
    lost a node."""
    procid: int | None
    """This task's rank in the step, from 0."""
    localid: int | None
    """This task's rank on this node, from 0."""
    ntasks_per_node: int | None
    """Tasks on this node: the step's; outside a step the job's. If the node's index is unknown: the number on every
    node, if uniform."""
    job_name: str | None
    partition: str | None
    cluster: str | None
    array_job_id: str | None
    array_task_id: str | None
    submit_dir: str | None
    cpus_on_node: int | None
    gpus_on_node: int | None
    """GPUs allocated on this node; None also if the job requested none."""
    user: str | None

    @property
    def attempt(self) -> str:
        """Name of this start of the job: unique over requeues, and over the steps of one job script.

        `<job>.<restart>` in the first step, `<job>.<restart>+<step>` in later ones.
        """
        step = f"+{self.step_id}" if self.step_id not in (None, "0") else ""
        return f"{self.job_id}.{self.restart_count}{step}"

    @property
    def in_step(self) -> bool:
        """Whether this process is a task started by `srun`, not the batch script or a salloc shell."""
        return self.step_id is not None

    @property
    def array_element(self) -> str | None:
        """`<array job>_<task>` for a task of a job array, else None."""
        if self.array_job_id is None or self.array_task_id is None:
            return None
        return f"{self.array_job_id}_{self.array_task_id}"

    @property
    def scontrol_id(self) -> str:
        """The job's id for scontrol: one task of an array has the array's id as its job id."""
        return self.array_element or self.job_id

    @property
    def run_id(self) -> str:
        """Default run id: the same over requeues, a different one for each task of an array."""
        return f"job-{self.scontrol_id}"


def job_of(attempt: str) -> str | None:
    """Return the job's id in the name of an attempt (`SlurmJob.attempt`); None: it was none of a job."""
    job = attempt.partition(".")[0]
    return job if job.isdecimal() and job.isascii() else None


def from_environ(env: Mapping[str, str]) -> SlurmJob | None:
    """Read the job from a process environment; None outside a Slurm job (no SLURM_JOB_ID).

    `sbatch` inside a step passes that step's variables on to the new job's batch script (observed on 22.05).
    A step that cannot be this process's own is therefore ignored: its node list lacks this node, or its
    size is not SLURM_NNODES. Likewise a job submitted inside another one inherits SLURM_ARRAY_* and
    SLURM_RESTART_COUNT, if it has none of its own: only `scontrol show job` has the true values (see JobFacts).

    Raises:
        SlurmEnvironmentError: a value is malformed or contradicts another one.
    """
    job_id = _identifier(env, "SLURM_JOB_ID")
    if job_id is None:
        return None
    node_name = _text(env, "SLURMD_NODENAME")
    step_id, step_nodes = _step(env, node_name)
    node_list = step_nodes or _node_list(env, "SLURM_JOB_NODELIST")
    if node_name is not None and node_list and node_name not in node_list:
        source = "SLURM_STEP_NODELIST" if step_nodes else "SLURM_JOB_NODELIST"
        raise _error("SLURMD_NODENAME", node_name, f"one of the nodes in {source}={env[source]!r}")
    node_id = _number(env, "SLURM_NODEID")
    if node_id is not None and node_list and node_id >= len(node_list):
        raise _error("SLURM_NODEID", str(node_id), f"a number below {len(node_list)}, the number of nodes")
    return SlurmJob(
        job_id=job_id,
        restart_count=_number(env, "SLURM_RESTART_COUNT") or 0,
        step_id=step_id,
        node_name=node_name,
        node_id=node_id,
        node_list=node_list,
        num_nodes=len(node_list) or _number(env, "SLURM_JOB_NUM_NODES"),
        procid=_number(env, "SLURM_PROCID"),
        localid=_number(env, "SLURM_LOCALID"),
        ntasks_per_node=_tasks_per_node(env, step_id is not None, node_id),
        job_name=_text(env, "SLURM_JOB_NAME"),
        partition=_text(env, "SLURM_JOB_PARTITION"),
        cluster=_cluster(env),
        array_job_id=_identifier(env, "SLURM_ARRAY_JOB_ID"),
        array_task_id=_identifier(env, "SLURM_ARRAY_TASK_ID"),
        submit_dir=_text(env, "SLURM_SUBMIT_DIR"),
        cpus_on_node=_number(env, "SLURM_CPUS_ON_NODE"),
        gpus_on_node=_number(env, "SLURM_GPUS_ON_NODE"),
        user=_text(env, "SLURM_JOB_USER") or _text(env, "USER"),
    )


def _step(env: Mapping[str, str], node_name: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the id and nodes of the step that this process is a task of, else (None, ())."""
    step_id = _identifier(env, "SLURM_STEP_ID")
    if step_id is None or int(step_id) >= _FIRST_SPECIAL_STEP or not env.get("SLURM_PROCID"):
        return None, ()
    nodes = _node_list(env, "SLURM_STEP_NODELIST")
    count = _number(env, "SLURM_NNODES")
    inherited = nodes and (node_name not in (None, *nodes) or count not in (None, len(nodes)))
    return (None, ()) if inherited else (step_id, nodes)


def _tasks_per_node(env: Mapping[str, str], in_step: bool, node_id: int | None) -> int | None:
    """Parse `2(x3),1`: this node's entry, or the common one if this node's index is unknown."""
    names = ("SLURM_STEP_TASKS_PER_NODE",) if in_step else ()
    for name in (*names, "SLURM_TASKS_PER_NODE"):
        if text := env.get(name):
            counts = _task_counts(name, text)
            index = node_id if node_id is not None else 0
            uniform = all(tasks == counts[0][0] for tasks, _ in counts)
            if node_id is None and not uniform:
                return None
            for tasks, nodes in counts:
                if index < nodes or uniform:
                    return tasks
                index -= nodes
            return None
    return _number(env, "SLURM_NTASKS_PER_NODE")


def _task_counts(name: str, text: str) -> list[tuple[int, int]]:
    """Parse `2(x3),1` as [(2 tasks, 3 nodes), (1 task, 1 node)]."""
    counts = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise _error(name, text, "task counts like 2(x3),1")
        counts.append((int(match.group(1)), int(match.group(2) or 1)))
    return counts


def _cluster(env: Mapping[str, str]) -> str | None:
    name = _text(env, "SLURM_CLUSTER_NAME")
    # Set instead by a client's -M: "name:host:port:version:plugin".
    return name or (_text(env, "SLURM_WORKING_CLUSTER") or "").partition(":")[0] or None


def _node_list(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = env.get(name)
    if not text:
        return ()
    try:
        return tuple(expand(text))
    except NodeListError as error:
        raise SlurmEnvironmentError(f"{name}: {error}; {_ADVICE}") from None


def _text(env: Mapping[str, str], name: str) -> str | None:
    return env.get(name) or None


def _identifier(env: Mapping[str, str], name: str) -> str | None:
    """Return a decimal id as text, without leading zeros; Slurm's ids have 32 bits."""
    number = _number(env, name)
    return None if number is None else str(number)


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if not text:
        return None
    if len(text) > 10 or not (text.isascii() and text.isdecimal()):
        raise _error(name, text, "a whole number")
    return int(text)


_ADVICE = "start with the environment set by Slurm, or unset the SLURM_ variables to run outside Slurm"


def _error(name: str, value: str, expected: str) -> SlurmEnvironmentError:
    quoted = ascii(value if len(value) <= 200 else value[:200] + "...")
    return SlurmEnvironmentError(f"{name}={quoted}: expected {expected}; {_ADVICE}")

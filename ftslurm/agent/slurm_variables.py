"""Slurm's variables in the ranks (`--slurm-env`): of a task for each rank, of the agent's own step, or none (pure).

The agent is the step's only task on its node, so that all ranks of a node would inherit the agent's SLURM_PROCID.
Names: srun(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.agent.actions import Assignment
from ftslurm.slurm.nodelist import NodeListError, compress, expand

TASK, STEP, NONE = "task", "step", "none"
MODES = (TASK, STEP, NONE)
_OF_TASKS = frozenset(
    (
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
    )
)
_OF_NODES = frozenset(
    (
        *("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"),
        *("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"),
    )
)
"""Scripts that compute the rank's place from Slurm's variables take the first node as the master's: the job's own list
has spares and lost nodes, too."""


def inherited_variables(inherited: Mapping[str, str], mode: str) -> dict[str, str]:
    """Return of the agent's environment what its workers may have before they know their round."""
    if mode == STEP or "SLURM_JOB_ID" not in inherited:
        return dict(inherited)
    dropped = _OF_TASKS | _OF_NODES if mode == TASK else _OF_TASKS
    return {
        name: value
        for name, value in inherited.items()
        if name not in dropped and (mode == TASK or not name.startswith(("SLURM_STEP_", "SLURM_STEPID")))
    }


def variables_of_task(inherited: Mapping[str, str], mode: str, part: Assignment, local_rank: int) -> dict[str, str]:
    """Return the variables that a rank would have as a task of `srun` on the nodes of its round.

    Args:
        inherited: the agent's environment; outside a job there are no variables.
    """
    if mode != TASK or "SLURM_JOB_ID" not in inherited:
        return {}
    tasks, nodes = str(part.world_size), str(part.group_world_size)
    found = {
        "SLURM_PROCID": str(part.first_rank + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(part.group_rank),
        "SLURM_GTIDS": ",".join(str(part.first_rank + each) for each in range(part.slots)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), nodes),
    }
    if part.slots * part.group_world_size == part.world_size:
        each = str(part.slots) if part.group_world_size == 1 else f"{part.slots}(x{nodes})"
        found["SLURM_NTASKS_PER_NODE"] = str(part.slots)
        found.update(SLURM_TASKS_PER_NODE=each, SLURM_STEP_TASKS_PER_NODE=each)
    names = ("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST")
    known = inherited.get("SLURM_JOB_NODELIST") or inherited.get("SLURM_NODELIST")
    if known is not None and _are_of_job(part.nodes, known):
        found.update(dict.fromkeys(names, compress(part.nodes)))
    else:
        # Agents on one machine (--local-nodes), whose names are not Slurm's.
        found.update({name: inherited[name] for name in names if name in inherited})
    return found


def _are_of_job(nodes: tuple[str, ...], host_list: str) -> bool:
    try:
        return bool(nodes) and set(nodes) <= set(expand(host_list))
    except NodeListError:
        return False

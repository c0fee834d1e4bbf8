"""Causes outside the workers: of nodes, agents, the scheduler."""

from __future__ import annotations

from ftslurm.failures.catalogue.cause import OTHER_NODE, POINTLESS, PRIMARY, Cause
from ftslurm.failures.predicates import either, kind, scheduler
from ftslurm.failures.retryability import PERHAPS

ROWS: tuple[Cause, ...] = (
    Cause("spawn", "could not be started", PRIMARY, kind("spawn"),
          "Check that the program and its interpreter exist on this node and are executable.",
          not_for="a script that starts and then fails", restart=OTHER_NODE, blame=PERHAPS),
    Cause("unreachable", "the round's master could not be reached", PRIMARY, kind("unreachable"),
          "Check the network between the two nodes: links, routes, firewall, name resolution (ftslurm doctor).",
          not_for="a connection that breaks while ranks run", restart=OTHER_NODE),
    Cause("health", "the node's device failed a health check", PRIMARY, kind("health"),
          "Drain the node, or exclude it; ask the administrators.",
          proof=lambda e: bool(e.health or e.message),
          not_for="a CUDA error that the script itself caused", restart=OTHER_NODE),
    Cause("health-check", "the node was refused by its health check", PRIMARY, kind("health-check"),
          "See the check's finding; exclude the node until it is repaired.",
          not_for="a node that failed in use", restart=OTHER_NODE),
    Cause("agent-lost", "the node's agent was killed", PRIMARY, kind("agent-lost"),
          "The node itself may be healthy: find what killed the agent (dmesg: the OOM killer; sacct).",
          not_for="a lost node, without any sign of its guardian", restart=OTHER_NODE),
    Cause("agent-defect", "a defect of ftslurm ended the node's agent", PRIMARY, kind("agent-defect"),
          "Neither your program nor the node is the cause: report it, with the files in defects/ of the run directory.",
          not_for="an agent that was killed"),
    Cause("node-lost", "node lost", PRIMARY, kind("node-lost"),
          "See Slurm's view of the node: sacct, sinfo -R.",
          not_for="a rank whose connections broke while its agent lives", restart=OTHER_NODE),
    Cause("hang", "hang", PRIMARY, kind("hang"),
          "No stacks were collected; see the end of each rank's output.",
          not_for="a collective's time-out on a rank that only waited", blame=PERHAPS),
    Cause("time-limit", "the job's time limit", PRIMARY, either(kind("time-limit"), scheduler("TIMEOUT", "DEADLINE")),
          "Request more time, or save and requeue before the limit (--signal).",
          not_for="scancel or a preemption, which send the same signals"),
    Cause("preempted", "preempted", PRIMARY, either(kind("preempted"), scheduler("PREEMPTED")),
          "Slurm gave the nodes to another job; requeue, and save often.",
          not_for="a cancelled job or the time limit"),
    Cause("cancelled", "cancelled by a user", PRIMARY, either(kind("cancelled"), scheduler("CANCELLED")), "",
          not_for="a kill by the time limit or a preemption", restart=POINTLESS),
    Cause("scheduler", "the scheduler failed the job", PRIMARY,
          either(kind("scheduler"), scheduler("BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED", "NODE_FAIL")),
          "See scontrol show job and slurmctld's log; submit again.",
          not_for="a job that Slurm ended because its processes failed", restart=OTHER_NODE),
)  # fmt: skip

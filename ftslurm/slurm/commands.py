"""Queries and changes of Slurm by its commands: scontrol, sacct, sinfo, scancel."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping

from ftslurm.boot import module_command
from ftslurm.slurm.errors import SlurmRefused
from ftslurm.slurm.facts import JobFacts, NodeFacts, check_job_id, select_job
from ftslurm.slurm.nodelist import compress, expand
from ftslurm.slurm.output import (
    SACCT_DELIMITER,
    parse_job_records,
    parse_kill_wait_s,
    parse_max_batch_requeue,
    parse_node,
    parse_node_states,
    parse_partition_grace_s,
    parse_partition_nodes,
    parse_sacct,
    parse_sacct_fields,
)
from ftslurm.slurm.run_command import TIMEOUT_S, Answer, Runner, failure, no_such_job, run_command

_SIGTERM = 15
_REASON = 300
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+-]{0,200}")


class CommandSlurm:
    """SlurmControl by Slurm's commands.

    Args:
        env: the commands' environment; default: this process's.
        timeout_s: time-out of each command, in seconds.
        run: runs a command (replaced in tests).
    """

    def __init__(
        self, env: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S, run: Runner = run_command
    ) -> None:
        # Epoch seconds: dates would be in slurmctld's local time, without a zone.
        self._env = {**(os.environ if env is None else env), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        self._timeout_s = timeout_s
        self._run = run
        self._sacct_fields: tuple[str, ...] | None = None

    def job(self, job_id: str) -> JobFacts | None:
        """See SlurmControl. slurmctld purges a job MinJobAge (300 s) after its end; then sacct is queried.

        Without accounting, such a job is None too. An unresponsive slurmdbd is an error: unknown is not gone.
        """
        return self.live_job(job_id) or self._job_from_accounting(job_id)

    def live_job(self, job_id: str) -> JobFacts | None:
        """Return the facts of a job that slurmctld still has; raises as `job`."""
        answer = self._run_slurm("scontrol", "show", "job", check_job_id(job_id))
        if answer.status != 0 and not no_such_job(answer):
            raise failure(("scontrol", "show", "job", job_id), answer)
        found = select_job(parse_job_records(answer.stdout), job_id) if answer.status == 0 else None
        return found[-1] if found else None

    def accounted(self, job_id: str) -> JobFacts | None:
        """See SlurmControl."""
        return self._job_from_accounting(check_job_id(job_id))

    def _job_from_accounting(self, job_id: str) -> JobFacts | None:
        try:
            if self._sacct_fields is None:
                self._sacct_fields = parse_sacct_fields(self._succeed("sacct", "-e"))
            fields = self._sacct_fields
            command = ["sacct", "-j", job_id, "-D", "-X", "-P", "-n", f"--delimiter={SACCT_DELIMITER}"]
            if "StdOut" in fields:
                command.append("--expand-patterns")  # came with that field (24.05)
            text = self._succeed(*command, "-o", ",".join(fields))
        except SlurmRefused as error:
            if "accounting storage is disabled" in str(error):
                return None
            raise
        starts = select_job(parse_sacct(text, fields), job_id)
        if not starts:
            return None
        if starts[-1].restarts is not None:
            return starts[-1]
        from ftslurm.dataclasses import replace

        return replace(starts[-1], restarts=len(starts) - 1)  # each start has its own record

    def kill_wait_s(self) -> int | None:
        """See SlurmControl."""
        return parse_kill_wait_s(self._succeed("scontrol", "show", "config"))

    def preemption_grace_s(self, partition: str) -> int | None:
        """See SlurmControl."""
        if not _PARTITION.fullmatch(partition):
            raise ValueError(f"expected a partition name, found {partition!a:.80}")
        return parse_partition_grace_s(self._succeed("scontrol", "show", "partition", partition))

    def max_batch_requeue(self) -> int | None:
        """See SlurmControl."""
        return parse_max_batch_requeue(self._succeed("scontrol", "show", "config"))

    def requeue(self, job_id: str) -> None:
        """See SlurmControl.

        Inside the job itself scontrol may receive the SIGTERM that it has just caused: that counts as
        success.
        """
        command = ("scontrol", "requeue", check_job_id(job_id))
        answer = self._run_slurm(*command)
        if answer.status not in (0, -_SIGTERM, 128 + _SIGTERM):
            raise failure(command, answer)

    def allow_requeue(self, job_id: str) -> None:
        """See SlurmControl."""
        self._succeed("scontrol", "update", f"JobId={check_job_id(job_id)}", "Requeue=1")

    def cancel(self, job_id: str) -> None:
        """See SlurmControl. Inside the job itself scancel may receive the SIGTERM that it causes."""
        command = ("scancel", check_job_id(job_id))
        answer = self._run_slurm(*command)
        if answer.status not in (0, -_SIGTERM, 128 + _SIGTERM):
            raise failure(command, answer)

    def cancel_pending(self, job_name: str) -> None:
        """See SlurmControl."""
        self._succeed("scancel", f"--user={os.geteuid()}", f"--name={job_name}", "--state=PENDING")

    def complete(self, job_id: str, exit_code: int) -> None:
        """See SlurmControl."""
        if not check_job_id(job_id).isdecimal():
            raise ValueError(f"expected a numeric job id, found {job_id!a}")
        command = module_command(sys.executable, "ftslurm.slurm.complete", job_id, str(exit_code))
        answer = self._run_slurm(*command)
        if answer.status not in (0, -_SIGTERM):
            raise failure(command[2:], answer)

    def node(self, name: str) -> NodeFacts | None:
        """See SlurmControl."""
        (plain,) = expand(compress([name]))
        command = ("scontrol", "show", "node", "-o", plain)
        answer = self._run_slurm(*command)
        if answer.status != 0 and " not found" not in answer.stdout:
            raise failure(command, answer)
        return parse_node(answer.stdout, plain)

    def node_states(self, names: Iterable[str]) -> dict[str, str]:
        """See SlurmControl."""
        return parse_node_states(self._show_nodes(names))

    def nodes_out(self, names: Iterable[str]) -> list[NodeFacts]:
        """Return those of these nodes that are drained, down or failing, by name; raises as `node_states`."""
        records = self._show_nodes(names).splitlines()
        facts = [parse_node(record, name) for record in records for name in parse_node_states(record)]
        return sorted((node for node in facts if node is not None and node.is_out), key=lambda node: node.name)

    def _show_nodes(self, names: Iterable[str]) -> str:
        nodes = compress(names)
        if not nodes:
            return ""  # Without a name scontrol would list all nodes.
        command = ("scontrol", "show", "node", "-o", nodes)
        answer = self._run_slurm(*command)
        if answer.status != 0 and " not found" not in answer.stdout:
            raise failure(command, answer)
        return answer.stdout

    def partition_nodes(self, partition: str) -> dict[str, str]:
        """See SlurmControl."""
        if not _PARTITION.fullmatch(partition):
            raise ValueError(f"expected a partition name, found {partition!a:.80}")
        return parse_partition_nodes(self._succeed("sinfo", "-h", "-N", "-p", partition, "-o", "%N|%T"))

    def exclude_nodes(self, job_id: str, nodes: Iterable[str]) -> None:
        """See SlurmControl."""
        self._succeed("scontrol", "update", f"JobId={check_job_id(job_id)}", f"ExcNodeList={compress(nodes)}")

    def drain(self, node: str, reason: str) -> str | None:
        """See SlurmControl. Slurm itself would overwrite the old reason (22.05)."""
        known = self.node(node)
        if known is None:
            raise SlurmRefused(f"Slurm knows no node {node}: expected a NodeName, which may differ from the host name")
        name = known.name
        if known.is_out:
            return f"{name} is {known.state} already" + (f": {known.reason}" if known.reason else "")
        text = " ".join(reason.split())[:_REASON]
        if known.reason:
            # An existing note on a node in use must not get lost.
            text += f" (before: {known.reason[:_REASON]})"
        update = ("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={text}")
        answer = self._run_slurm(*update)
        if "Invalid user id" in answer.stderr:
            raise SlurmRefused(
                f"this user (uid {os.geteuid()}) may not drain {name}: expected root, SlurmUser or an operator of Slurm"
            )
        if answer.status != 0:
            raise failure(update, answer)
        return None

    def _run_slurm(self, *command: str) -> Answer:
        return self._run(command, self._env, self._timeout_s)

    def _succeed(self, *command: str) -> str:
        answer = self._run_slurm(*command)
        if answer.status != 0:
            raise failure(command, answer)
        return answer.stdout

"""Queries and changes of Slurm: scontrol and sacct behind one small interface."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ftslurm.boot import module_command
from ftslurm.slurm.errors import (
    SlurmCommandMissing,
    SlurmError,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnknownJob,
    SlurmUnreachable,
)
from ftslurm.slurm.facts import (
    SACCT_DELIMITER,
    JobFacts,
    NodeFacts,
    check_job_id,
    parse_job_records,
    parse_kill_wait_s,
    parse_node,
    parse_node_states,
    parse_partition_nodes,
    parse_sacct,
    parse_sacct_fields,
    select_job,
)
from ftslurm.slurm.nodelist import compress, expand

__all__ = ["Answer", "CommandSlurm", "Runner", "SlurmControl", "failure", "run_command"]

TIMEOUT_S = 20.0
"""With slurmctld down `scontrol show job` itself gives up after 8 s (22.05, MessageTimeout 10, no backup)."""

_SIGTERM = 15
_REASON = 300
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+-]{0,200}")
_NO_SUCH_JOB = ("Invalid job id specified", "Invalid job array task id")
_UNREACHABLE = (
    "Unable to contact slurm",
    "Unexpected message received",  # `scontrol requeue` with slurmctld down (22.05)
    "Connection refused",
    "Connection timed out",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Problem talking to the database",
    "configuration source",
    "configuration file",
    "DNS SRV lookup",
)


class SlurmControl(Protocol):
    """Slurm operations that ftslurm needs. Each may take seconds, and may raise any SlurmError."""

    def job(self, job_id: str) -> JobFacts | None:
        """Return the facts of a job `123` or array task `123_4`; None: Slurm knows no such job.

        Raises:
            ValueError: `job_id` is neither form.
        """

    def accounted(self, job_id: str) -> JobFacts | None:
        """Return the accounting's record of a job: while scontrol shows COMPLETING, it has the final state and user.

        None: there is no accounting, or no record of this job.
        """

    def kill_wait_s(self) -> int | None:
        """Return the seconds from Slurm's SIGTERM to its SIGKILL (KillWait); None: unknown."""

    def requeue(self, job_id: str) -> None:
        """Stop and requeue a job or one array task, given by `SlurmJob.scontrol_id`.

        Raises:
            ValueError: `job_id` is neither `123` nor `123_4`.
            SlurmUnknownJob: there is no such job.
            SlurmRefused: not permitted, or the job cannot be requeued.
        """

    def cancel(self, job_id: str) -> None:
        """End a job or one array task; one that has already ended is fine.

        Raises:
            ValueError: `job_id` is neither `123` nor `123_4`.
            SlurmRefused: not permitted, or there is no such job.
        """

    def complete(self, job_id: str, exit_code: int) -> None:
        """End a job as if its batch script had ended with `exit_code`; one that has already ended is fine.

        Args:
            job_id: a number; for an array task its own number, not `123_4`.

        Raises:
            ValueError: `job_id` is no number.
            SlurmRefused: not permitted, there is no such job, or Slurm's library is missing.
        """

    def node(self, name: str) -> NodeFacts | None:
        """Return the facts of a node; None: Slurm knows no such node.

        Raises:
            ValueError: not a valid node name.
        """

    def node_states(self, names: Iterable[str]) -> dict[str, str]:
        """Return the states of these nodes in Slurm's spelling (`DOWN+DRAIN`); unknown nodes are omitted.

        Raises:
            NodeListError: (a ValueError) a name is no valid node name.
        """

    def partition_nodes(self, partition: str) -> dict[str, str]:
        """Return the nodes of a partition, or of several (`a,b`), and their states in sinfo's spelling.

        Raises:
            ValueError: not a valid partition name.
        """

    def exclude_nodes(self, job_id: str, nodes: Iterable[str]) -> None:
        """Replace the excluded nodes (ExcNodeList) of a job that is pending or being requeued.

        Permitted to the job's owner. Slurm accepts every list: with too few nodes left, the job waits for ever.

        Raises:
            ValueError: `job_id` is neither `123` nor `123_4`, or a name is no valid node name.
            SlurmRefused: the job runs or has ended, a node is unknown, or it is not permitted.
        """

    def drain(self, node: str, reason: str) -> str | None:
        """Drain a node: no further job is started on it until an administrator resumes it; running jobs continue.

        A node that is already drained, down or failing keeps its state and reason.

        Returns:
            None: it is drained now. Otherwise its existing state and reason.

        Raises:
            ValueError: not a valid node name.
            SlurmRefused: unknown node, or this user lacks permission, which Slurm's operators have.
        """


class Answer(NamedTuple):
    """Result of a command: exit status (negative: the signal that killed it) and its output."""

    status: int
    stdout: str
    stderr: str


Runner = Callable[[Sequence[str], Mapping[str, str], float], Answer]


def run_command(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
    """Run a command without input, for at most `timeout_s` seconds.

    Raises:
        SlurmCommandMissing: it could not be started.
        SlurmTimeout: it was killed at the time-out.
    """
    import subprocess

    try:
        done = subprocess.run(
            command, env=env, timeout=timeout_s, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise SlurmCommandMissing(
            f"{command[0]} was not found on PATH={env.get('PATH', '')!a:.200}: expected Slurm's commands here "
            "(containers usually lack them)"
        ) from None
    except OSError as error:
        raise SlurmCommandMissing(f"`{_command_text(command)}` could not be started: {error}") from None
    except subprocess.TimeoutExpired:
        raise SlurmTimeout(
            f"`{_command_text(command)}` did not answer within {timeout_s:g} s; check that slurmctld (slurmdbd) runs"
        ) from None
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


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
        answer = self._run_slurm("scontrol", "show", "job", check_job_id(job_id))
        if answer.status == 0:
            found = select_job(parse_job_records(answer.stdout), job_id)
            if found:
                return found[-1]
        elif not _no_such_job(answer):
            raise failure(("scontrol", "show", "job", job_id), answer)
        return self._job_from_accounting(job_id)

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

    def requeue(self, job_id: str) -> None:
        """See SlurmControl.

        Inside the job itself scontrol may receive the SIGTERM that it has just caused: that counts as
        success.
        """
        command = ("scontrol", "requeue", check_job_id(job_id))
        answer = self._run_slurm(*command)
        if answer.status not in (0, -_SIGTERM, 128 + _SIGTERM):
            raise failure(command, answer)

    def cancel(self, job_id: str) -> None:
        """See SlurmControl. Inside the job itself scancel may receive the SIGTERM that it causes."""
        command = ("scancel", check_job_id(job_id))
        answer = self._run_slurm(*command)
        if answer.status not in (0, -_SIGTERM, 128 + _SIGTERM):
            raise failure(command, answer)

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
        nodes = compress(names)
        if not nodes:
            return {}  # Without a name scontrol would list all nodes.
        command = ("scontrol", "show", "node", "-o", nodes)
        answer = self._run_slurm(*command)
        if answer.status != 0 and " not found" not in answer.stdout:
            raise failure(command, answer)
        return parse_node_states(answer.stdout)

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


def failure(command: Sequence[str], answer: Answer) -> SlurmError:
    """Return the error of a failed command (pure)."""
    if answer.status < 0:
        return SlurmError(f"`{_command_text(command)}` was killed by signal {-answer.status}")
    text = answer.stderr.strip() or answer.stdout.strip() or "it printed nothing"
    reason = " / ".join(line.strip() for line in text.splitlines() if line.strip())
    message = f"`{_command_text(command)}` failed (exit {answer.status}): {ascii(reason)[1:-1]:.300}"
    if _no_such_job(answer):
        return SlurmUnknownJob(message)
    if any(part in text for part in _UNREACHABLE):
        return SlurmUnreachable(f"{message}; check SLURM_CONF, and that slurmctld (slurmdbd) runs")
    return SlurmRefused(message)


def _no_such_job(answer: Answer) -> bool:
    """Return whether `scontrol show job` found no job; for an array task that is on stdout ("Job 12_9 not found")."""
    not_found = answer.stdout.startswith("Job ") and answer.stdout.rstrip().endswith(" not found")
    return not_found or any(part in answer.stderr for part in _NO_SUCH_JOB)


def _command_text(command: Sequence[str]) -> str:
    return " ".join(command[:5])[:120]

"""A new submission of a job's own batch script, where Slurm does not let the job itself start again.

The script is what Slurm has stored. The options that were given on the command line of sbatch are not in it: the most
important ones are taken from the job's data, and override those of the script. What Slurm does not print (--signal,
--switches, the quotes of the script's arguments) is lost, unless it is in the script.

The new job is of the same run: its comment has the run's name, since an environment variable would be inherited by jobs
that are submitted inside it. It writes to the same output file, and does not start before the old job has ended.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.slurm.errors import SlurmRefused
from ftslurm.slurm.facts import check_job_id
from ftslurm.slurm.run_command import TIMEOUT_S, Runner, failure, run_command
from ftslurm.slurm.sbatch import comment_of_run, is_chained, requeue_option, submit, submit_environment

_NOTHING = ("", "(null)", "N/A", "None", "0", "UNLIMITED")
_PLAIN = (
    ("--job-name", "JobName"),
    ("--partition", "Partition"),
    ("--account", "Account"),
    ("--qos", "QOS"),
    ("--time", "TimeLimit"),
    ("--cpus-per-task", "CPUs/Task"),
    ("--mem", "MinMemoryNode"),
    ("--mem-per-cpu", "MinMemoryCPU"),
    ("--exclude", "ExcNodeList"),
    ("--constraint", "Features"),
    ("--reservation", "Reservation"),
    ("--licenses", "Licenses"),
)
_LAST_ON_LINE = ("JobName", "Comment", "WorkDir", "Command", "StdOut", "StdErr")


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of one record of `scontrol show job` (pure)."""
    fields: dict[str, str] = {}
    for line in text.partition("\nJobId=")[0].splitlines():
        # The head line ends with the job's name, which may hold anything.
        rest = line = line.strip()  # noqa: PLW2901
        for key in _LAST_ON_LINE:
            before, found, value = line.partition(f"{key}=")
            if found and (not before or before.endswith(" ")):
                fields.setdefault(key, value.strip())
                rest = before
                break
        for word in rest.split():
            key, equals, value = word.partition("=")
            if equals:
                fields.setdefault(key, value)
    return fields


def options_of(fields: Mapping[str, str], run_id: str, least: int = 1) -> list[str]:
    """Return the options of sbatch for a job like this one (pure).

    Args:
        fields: see `fields_of`.
        run_id: the run that it continues.
        least: number of nodes that the job had at first; Slurm's number shrinks with each lost node.
    """
    options = [f"{name}={fields[key]}" for name, key in _PLAIN if fields.get(key, "") not in _NOTHING]
    nodes = fields.get("NumNodes", "").partition("-")[0]
    options.append(f"--nodes={max(least, int(nodes) if nodes.isdecimal() else 1)}")
    gres = fields.get("TresPerNode", "").replace("gres:", "").replace("gres/", "")
    options += [f"--gres={gres}"] if gres not in _NOTHING else []
    options += ["--exclusive"] if fields.get("OverSubscribe") == "NO" else []
    for name, key in (("--chdir", "WorkDir"), ("--output", "StdOut"), ("--error", "StdErr")):
        same = key == "StdErr" and fields.get("StdErr") == fields.get("StdOut")
        options += [f"{name}={fields[key].replace('%', '%%')}"] if fields.get(key) and not same else []
    task = fields.get("ArrayTaskId", "")
    options += [f"--array={task}"] if task.isdecimal() else []
    comment = comment_of_run(fields.get("Comment"), run_id)
    return [*options, f"--comment={comment}", "--open-mode=append", "--no-kill"]


@dataclass(frozen=True)
class BatchScript:
    """A batch script as it was submitted.

    Attributes:
        text: its content.
        options: of sbatch; they override those in it.
        arguments: its own.
        chained: the job belongs to a chain (`ftslurm chain`).
    """

    text: str
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    chained: bool = False


class Resubmission:
    """Submits a job's script again.

    Args:
        env: this process's environment; that of the new job is the same without Slurm's and ftslurm's own variables.
        run: runs a command (replaced in tests).
    """

    def __init__(self, env: Mapping[str, str], run: Runner = run_command) -> None:
        self._env = env
        self._query_env = {**env, "LC_ALL": "C"}
        self._run = run

    def submit(self, job_id: str, run_id: str, nodes: int) -> str:
        """Submit the script of a job (a number) again, to start after its end; return the new job's id.

        Args:
            nodes: number of nodes that the job had at first.

        Raises:
            SlurmError: Slurm did not answer, or refused.
            OSError: the script cannot be written to a temporary file.
        """
        script = self.script_of(job_id, run_id, nodes)
        # Of a chain, one job at a time runs.
        return self.submit_script(script, f"--dependency=afterany:{job_id}{',singleton' if script.chained else ''}")

    def script_of(self, job_id: str, run_id: str, nodes: int = 1) -> BatchScript:
        """Return the script of a job that slurmctld still has, and the options for a job like it, of that run.

        Args:
            nodes: least number of nodes, see `options_of`.

        Raises:
            SlurmError: Slurm did not answer, or refused.
        """
        fields = fields_of(self._succeed("scontrol", "show", "job", check_job_id(job_id)))
        script = self._succeed("scontrol", "write", "batch_script", job_id, "-")
        if not script.strip():
            # Slurm does not refuse to write it.
            raise SlurmRefused(f"job {job_id} has no batch script (salloc)")
        arguments = tuple(fields.get("Command", "").split()[1:])
        chained = is_chained(fields.get("Comment"))
        return BatchScript(script, tuple(options_of(fields, run_id, nodes)), arguments, chained)

    def submit_script(self, script: BatchScript, *options: str) -> str:
        """Submit a script, with further options, which override its own; return the job's id.

        Raises:
            SlurmError: Slurm did not answer, or refused.
            OSError: the script cannot be written to a temporary file.
        """
        words = [*script.options, requeue_option(self._env, self._run), *options]
        with tempfile.NamedTemporaryFile("w", prefix="ftslurm-", suffix=".sbatch") as file:
            file.write(script.text)
            file.flush()
            words += [file.name, *script.arguments]
            return submit(words, submit_environment(self._env), self._run)

    def _succeed(self, *command: str) -> str:
        answer = self._run(command, self._query_env, TIMEOUT_S)
        if answer.status != 0:
            raise failure(command, answer)
        return answer.stdout

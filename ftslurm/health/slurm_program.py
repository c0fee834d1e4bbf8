"""`ftslurm health --slurm …`: called by Slurm's own HealthCheckProgram, Prolog and Epilog.

Detecting is not acting: without --drain and --act it only checks and reports. It never undrains a node, and never
replaces an existing reason.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ftslurm.health.selection import HEALTHY, UNHEALTHY, choose, context_of
from ftslurm.health.verdict import Json, Verdict, worst
from ftslurm.records.health import FAIL
from ftslurm.terminal import UsageError, print_error

if TYPE_CHECKING:
    import argparse

FACTS = "/run/ftslurm-health.json"
"""Root's directory for the facts of the previous run, to detect growing counters."""

PLACES = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/bin", "/usr/sbin", "/sbin")
"""Directories of commands: Slurm runs its HealthCheckProgram without a PATH."""

HELP = """\
As Slurm's own programs (slurm.conf takes one word: call these from a script of two lines, see below)

  ftslurm health --slurm health-check [--drain]      HealthCheckProgram, all HealthCheckInterval seconds
  ftslurm health --slurm prolog [--act] [--drain]    Prolog, before a job's first step on a node
  ftslurm health --slurm epilog [--act] [--drain]    Epilog, after a job's last step on a node

They run on the node, as root, and print one line, or nothing if the node is healthy. NAME, --skip, --path, --command,
--all and --quick select checks as usual; by default health-check runs the background checks, the others the quick
ones. Ranks may be running, also those of other jobs: give --idle to a Prolog or Epilog where a node belongs to one job
at a time, so that processes still running there are leftovers; then leftovers of users (a full /tmp) count, too.

Nothing that a user could have written is used: of the environment only Slurm's own variables are kept, not FTSLURM_…;
modules, entry points and commands come from directories that only root can write to; they run in /.

Exit code         0 healthy, or only reported; 1 a check failed (never for warnings and unknowns)
  health-check    ignored by Slurm; slurmd writes the line to its log if it is not 0 (and only then)
  prolog          0, or with --act 1: Slurm drains the node and requeues the job, held unless the site has set
                  SchedulerParameters=nohold_on_prolog_fail
  epilog          0, or with --act 1: Slurm drains the node
--drain           asks Slurm itself: scontrol update NodeName=… State=DRAIN Reason="ftslurm: …". A node that is drained
                  or down already stays as it is, with its reason. Nothing is ever undrained (State=RESUME does that).
--act             with prolog and epilog implies --drain, so that the node's reason is what was found instead of
                  "Prolog error"

  # /etc/slurm/health.sh, for HealthCheckProgram: Slurm gives it SLURMD_NODENAME and nothing else, no PATH either.
  #!/bin/sh
  export SLURM_CONF=/etc/slurm/slurm.conf
  exec /opt/ftslurm/bin/python -I /opt/ftslurm/bin/ftslurm health --slurm health-check --drain

  # slurm.conf
  HealthCheckProgram=/etc/slurm/health.sh
  HealthCheckInterval=300
  HealthCheckNodeState=ANY,CYCLE
  Prolog=/etc/slurm/prolog.sh
"""


def main(options: argparse.Namespace) -> int:
    """Run the checks; return the exit code that Slurm expects."""
    from ftslurm.terminal import show

    if options.slurm == "help":
        show(HELP)
        return HEALTHY
    if options.list or options.json:
        raise UsageError("--slurm prints one line: omit --list and --json")
    if options.act and options.slurm == "health-check":
        raise UsageError("--act is for prolog and epilog: Slurm ignores a HealthCheckProgram's exit code")
    if problem := _not_roots(options.command):
        raise UsageError(problem)
    node = node_name(os.environ, socket.gethostname())
    _find_commands()
    verdicts = _look(options, node)
    text = one_line(node, verdicts)
    failed = worst(one.status for one in verdicts) == FAIL
    if text:
        show(f"{text}\n")
    if failed and (options.drain or options.act):
        from ftslurm.slurm.bounded import drain

        problem = drain(node, reason(verdicts))
        if problem:
            print_error(f"ftslurm health: {node} could not be drained: {problem}")
    return exit_code(options.slurm, failed, options.act)


def _not_roots(commands: Sequence[str]) -> str | None:
    """Return which file that a command names can be written by others than root; None: none, or this is not root."""
    from ftslurm.health.isolation import writable_by

    if os.geteuid() != 0:
        return None
    for command in commands:
        for path in _files_of(command):
            if problem := writable_by(path):
                return f"--command {command}: {problem}: root runs only what nobody else can write"
    return None


def _files_of(command: str) -> Iterator[str]:
    """Yield the files that a shell command names, and the directories that it changes to."""
    import shlex

    try:
        parts = shlex.split(command)
    except ValueError:
        # The shell will complain.
        parts = command.split()
    for before, part in zip(["", *parts], parts, strict=False):
        if any(char.isspace() for char in part):
            yield from _files_of(part)
        elif before == "cd" or os.path.isfile(part):
            yield os.path.abspath(part)


def exit_code(mode: str, failed: bool, act: bool) -> int:
    """Return the exit code: nonzero only for a failed check, and for prolog and epilog only with --act."""
    return UNHEALTHY if failed and (act or mode == "health-check") else HEALTHY


def node_name(environ: Mapping[str, str], hostname: str) -> str:
    """Return Slurm's name of this node; slurmd passes it to all of its programs.

    Raises:
        UsageError: the name is none.
    """
    from ftslurm.sharedfs.rundir import RunDirectoryError, check_name

    try:
        return check_name("node name", environ.get("SLURMD_NODENAME") or hostname.partition(".")[0])
    except RunDirectoryError as error:
        raise UsageError(str(error)) from None


def one_line(node: str, verdicts: Sequence[Verdict]) -> str:
    """Return the report: the numbers of failures and warnings, and the worst finding; empty if there is none."""
    from ftslurm.health.table import brief, counted

    counts = counted(verdicts, ("fail", "warn"))
    return f"ftslurm health: {node}: {counts}: {brief(verdicts)}" if counts else ""


def reason(verdicts: Sequence[Verdict]) -> str:
    """Return the reason for a drain."""
    from ftslurm.health.table import brief

    return f"ftslurm: {brief(verdicts)}"


def _look(options: argparse.Namespace, node: str) -> Sequence[Verdict]:
    from ftslurm.health.check import BACKGROUND, QUICK, CheckedPath
    from ftslurm.health.run import run

    checks = choose(options, BACKGROUND if options.slurm == "health-check" else QUICK)
    places = [CheckedPath("/tmp", "/tmp"), CheckedPath("/dev/shm", "/dev/shm")]
    context = context_of(options, node, os.environ, places, busy=not options.idle)
    facts = _facts_file(os.geteuid())
    before: Mapping[str, Json] = _read(facts)
    result = run(checks, context, before)
    _keep(facts, before, result.verdicts)
    return result.verdicts


def _facts_file(uid: int, exists: Callable[[str], bool] = os.path.isdir) -> str | None:
    """Return the file of the facts; only root has a directory that no other user can write to."""
    return FACTS if uid == 0 and exists(os.path.dirname(FACTS)) else None


def _read(path: str | None) -> Mapping[str, Json]:
    from ftslurm.health.agent_run import read_facts

    return read_facts(path) if path else {}


def _keep(path: str | None, before: Mapping[str, Json], verdicts: Sequence[Verdict]) -> None:
    from ftslurm.health.agent_run import write_facts

    if path:
        write_facts(path, {**before, **{one.check: one.facts for one in verdicts if one.facts is not None}})


def _find_commands() -> None:
    """Append the usual directories of Slurm's commands to PATH."""
    known = os.environ.get("PATH", "").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(part for part in dict.fromkeys((*known, *PLACES)) if part)

"""The command `ftslurm`: picks the subcommand and imports no more than it needs."""

from __future__ import annotations

import errno
import os
import sys

from ftslurm.terminal import output_failed, print_error, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = """\
usage: ftslurm run [options] program [arguments]    run a program on all nodes, fault-tolerantly
       ftslurm report [run directory | job id]      report the course and failures of a run
       ftslurm status [run directory | job id]      print the current state of a run
       ftslurm doctor [directory]                   test on all nodes that a directory is suitable for runs
       ftslurm health [check ...]                   check the health of this node, or of all nodes of a step
       ftslurm nodes list|exclude|allow             list excluded nodes; exclude a node, allow it again
       ftslurm template [name]                      print a ready-to-submit sbatch script
       ftslurm --version

Inside a Slurm job, start it with `ftsrun [options] program [arguments]`.
Each command prints its own options with --help.
"""
EXIT_UNWRITTEN = 1  # as coreutils


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    _hold_standard_streams()
    _keep_own_access()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        os.getcwd()
    except FileNotFoundError:
        # Slurm's programs run in /, wherever they are started.
        if not _for_slurm(words):
            print_error("ftslurm: the current directory is gone; cd to one that exists")
            return 2
    try:
        code = _command(words)
        return EXIT_UNWRITTEN if code == 0 and output_failed() and _answers(words) else code
    except (OSError, MemoryError) as error:
        limit = _own_limit(error)
        if limit is None:
            raise
        print_error(f"ftslurm: {limit}")
        return 1


def _keep_own_access() -> None:
    """Let the umask keep others out, but not this user from what the command and its ranks make (`umask 0777`)."""
    mask = os.umask(0o077)
    os.umask(mask & ~0o700)


def _own_limit(error: OSError | MemoryError) -> str | None:
    """Return which limit of the user's the command has met; None: it is something else."""
    if isinstance(error, MemoryError):
        return "out of memory; check ulimit -v and the limits of the job's cgroup"
    # By number: nothing more can be imported where no file can be opened.
    if error.errno in (errno.EMFILE, errno.EAGAIN, errno.ENOMEM):
        return f"{error.strerror}; check ulimit -a and the limits of the job's cgroup"
    return None


def _answers(words: Sequence[str]) -> bool:
    """Tell whether a command's output is its purpose; the exit codes of others are a job's, or tell Slurm of a node."""
    return words[:1] not in (["run"], ["conclude"]) and not _for_slurm(words)


def _for_slurm(words: Sequence[str]) -> bool:
    return words[:1] == ["health"] and any(word.partition("=")[0] == "--slurm" for word in words)


def _command(words: Sequence[str]) -> int:
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command == "run":
        return _run(rest)
    if command == "prepare":
        from ftslurm.agent.preflight import prepare

        return prepare(rest)
    if command == "await-end":
        from ftslurm.job_end.await_end import main as await_end

        return await_end(rest)
    if command == "conclude":
        from ftslurm.job_end.conclude import main as conclude

        return conclude(rest)
    if command == "template":
        from ftslurm.templates import main as template

        return template(rest)
    if command == "report":
        from ftslurm.report.command import main as report

        return report(rest)
    if command == "status":
        from ftslurm.status.command import main as status

        return status(rest)
    if command == "doctor":
        from ftslurm.doctor.command import main as doctor

        return doctor(rest)
    if command == "health":
        return _health(words)
    if command == "nodes":
        from ftslurm.nodes.command import main as nodes

        return nodes(rest)
    if command == "--version":
        from ftslurm import __version__

        show(f"ftslurm {__version__}\n")
        return 0
    if command in ("-h", "--help", "help"):
        show(USAGE)
        return 0
    wrong = f"unknown command {command!r}" if command else "expected a command"
    print_error(f"ftslurm: {wrong}: run, status, report, doctor, health, nodes or template; see ftslurm --help")
    return 2


def _hold_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr: else the next file opened, perhaps the state, gets our lines."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number: fd itself.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115


def _health(words: Sequence[str]) -> int:
    if _for_slurm(words):
        from ftslurm.health.isolation import isolate

        # Before anything more is imported.
        if problem := isolate():
            print_error(f"ftslurm health: {problem}")
            return 2
    from ftslurm.health.command import main as health

    return health(words[1:])


def _run(arguments: Sequence[str]) -> int:
    from ftslurm.agent.guardian import SupervisorPipe, guard

    def agent(pipe: SupervisorPipe) -> int:
        # Imported below the guardian: it stays as small as a Python can be, since it only waits.
        from ftslurm.agent.early_check import start_early_check

        early = start_early_check(pipe.local_dir)
        from ftslurm.agent.command import main as run

        return run(arguments, pipe, early)

    return guard(agent, below_launcher="FTSLURM__LOCAL_NODE" in os.environ)


def console() -> None:
    """Run the command as a process of its own, and end that."""
    code = main()
    if sys.argv[1:2] in (["report"], ["conclude"]):
        # A large run is a million objects: to take them apart one by one is a tenth of the time, and for nothing.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                # The reader has gone; `terminal.show` has dealt with that.
                pass
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    console()

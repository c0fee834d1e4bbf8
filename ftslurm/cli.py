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
       ftslurm stop [run directory | job id]        have all ranks of a run leave at a common step
       ftslurm stacks [run directory | job id]      show where all ranks of a running job are, and in which collective
       ftslurm list [directory]                     list your runs in a directory
       ftslurm history [directory]                  report on all your runs; --failed: by cause and node
       ftslurm restart [run directory | job id]     start a run again that has ended
       ftslurm clean [directory]                    show what old runs occupy; --yes: remove them
       ftslurm logs [run directory | job id]        print where a rank's output is, and its end; -f: follow it
       ftslurm doctor [directory]                   test on all nodes that a directory is suitable for runs
       ftslurm health [check ...]                   check the health of this node, or of all nodes of a step
       ftslurm nodes list|exclude|allow|pass-on     list excluded nodes; exclude, allow a node; tell a pending job
       ftslurm template [name]                      print a ready-to-submit sbatch script
       ftslurm chain N [options] job.sbatch         submit a script N times, as jobs of one run in sequence
       ftslurm rehearse EVENT [options] -- program  have a preemption, a lost node, a hang happen to a script, and judge
       ftslurm completion bash|zsh|fish             print a script that completes these commands in your shell
       ftslurm --version [-v]                       version; -v: also of Python, torch, Slurm and NVML here

Inside a Slurm job, start it with `ftsrun [options] program [arguments]`.
Each command prints its own options with --help.
"""
EXIT_UNWRITTEN = 1  # as coreutils
COMMANDS = {
    "report": ("ftslurm.report.command", "main"),
    "status": ("ftslurm.status.command", "main"),
    "stop": ("ftslurm.status.stop", "main"),
    "stacks": ("ftslurm.status.stacks", "main"),
    "list": ("ftslurm.runs.list_command", "main"),
    "history": ("ftslurm.runs.history_command", "main"),
    "restart": ("ftslurm.runs.restart_command", "main"),
    "clean": ("ftslurm.runs.clean_command", "main"),
    "logs": ("ftslurm.logs.command", "main"),
    "doctor": ("ftslurm.doctor.command", "main"),
    "nodes": ("ftslurm.nodes.command", "main"),
    "completion": ("ftslurm.completion.command", "main"),
    "template": ("ftslurm.templates", "main"),
    "chain": ("ftslurm.chain", "main"),
    "rehearse": ("ftslurm.rehearse.command", "main"),
    # Of ftsrun and the agents.
    "prepare": ("ftslurm.agent.prepare", "prepare"),
    "await-end": ("ftslurm.job_end.await_end", "main"),
    "conclude": ("ftslurm.job_end.conclude", "main"),
}
"""Module and function of the subcommands that need nothing special before they are imported."""
OF_FTSLURM = ("prepare", "await-end", "conclude")
"""Those that only ftsrun and the agents use."""


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
    """Return whether a command's output is its purpose; the exit codes of others are a job's, or a node's for Slurm."""
    return words[:1] not in (["run"], ["conclude"]) and not _for_slurm(words)


def _for_slurm(words: Sequence[str]) -> bool:
    return words[:1] == ["health"] and any(word.partition("=")[0] == "--slurm" for word in words)


def _command(words: Sequence[str]) -> int:
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command == "run":
        return _run(rest)
    if command in COMMANDS:
        module, function = COMMANDS[command]
        code: int = getattr(__import__(module, fromlist=[function]), function)(rest)
        return code
    if command == "health":
        return _health(words)
    if command == "--version":
        from ftslurm.version import main as version

        return version(rest)
    if command in ("-h", "--help", "help"):
        show(USAGE)
        return 0
    from ftslurm.similar import nearest

    known = ["run", *(name for name in COMMANDS if name not in OF_FTSLURM), "health"]
    if _starts_program(command, known):
        import shlex

        print_error(f"ftslurm: {command!r} is no command; to start a program: ftslurm run {shlex.join(words)[:200]}")
        return 2
    wrong = f"unknown command {command!r}" if command else "expected a command"
    meant = nearest(command, [*known, "--version", "--help"])
    print_error(
        f"ftslurm: {wrong}{f'; did you mean {meant}?' if meant else ':'} {', '.join(known)}; see ftslurm --help"
    )
    return 2


def _starts_program(word: str, known: Sequence[str]) -> bool:
    """Return whether a command line begins as that of `ftslurm run`: with a script, or an option of it."""
    if word.startswith("--"):
        from ftslurm.similar import nearest

        return nearest(word, ("--version", "--help")) is None
    return word not in known and (word.endswith(".py") or os.path.isfile(word))


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

"""`ftslurm doctor [DIR]`: this node's context, the probes, one report from the first node."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ftslurm.dataclasses import dataclass
from ftslurm.terminal import print_error, show

if TYPE_CHECKING:
    import argparse

    from ftslurm.doctor.diagnose import Diagnosis
    from ftslurm.doctor.node import Examination, Task

FINE, WRONG, USAGE = 0, 1, 2
INTERRUPTED = 130


class UsageError(ValueError):
    """Wrong arguments or environment; one line."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM: clean up and exit."""


@dataclass(frozen=True)
class NodeContext:
    """This node's name, all nodes, and a common name of this session.

    Attributes:
        note: a remark on the choice of nodes for the user, or empty.
    """

    node: str
    expected: tuple[str, ...]
    session: str
    note: str = ""


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code: 0 fine, 1 something is wrong, 2 wrong usage."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    try:
        if options.local_nodes:
            return _local_nodes(options)
        placement = node_context(os.environ, socket.gethostname(), f"local-{os.getpid()}-{os.urandom(3).hex()}")
    except UsageError as error:
        print_error(f"ftslurm doctor: {error}")
        return USAGE
    return FINE if placement is None else _on_node(options, placement)


def node_context(
    environ: Mapping[str, str], hostname: str, unique: str, command: str = "ftslurm doctor DIR"
) -> NodeContext | None:
    """Find this node's context in Slurm's step, or alone; None for a node's second and later tasks: one is enough.

    Args:
        environ: the environment.
        hostname: this machine's name, used where Slurm gives none.
        unique: text that no other session has.
        command: the command for all nodes, in the note to users.

    Raises:
        UsageError: Slurm's environment or the node's name is unusable.
    """
    from ftslurm.sharedfs.rundir import RunDirectoryError, check_name
    from ftslurm.slurm.environment import SlurmEnvironmentError, from_environ

    try:
        job = from_environ(environ)
        node = check_name("node name", (job.node_name if job else None) or hostname.partition(".")[0])
    except (SlurmEnvironmentError, RunDirectoryError) as error:
        raise UsageError(str(error)) from None
    if job is None or not job.in_step:
        others = len(job.node_list) if job else 1
        note = f"only this node is checked; for all {others}: srun --ntasks-per-node=1 {command}"
        return NodeContext(node, (node,), unique, note if others > 1 else "")
    if job.localid:
        return None
    expected = job.node_list or (node,)
    return NodeContext(node, expected if node in expected else (node,), f"{job.attempt}.{job.step_id}")


def directory_of(chosen: str | None, environ: Mapping[str, str], cwd: str, is_dir: Callable[[str], bool]) -> str:
    """Return the directory under test; by default the one in which `ftslurm run` would create its runs, or its parent.

    Args:
        chosen: the user's argument, if any.
        environ: the environment.
        cwd: absolute.
        is_dir: whether there is a directory of that name.
    """
    if chosen is not None:
        return os.path.normpath(os.path.join(cwd, chosen))
    base = os.path.join(cwd, environ.get("SLURM_SUBMIT_DIR") or "")
    default = os.path.normpath(os.path.join(base, environ.get("FTSLURM_SHARED_DIR") or "ftslurm-runs"))
    return default if is_dir(default) else os.path.dirname(default)


def is_dir_watched(path: str) -> bool:
    """Check in a child process: this process accesses no shared filesystem."""
    from ftslurm.doctor.node import CALL_LIMIT_S
    from ftslurm.doctor.timed_filesystem import run_all

    (there,) = run_all([lambda fs: fs.during(f"stat {path}", lambda: os.path.isdir(path))], 60, CALL_LIMIT_S)
    return bool(there.value)


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(
        prog="ftslurm doctor",
        allow_abbrev=False,
        description="Prove that a directory can carry a run, on all nodes at once: srun --ntasks-per-node=1 ftslurm "
        "doctor DIR. Exit code 0: fine, 1: something is wrong, 2: wrong usage.",
    )
    parser.add_argument(
        "directory", nargs="?", metavar="DIR", help="default: the directory of the runs, ./ftslurm-runs or its parent"
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    parser.add_argument("--seconds", type=seconds, default=10.0, metavar="N", help="measure for about that long (10)")
    parser.add_argument("--wait", type=seconds, default=30.0, metavar="N", help="wait that long for all nodes (30)")
    parser.add_argument("--local-nodes", type=_count, metavar="N", help="simulate N nodes on this machine")
    return parser


def seconds(text: str) -> float:
    """Read an option's seconds, as argparse wants it done."""
    import argparse

    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.5 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.5 to 3600, found {text!r}")
    return value


def _count(text: str) -> int:
    import argparse

    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 64):
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 64, found {text!r}")
    return int(text)


def _local_nodes(options: argparse.Namespace) -> int:
    """Simulate N nodes, each in a process group of its own."""
    names = tuple(f"local{index}" for index in range(options.local_nodes))
    session = f"local-{os.getpid()}-{os.urandom(3).hex()}"
    pids = []
    for name in names:
        pid = os.fork()
        if pid == 0:
            code = WRONG
            try:
                os.setpgid(0, 0)
                code = _on_node(options, NodeContext(name, names, session))
                sys.stdout.flush()
            finally:
                os._exit(code)
        pids.append(pid)
    try:
        with interruptible():
            return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256 for pid in pids)
    except Interrupted:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for pid in pids:
            os.waitpid(pid, 0)
        return INTERRUPTED


class interruptible:
    """While this is active, SIGINT and SIGTERM raise `Interrupted`."""

    def __enter__(self) -> None:
        self._old = {number: signal.signal(number, self._raise) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    @staticmethod
    def _raise(number: int, frame: object) -> NoReturn:
        raise Interrupted(number)


def _on_node(options: argparse.Namespace, placement: NodeContext) -> int:
    from ftslurm import __version__
    from ftslurm.doctor.barrier import Session
    from ftslurm.doctor.node import Task, clean_up, examine

    began = time.monotonic()
    directory = directory_of(options.directory, os.environ, os.getcwd(), is_dir_watched)
    session = Session(
        os.path.join(directory, f".ftslurm-doctor-{placement.session}"), placement.node, placement.expected
    )
    task = Task(directory, session, options.seconds, options.wait, __version__, not options.local_nodes)
    try:
        with interruptible():
            exam = examine(task)
            diagnosis = _report(task, exam)
    except Interrupted:
        clean_up(session)
        return INTERRUPTED
    if diagnosis is None:
        return _own_word(exam)
    # A node that met no other created nothing, or cannot; a hanging filesystem is left alone.
    never_met = not exam.nodes
    stays = None if exam.hangs else clean_up(session, others=never_met and len(placement.expected) > 1)
    return _print(options, placement, diagnosis, time.monotonic() - began, stays)


def _report(task: Task, exam: Examination) -> Diagnosis | None:
    """Judge all results on the first of the joined nodes."""
    from ftslurm.doctor.diagnose import diagnose
    from ftslurm.doctor.node import gather

    session = task.session
    first = exam.nodes[0] if exam.nodes else session.expected[0]
    # A node that met no other and is not the first prints no table, or each node would print one.
    if session.node != first or (len(exam.nodes) == 1 and session.node != session.expected[0]):
        return None
    results, versions = gather(exam)
    return diagnose(task.directory, session.expected, exam.nodes, results, versions, task.wait_s)


def _own_word(exam: Examination) -> int:
    """On all nodes but the first: print only what the first cannot know."""
    from ftslurm.doctor.diagnose import diagnose
    from ftslurm.doctor.findings import some
    from ftslurm.doctor.node import clean_up

    task, session = exam.task, exam.task.session
    lost = any(problem["probe"] in ("results", "meet") for problem in exam.result["problems"])
    if len(exam.nodes) > 1 and not lost:
        return FINE
    own = {session.node: exam.result}
    # A node that joined and lost the others can report only its own findings.
    met = len(exam.nodes) > 1
    expected, nodes = ((session.node,), (session.node,)) if met else (session.expected, tuple(exam.nodes))
    diagnosis = diagnose(task.directory, expected, nodes, own, {}, task.wait_s)
    if len(exam.nodes) < 2 and not exam.hangs:
        clean_up(session, others=not exam.nodes)
    text = "no result"
    if diagnosis.findings:
        worst = diagnosis.findings[0]
        others = "" if worst.nodes in ((), (session.node,)) else f"{some(worst.nodes)}: "
        text = f"{others}{worst.text}; {worst.advice}"
    print_error(f"ftslurm doctor: {session.node}: {text}")
    return WRONG


def _print(
    options: argparse.Namespace, placement: NodeContext, diagnosis: Diagnosis, took_s: float, stays: str | None
) -> int:
    from ftslurm.doctor.table import render, to_json

    text = to_json(diagnosis, took_s) if options.json else render(diagnosis, took_s)
    show(text)
    for line in (placement.note, stays):
        if line:
            print_error(f"ftslurm doctor: {line}")
    return WRONG if diagnosis.wrong else FINE

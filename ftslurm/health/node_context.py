"""Which node this process is, and which nodes it meets, for the commands that run on all nodes of a Slurm step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import NoReturn

from ftslurm.dataclasses import dataclass
from ftslurm.terminal import UsageError
from ftslurm.text import duration_s

INTERRUPTED = 130


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


def node_context(environ: Mapping[str, str], hostname: str, unique: str, command: str) -> NodeContext | None:
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
    from ftslurm.health.multi_node import CALL_LIMIT_S
    from ftslurm.health.timed_filesystem import run_all

    (there,) = run_all([lambda fs: fs.during(f"stat {path}", lambda: os.path.isdir(path))], 60, CALL_LIMIT_S)
    return bool(there.value)


def seconds(text: str) -> float:
    """Parse an option's seconds, for argparse."""
    import argparse

    value = duration_s(text)
    if value is None or not 0.5 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected a time from 0.5 to 3600 s (such as 30 or 2m), found {text!r}")
    return value


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

"""The run directory: paths of all files of a run, and its creation and checks."""

from __future__ import annotations

import errno
import os
import re

from ftslurm.dataclasses import dataclass
from ftslurm.sharedfs.filesystem import FileSystem, ForeignFile, PosixFileSystem
from ftslurm.sharedfs.ownership import check_own_directory, renamer
from ftslurm.sharedfs.publish import BadFile, NewerFormat, encode, publish_once, read_object

RUN_SCHEMA, RUN_VERSION = "ftslurm/run", 1
RUNS_FOLDER = "ftslurm-runs"
"""Name of the folder of run directories in the job's submit directory."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,127}")


class RunDirectoryError(ValueError):
    """The run directory cannot be used; the text has its path, the reason and the remedy."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside the run directory `root`."""

    root: str

    @property
    def run_file(self) -> str:
        """The run's identity."""
        return os.path.join(self.root, "run.json")

    @property
    def state(self) -> str:
        """The directory of the fenced state's generations."""
        return os.path.join(self.root, "state")

    @property
    def nodes(self) -> str:
        """The directory of the node records."""
        return os.path.join(self.root, "nodes")

    @property
    def commits(self) -> str:
        """The directory of the registrations of commits in progress."""
        return os.path.join(self.root, "commits")

    def node_file(self, node: str) -> str:
        """The node record of a node."""
        return os.path.join(self.root, "nodes", f"{node}.json")

    def attempt(self, attempt: str) -> str:
        """The directory of one Slurm (re)start."""
        return os.path.join(self.root, "attempts", attempt)

    def attempt_file(self, attempt: str) -> str:
        """Options and scheduler facts of one Slurm (re)start."""
        return os.path.join(self.attempt(attempt), "attempt.json")

    def scheduler_file(self, attempt: str) -> str:
        """Slurm's data on that attempt's job at its end."""
        return os.path.join(self.attempt(attempt), "scheduler.json")

    def step_file(self, attempt: str) -> str:
        """How that attempt's agents ended, recorded by their launcher."""
        return os.path.join(self.attempt(attempt), "step.json")

    def round_node_file(self, round_: int, node: str) -> str:
        """That node agent's record of that round."""
        return os.path.join(self.root, "rounds", f"{round_:06d}", "nodes", f"{node}.json")

    @property
    def defects(self) -> str:
        """The directory of the agents' records of defects of ftslurm itself; it exists only if there are any."""
        return os.path.join(self.root, "defects")

    def defect_file(self, name: str) -> str:
        """The defect record of that name."""
        return os.path.join(self.defects, f"{name}.json")

    def rank(self, round_: int, rank: int) -> str:
        """The directory of one rank's logs and error file in one round."""
        return rank_directory(self.root, round_, rank)


def rank_directory(root: str, round_: int, rank: int) -> str:
    """Return the directory of one rank's files in one round, under the run or the log directory `root`."""
    return os.path.join(root, "rounds", f"{round_:06d}", "ranks", f"{rank:05d}")


def check_name(kind: str, name: str) -> str:
    """Return `name` if it is safe as a file name on every filesystem.

    Raises:
        RunDirectoryError: it is not; the message names its `kind` ("run id", "node name").
    """
    if not _NAME.fullmatch(name):
        raise RunDirectoryError(
            f"{kind} {name!r}: expected 1 to 128 letters, digits or . _ + = @ - beginning with a letter or digit"
        )
    return name


def open_run(root: str, user: str, created_ns: int, version: str) -> RunDirectory:
    """Create the run directory, or check the existing one, and test that it is writable.

    Args:
        root: absolute path.
        user: the user's name, for readers of run.json.
        created_ns: now, nanoseconds since the epoch.
        version: this ftslurm's version.

    Raises:
        RunDirectoryError: one line with the path, the reason and the remedy.
    """
    run = RunDirectory(root)
    fs = PosixFileSystem(owner=os.geteuid())
    try:
        fs.makedirs(root)
        check_own_directory(root)
        others = (os.path.join(root, "rounds"), os.path.join(root, "attempts"))
        for directory in (run.state, run.nodes, run.commits, *others):
            fs.makedirs(directory)
            check_own_directory(directory, root)
        identity = {
            "schema": RUN_SCHEMA,
            "version": RUN_VERSION,
            "run_id": os.path.basename(root),
            "created_ns": created_ns,
            "user": user,
            "uid": os.geteuid(),
            "ftslurm": version,
        }
        if not _exists(fs, run):
            publish_once(fs, run.run_file, encode(identity))
            read_object(fs, run.run_file, RUN_SCHEMA, RUN_VERSION)
        _prove_writable(fs, run)
    except OSError as error:
        raise RunDirectoryError(_explain(root, error)) from None
    except NewerFormat as error:
        raise RunDirectoryError(f"run directory {root}: {error}") from None
    except BadFile as error:
        raise RunDirectoryError(f"run directory {root}: {error}; choose another --rdzv-id, or remove it") from None
    return run


def _exists(fs: FileSystem, run: RunDirectory) -> bool:
    try:
        read_object(fs, run.run_file, RUN_SCHEMA, RUN_VERSION)
    except FileNotFoundError:
        return False
    return True


def _prove_writable(fs: PosixFileSystem, run: RunDirectory) -> None:
    probe = os.path.join(run.nodes, f".probe.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    # Some filesystems create a file but refuse its data: the first generations need 4 KiB.
    fs.create(probe, b" " * 4096, durable=True)
    try:
        fs.unlink(probe)
    except FileNotFoundError:
        # NFS repeated a removal whose reply was lost.
        pass


def open_logs(root: str) -> None:
    """Create the directory of a run's logs, or check the existing one, as `open_run` does.

    Raises:
        RunDirectoryError: one line with the path, the reason and the remedy.
    """
    try:
        PosixFileSystem().makedirs(root)
        check_own_directory(root)
    except OSError as error:
        text = _explain(root, error).replace("--shared-dir", "--log-dir")
        raise RunDirectoryError(f"log {text.removeprefix('run ')}") from None


def exposed(root: str) -> str | None:
    """Return a warning if other users could replace the directory `root`, or one above it."""
    try:
        found = renamer(root)
    except OSError:
        # It cannot be examined: `open_run` reports that if it matters.
        return None
    if found is None:
        return None
    user, why = found
    return f"{root}: {user} may rename it, because {why}"


def _file_in(path: str) -> str:
    """Return the part of `path` that exists and is no directory."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _explain(root: str, error: OSError) -> str:
    where = error.filename if isinstance(error.filename, str) else root
    if isinstance(error, ForeignFile):
        which = "" if where == root else f"{where}: "
        return f"run directory {root}: {which}{error.strerror}; choose another --rdzv-id or --shared-dir"
    reasons = {
        errno.EACCES: f"not writable ({where}); choose another --shared-dir",
        errno.EPERM: f"not permitted ({error.strerror}: {where}); choose another --shared-dir",
        errno.EROFS: f"on a read-only filesystem ({where}); choose another --shared-dir",
        errno.ENOSPC: f"the disk is full ({where}); free some space or choose another --shared-dir",
        errno.EDQUOT: f"your disk quota is used up ({where}); free some space or choose another --shared-dir",
        errno.EEXIST: f"{where} is a file, expected a directory; choose another --rdzv-id or --shared-dir",
        errno.ENOTDIR: f"{_file_in(where)} is a file, expected a directory; choose another --shared-dir",
        errno.ENOENT: f"{where} cannot be created; choose another --shared-dir",
        errno.ENAMETOOLONG: "the path is too long; choose a shorter --shared-dir or --rdzv-id",
        errno.ELOOP: f"{where} is a symbolic link that is not followed; choose another --shared-dir",
    }
    reason = reasons.get(error.errno or 0, f"{error.strerror or error} ({where}); choose another --shared-dir")
    return f"run directory {root}: {reason}"

"""The run directory: paths of all files of a run, and its creation and checks."""

from __future__ import annotations

import errno
import os
import re

from ftslurm.dataclasses import dataclass
from ftslurm.records.attempt import Run
from ftslurm.records.codec import BadFile, NewerFormat, write_record
from ftslurm.sharedfs.filesystem import FileSystem, PosixFileSystem
from ftslurm.sharedfs.ownership import ForeignFile, check_own_directory, renamer
from ftslurm.sharedfs.publish import publish_once, read_published

STOP_FILE, STACKS_FILE = "stop.request", "stacks.request"
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
    def chain_file(self) -> str:
        """The chain of jobs that the run belongs to, if any."""
        return os.path.join(self.root, "chain.json")

    @property
    def submission_file(self) -> str:
        """The batch script of the run's newest job."""
        return os.path.join(self.root, "submission.json")

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

    @property
    def stop_file(self) -> str:
        """A user's request to stop, beside the node records, whose directory the coordinator lists."""
        return os.path.join(self.root, "nodes", STOP_FILE)

    @property
    def stacks_file(self) -> str:
        """A user's request for stacks, in the same place."""
        return os.path.join(self.root, "nodes", STACKS_FILE)

    @property
    def asked(self) -> str:
        """The directory of the nodes' answers to the newest such request; it exists once there was one."""
        return os.path.join(self.root, "asked")

    def asked_file(self, node: str) -> str:
        """That node's answer."""
        return os.path.join(self.asked, f"{node}.json")

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

    def verdict_file(self, attempt: str) -> str:
        """What follows from that attempt's end: whether the job starts again."""
        return os.path.join(self.attempt(attempt), "verdict.json")

    def claim_file(self, attempt: str) -> str:
        """Exclusive right to carry out that verdict."""
        return os.path.join(self.attempt(attempt), "claim.json")

    def requeue_file(self, attempt: str) -> str:
        """What came of that verdict."""
        return os.path.join(self.attempt(attempt), "requeue.json")

    def event_file(self, attempt: str, event: str, round_: int) -> str:
        """Record that the command of `--on-event` was started for that event; `round_` 0: of the whole attempt."""
        return os.path.join(self.attempt(attempt), "events", f"{event}-{round_:06d}.json")

    @property
    def events(self) -> str:
        """The directory of the run's event log."""
        return os.path.join(self.root, "events")

    def term_events_file(self, term: int) -> str:
        """What the coordinator of that term has logged."""
        return os.path.join(self.events, f"{term:06d}.jsonl")

    def node_events_file(self, node: str, incarnation: str) -> str:
        """What an agent that has not coordinated has logged."""
        return os.path.join(self.events, f"{node}.{incarnation}.jsonl")

    def round_node_file(self, round_: int, node: str) -> str:
        """That node agent's record of that round."""
        return os.path.join(self.root, "rounds", f"{round_:06d}", "nodes", f"{node}.json")

    def arrivals(self, round_: int) -> str:
        """The directory of the nodes' records of when their ranks arrived at collectives in one round."""
        return os.path.join(self.root, "rounds", f"{round_:06d}", "arrivals")

    def arrivals_file(self, round_: int, node: str) -> str:
        """That node's record."""
        return os.path.join(self.arrivals(round_), f"{node}.json")

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

    def collectives_file(self, round_: int, rank: int) -> str:
        """The record of a rank's collectives in one round."""
        return os.path.join(self.rank(round_, rank), "collectives.json")


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
    others = (os.path.join(root, "rounds"), os.path.join(root, "attempts"))
    try:
        fs.makedirs(root)
        check_own_directory(root)
        for directory in (run.state, run.nodes, run.commits, *others):
            fs.makedirs(directory)
            check_own_directory(directory, root)
        identity = Run(os.path.basename(root), created_ns, user, os.geteuid(), version)
        if not _exists(fs, run):
            publish_once(fs, run.run_file, write_record(identity))
            read_published(fs, run.run_file, Run)
        _prove_writable(fs, run)
    except OSError as error:
        if not _exists_at_all(run.run_file):
            remove_empty(run.state, run.nodes, run.commits, *others, root)
        raise RunDirectoryError(_explain(root, error)) from None
    except NewerFormat as error:
        raise RunDirectoryError(f"run directory {root}: {error}") from None
    except BadFile as error:
        raise RunDirectoryError(f"run directory {root}: {error}; choose another --rdzv-id, or remove it") from None
    return run


def remove_empty(*directories: str) -> None:
    """Remove those of the directories that are empty, such as one that was made for a run that was then refused."""
    for directory in directories:
        try:
            os.rmdir(directory)  # noqa: PTH106 agents import no pathlib
        except OSError:
            # It has files, or is gone, or another user's.
            pass


def _exists_at_all(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def _exists(fs: FileSystem, run: RunDirectory) -> bool:
    try:
        read_published(fs, run.run_file, Run)
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

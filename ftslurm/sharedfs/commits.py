"""Commits in progress, registered in the run directory so that a later round can revoke them.

A rank looks at the fenced state and then renames its temporary file. In between it may be frozen for an hour, and no
filesystem has a rename that fails when a token is old. But a rename fails when its source is gone. So a rank registers
the temporary *before* it looks at the state, and whoever starts workers of a newer round first moves the temporaries of
all past rounds out of the way. The file server orders the two renames: either the commit came first and the new round
sees it, or it fails with ENOENT, however late it comes.

Why nothing escapes: a rank whose look passed had registered before the newer round was published, and the revocation
lists the registrations after that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ftslurm.dataclasses import asdict, dataclass
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import (
    BadFile,
    create_temporary,
    encode,
    forget,
    publish_once,
    random_nonce,
    read_object,
)
from ftslurm.sharedfs.replace import TEMPORARY, put_back
from ftslurm.sharedfs.rundir import RunDirectory

SCHEMA, VERSION = "ftslurm/commit", 1
SUFFIX = ".json"
REVOKED = "revoked-"
"""What the name of a registration begins with once its temporary is out of the way, until that is deleted."""
_IMPOSSIBLE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)
"""The temporary is not there (not written yet, finished, on another node's own disk), or nothing may be renamed there:
the commit cannot be finished either."""
ASIDE = ".revoked"
"""What is added to the name of a revoked temporary."""
NAME_BYTES = 255
"""How long a name may be on nearly every filesystem (NAME_MAX, limits.h)."""


@dataclass(frozen=True)
class PendingCommit:
    """A commit that may still be finished.

    Attributes:
        round: of the rank.
        node: where the rank runs; its paths are that node's.
        temporary: absolute path of what is to be renamed.
        target: absolute path of its name after that.
    """

    round: int
    node: str
    temporary: str
    target: str


@dataclass(frozen=True)
class Revoked:
    """A revoked commit, of which something may be left to delete.

    Attributes:
        registration: absolute path; to be removed last.
        path: absolute path of what was the temporary.
    """

    registration: str
    path: str


class Commits:
    """The registrations of a run.

    Args:
        fs: the filesystem of the run directory, and of what is committed.
        run: the run.
        nonce: source of names.
    """

    def __init__(self, fs: FileSystem, run: RunDirectory, nonce: Callable[[], str] = random_nonce) -> None:
        self._fs = fs
        self._directory = run.commits
        self._nonce = nonce

    def register(self, commit: PendingCommit) -> str:
        """Register a commit, before the state is looked at; return the registration for `finished`.

        Raises:
            OSError: it is not registered.
        """
        path = os.path.join(self._directory, f"{commit.round:06d}.{commit.node}.{self._nonce()}{SUFFIX}")
        content = encode({"schema": SCHEMA, "version": VERSION, **asdict(commit)})
        publish_once(self._fs, path, content, durable=True, nonce=self._nonce)
        return path

    def finished(self, registration: str) -> None:
        """Remove the registration of a commit that was finished, or given up and its temporary removed."""
        forget(self._fs, registration)

    def past(self, before_round: int) -> list[str]:
        """Return the registrations of rounds before that one.

        Raises:
            OSError: they cannot be listed.
        """
        # An own change to the directory has this client's kernel ask the server for the listing (measured on NFS, where
        # a listing was seen to lack a name for more than a minute).
        probe = os.path.join(self._directory, "look")
        forget(self._fs, create_temporary(self._fs, probe, b"", durable=False, nonce=self._nonce()))
        found = []
        for name in self._fs.listdir(self._directory):
            number, _ = _round_and_node(name)
            if number is not None and number < before_round:
                found.append(name)
        return sorted(found)

    def left_by(self, node: str, round_: int) -> bool:
        """Tell whether a node's ranks have left commits of that round or earlier ones.

        Raises:
            OSError: they cannot be listed.
        """
        return any(_round_and_node(name)[1] == node for name in self.past(round_ + 1))

    def revoke(self, before_round: int, is_mine: Callable[[str], bool]) -> tuple[list[Revoked], int]:
        """Make sure that commits of past rounds can no longer be finished.

        Args:
            before_round: the first round whose commits are left alone.
            is_mine: tells by the node of a commit whether this caller is the one to revoke it.

        Returns:
            What the caller should delete when there is time; and the number of commits that are left to others: no
            worker of a newer round may start until that is 0.

        Raises:
            OSError: not all could be revoked.
        """
        revoked: list[Revoked] = []
        left_to_others = 0
        for name in self.past(before_round):
            if is_mine(_round_and_node(name)[1]):
                revoked += self._revoke(name)
            elif not name.startswith(REVOKED):
                left_to_others += 1
        return revoked, left_to_others

    def _revoke(self, name: str) -> list[Revoked]:
        registration = os.path.join(self._directory, name)
        paths = self._paths(registration)
        if paths is None:
            return []
        temporary, target = paths
        if not name.startswith(REVOKED):
            try:
                self._fs.rename(temporary, temporary + ASIDE)
            except OSError as error:
                if error.errno not in _IMPOSSIBLE:
                    raise
            if target is not None:
                put_back(self._fs, temporary, target, temporary + ASIDE)
            revoked = os.path.join(self._directory, REVOKED + name)
            try:
                self._fs.rename(registration, revoked)
            except FileNotFoundError:
                # Finished meanwhile, or revoked by another caller.
                return []
            registration = revoked
        return [Revoked(registration, temporary + ASIDE)]

    def _paths(self, registration: str) -> tuple[str, str | None] | None:
        """Return the temporary and the target that a registration names; None when there is nothing to revoke."""
        try:
            commit = read_object(self._fs, registration, SCHEMA, VERSION)
        except FileNotFoundError:
            return None
        except BadFile:
            commit = {}
        temporary, target = commit.get("temporary"), commit.get("target")
        if isinstance(temporary, str) and os.path.isabs(temporary) and is_temporary(temporary):
            beside = isinstance(target, str) and os.path.dirname(target) == os.path.dirname(temporary)
            return temporary, target if beside else None
        # Ours are complete as soon as they have their name: something else wrote this one, or damaged it.
        forget(self._fs, registration)
        return None


def temporary_of(target: str, round_: int, nonce: str) -> str:
    """Return the hidden name beside `target` under which it is written; of a long name only the beginning is in it."""
    directory, name = os.path.split(target)
    end = f".round{round_}.{nonce}{TEMPORARY}"
    room = NAME_BYTES - len(f".{end}{ASIDE}")
    # Not within a character: some filesystems refuse names that are not UTF-8.
    shown = name if len(os.fsencode(name)) <= room else os.fsencode(name)[:room].decode("utf-8", "ignore")
    return os.path.join(directory, f".{shown}{end}")


def is_temporary(path: str) -> bool:
    """Tell whether `temporary_of` makes such names: nothing else is ever moved or deleted."""
    name = os.path.basename(path)
    return name.startswith(".") and name.endswith(TEMPORARY)


def _round_and_node(name: str) -> tuple[int | None, str]:
    number, _, rest = name.removeprefix(REVOKED).partition(".")
    node = rest.removesuffix(SUFFIX).rpartition(".")[0]
    whole = number.isascii() and number.isdigit() and node and rest.endswith(SUFFIX)
    return (int(number), node) if whole else (None, "")

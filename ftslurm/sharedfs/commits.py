"""Commits in progress, registered in the run directory so that a later round can revoke them.

A rank reads the fenced state and then renames its temporary file. In between it may be frozen for an hour, and no
filesystem has a rename that fails if a token is old. But a rename fails if its source is missing. So a rank registers
the temporary *before* it reads the state, and an agent that starts workers of a newer round first renames the
temporaries of all past rounds. The file server orders the two renames: either the commit came first and the new round
sees it, or it fails with ENOENT, however late it comes.

This covers all commits: a rank that passed the check of the state had registered before the newer round was published,
and the revocation lists the registrations after that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ftslurm.dataclasses import dataclass
from ftslurm.records.codec import BadFile, write_record
from ftslurm.records.state import PendingCommit
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import create_temporary, publish_once, random_nonce, read_published, remove_temporary
from ftslurm.sharedfs.replace import TEMPORARY, put_back
from ftslurm.sharedfs.rundir import RunDirectory

SUFFIX = ".json"
REVOKED = "revoked-"
"""Name prefix of a registration whose temporary has been renamed and is not yet deleted."""
_IMPOSSIBLE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)
"""The temporary is missing (not written yet, finished, on another node's local disk), or renames are not permitted
there: the commit cannot be finished either."""
REVOKED_SUFFIX = ".revoked"
"""Suffix added to the name of a revoked temporary."""
NAME_BYTES = 255
"""Maximal length of a file name on nearly every filesystem (NAME_MAX, limits.h)."""


@dataclass(frozen=True)
class Revoked:
    """A revoked commit, whose files may still have to be deleted.

    Attributes:
        registration: absolute path; to be removed last.
        path: absolute path of the renamed temporary.
    """

    registration: str
    path: str


class Commits:
    """The registrations of a run.

    Args:
        fs: the filesystem of the run directory, and of the committed files.
        run: the run.
        nonce: source of names.
    """

    def __init__(self, fs: FileSystem, run: RunDirectory, nonce: Callable[[], str] = random_nonce) -> None:
        self._fs = fs
        self._directory = run.commits
        self._nonce = nonce

    def register(self, commit: PendingCommit) -> str:
        """Register a commit before reading the state; return the registration for `finished`.

        Raises:
            OSError: it is not registered.
        """
        path = os.path.join(self._directory, f"{commit.round:06d}.{commit.node}.{self._nonce()}{SUFFIX}")
        content = write_record(commit)
        publish_once(self._fs, path, content, durable=True, nonce=self._nonce)
        return path

    def finished(self, registration: str) -> None:
        """Remove the registration of a commit that was finished, or abandoned with its temporary removed."""
        remove_temporary(self._fs, registration)

    def past(self, before_round: int) -> list[str]:
        """Return the registrations of rounds before that one.

        Raises:
            OSError: they cannot be listed.
        """
        # A change to the directory by this client makes its kernel revalidate the listing (measured on NFS, where a
        # listing lacked a name for more than a minute).
        probe = os.path.join(self._directory, "probe")
        remove_temporary(self._fs, create_temporary(self._fs, probe, b"", durable=False, nonce=self._nonce()))
        found = []
        for name in self._fs.listdir(self._directory):
            number, _ = _round_and_node(name)
            if number is not None and number < before_round:
                found.append(name)
        return sorted(found)

    def left_by(self, node: str, round_: int) -> bool:
        """Return whether a node's ranks have left commits of that round or earlier ones.

        Raises:
            OSError: they cannot be listed.
        """
        return any(_round_and_node(name)[1] == node for name in self.past(round_ + 1))

    def revoke(self, before_round: int, is_mine: Callable[[str], bool]) -> tuple[list[Revoked], int]:
        """Revoke the commits of past rounds, so that they can no longer be finished.

        Args:
            before_round: the first round whose commits stay valid.
            is_mine: returns, given the node of a commit, whether this caller revokes it.

        Returns:
            The files that the caller should delete later; and the number of commits that others have yet to revoke: no
            worker of a newer round may start until that is 0.

        Raises:
            OSError: not all could be revoked.
        """
        revoked: list[Revoked] = []
        pending_elsewhere = 0
        for name in self.past(before_round):
            if is_mine(_round_and_node(name)[1]):
                revoked += self._revoke(name)
            elif not name.startswith(REVOKED):
                pending_elsewhere += 1
        return revoked, pending_elsewhere

    def _revoke(self, name: str) -> list[Revoked]:
        registration = os.path.join(self._directory, name)
        paths = self._paths(registration)
        if paths is None:
            return []
        temporary, target = paths
        if not name.startswith(REVOKED):
            try:
                self._fs.rename(temporary, temporary + REVOKED_SUFFIX)
            except OSError as error:
                if error.errno not in _IMPOSSIBLE:
                    raise
            if target is not None:
                put_back(self._fs, temporary, target, temporary + REVOKED_SUFFIX)
            revoked = os.path.join(self._directory, REVOKED + name)
            try:
                self._fs.rename(registration, revoked)
            except FileNotFoundError:
                # Finished meanwhile, or revoked by another caller.
                return []
            registration = revoked
        return [Revoked(registration, temporary + REVOKED_SUFFIX)]

    def _paths(self, registration: str) -> tuple[str, str | None] | None:
        """Return the temporary and the target of a registration; None if there is nothing to revoke."""
        try:
            commit: PendingCommit | None = read_published(self._fs, registration, PendingCommit)
        except FileNotFoundError:
            return None
        except BadFile:
            commit = None
        if commit is not None and os.path.isabs(commit.temporary) and is_temporary(commit.temporary):
            beside = os.path.dirname(commit.target) == os.path.dirname(commit.temporary)
            return commit.temporary, commit.target if beside else None
        # Registrations are published complete: another program wrote this one, or it was damaged.
        remove_temporary(self._fs, registration)
        return None


def temporary_of(target: str, round_: int, nonce: str) -> str:
    """Return the hidden name beside `target` under which it is written; a long name is truncated in it."""
    directory, name = os.path.split(target)
    end = f".round{round_}.{nonce}{TEMPORARY}"
    room = NAME_BYTES - len(f".{end}{REVOKED_SUFFIX}")
    # Truncate at a character boundary: some filesystems refuse names that are not UTF-8.
    kept = name if len(os.fsencode(name)) <= room else os.fsencode(name)[:room].decode("utf-8", "ignore")
    return os.path.join(directory, f".{kept}{end}")


def is_temporary(path: str) -> bool:
    """Return whether `temporary_of` creates such names: no other file is ever moved or deleted."""
    name = os.path.basename(path)
    return name.startswith(".") and name.endswith(TEMPORARY)


def _round_and_node(name: str) -> tuple[int | None, str]:
    number, _, rest = name.removeprefix(REVOKED).partition(".")
    node = rest.removesuffix(SUFFIX).rpartition(".")[0]
    whole = number.isascii() and number.isdigit() and node and rest.endswith(SUFFIX)
    return (int(number), node) if whole else (None, "")

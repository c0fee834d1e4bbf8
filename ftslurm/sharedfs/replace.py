"""Renames a temporary file or directory to its target, replacing a file or a whole directory.

rename(2) replaces a file, but only an empty directory. Directories are exchanged (renameat2(2), RENAME_EXCHANGE): at
every moment one of the two is complete under the name. If the filesystem (NFS) or the kernel does not support exchange,
the old directory is first renamed, in two steps. `put_back` undoes a replacement that was killed between the two.

Both ways fail with ENOENT if the temporary is missing: a newer round prevents late commits by renaming it.
"""

from __future__ import annotations

import errno
import os

from ftslurm.kernel import exchange
from ftslurm.sharedfs.filesystem import FileSystem

TEMPORARY, OLD = ".tmp", ".old"
"""Suffixes of the name of a temporary, and of the old directory that it replaces."""
TRIES = 5
"""Number of attempts, since the target may vanish or appear between two calls."""
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
"""EPERM: from a container's seccomp filter; if renames are not permitted at all, the next call fails with it."""
_IN_THE_WAY = (*_NOT_EMPTY, errno.ENOTDIR)
_NOTHING_TO_UNDO = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)


class Stranded(OSError):
    """Neither the old directory nor the new one could be given the name; the text has their paths."""


def replace(temporary: str, target: str) -> str | None:
    """Rename `temporary` to `target`, replacing an existing one; absolute paths in one directory.

    Returns:
        The path of the replaced directory, to be deleted; None without one.

    Raises:
        FileNotFoundError: there is no `temporary`; `target` is unchanged.
        OSError: the rename failed, e.g. because only one of the two is a directory; `target` is unchanged.
        Stranded: `target` is missing; both directories are under hidden names.
    """
    for left in reversed(range(TRIES)):
        try:
            os.rename(temporary, target)
            return None
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
        try:
            return _replace_directory(temporary, target)
        except FileNotFoundError:
            # One of the two is missing: the next rename shows which.
            if not left:
                raise
    raise AssertionError("unreachable")


def _replace_directory(temporary: str, target: str) -> str:
    try:
        exchange(temporary, target)
        return temporary
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            raise
    # A newer round may have renamed it: the newer round's directory must then not be touched. Open it, since an NFS
    # client revalidates only then.
    os.close(os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    old = old_path(temporary)
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except OSError as error:
        _restore(old, target, temporary, error)
        raise
    return old


def _restore(old: str, target: str, temporary: str, cause: OSError) -> None:
    try:
        os.rename(old, target)
    except FileNotFoundError:
        # A newer round's `put_back` has done it.
        pass
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            both = f"the old directory is now {old}, the new one {temporary}"
            raise Stranded(cause.errno, f"{cause.strerror}, and then {error.strerror}; {both}", target) from None
        # Another commit has replaced the target meanwhile.
        remove(old)


def put_back(fs: FileSystem, temporary: str, target: str, discarded: str) -> None:
    """Undo a replacement that was interrupted between its two steps; the temporary is already renamed.

    Args:
        discarded: the new name of the old directory if the second step was done.

    Raises:
        OSError: it is unknown whether `target` exists.
    """
    old = old_path(temporary)
    for new_name in (target, discarded):
        try:
            fs.rename(old, new_name)
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                continue
            if error.errno not in _NOTHING_TO_UNDO:
                raise
        return


def old_path(temporary: str) -> str:
    """Return the path to which the old directory is renamed before `temporary` replaces it."""
    return temporary.removesuffix(TEMPORARY) + OLD


def remove(path: str) -> bool:
    """Remove a file or a whole directory; return whether it is gone."""
    if os.path.isdir(path) and not os.path.islink(path):
        from shutil import rmtree

        rmtree(path, ignore_errors=True)
    else:
        try:
            os.unlink(path)
        except OSError:
            pass
    return not os.path.lexists(path)

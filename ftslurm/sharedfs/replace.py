"""Gives what lies under a temporary name its own name, in the place of a file or of a whole directory.

rename(2) replaces a file, but only an empty directory. Directories are exchanged (renameat2(2), RENAME_EXCHANGE): at
every moment one of the two is complete under the name. Where the filesystem (NFS) or the kernel has no exchange, the
old directory is moved aside before, in two steps. What a kill between the two leaves is undone by `put_back`.

Both ways fail with ENOENT when the temporary is gone: that is how a newer round keeps a late commit out.
"""

from __future__ import annotations

import errno
import os

from ftslurm.kernel import exchange
from ftslurm.sharedfs.filesystem import FileSystem

TEMPORARY, MOVED_ASIDE = ".tmp", ".old"
"""How the name of a temporary ends, and of the directory that makes room for it."""
TRIES = 5
"""So often the target may vanish or appear between two calls."""
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
"""EPERM: of a container's seccomp filter; where really nothing may be renamed, the next call says so."""
_IN_THE_WAY = (*_NOT_EMPTY, errno.ENOTDIR)
_NOTHING_TO_UNDO = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)


class Stranded(OSError):
    """Neither the old directory nor the new one could be given the name; the text says where they lie."""


def replace(temporary: str, target: str) -> str | None:
    """Rename `temporary` to `target`, in the place of what is there; absolute paths in one directory.

    Returns:
        The path of a directory that was replaced and is to be deleted, None without one.

    Raises:
        FileNotFoundError: there is no `temporary`; `target` is as it was.
        OSError: it was refused, also where only one of the two is a directory; `target` is as it was.
        Stranded: `target` is gone, both lie under hidden names.
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
            # One of the two is gone: the next rename tells which.
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
    # A newer round may have moved it away: the newer round's directory is then best not touched at all. Opened, since
    # NFS asks the server only then.
    os.close(os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    aside = aside_of(temporary)
    os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except OSError as error:
        _restore(aside, target, temporary, error)
        raise
    return aside


def _restore(aside: str, target: str, temporary: str, cause: OSError) -> None:
    try:
        os.rename(aside, target)
    except FileNotFoundError:
        # A newer round's `put_back` was faster.
        pass
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            both = f"the old directory is now {aside}, the new one {temporary}"
            raise Stranded(cause.errno, f"{cause.strerror}, and then {error.strerror}; {both}", target) from None
        # Another commit has replaced it meanwhile.
        remove(aside)


def put_back(fs: FileSystem, temporary: str, target: str, discarded: str) -> None:
    """Undo a replacement that was interrupted between its two steps; the temporary is already out of the way.

    Args:
        discarded: the new name of the old directory where the second step was done.

    Raises:
        OSError: it is not known whether `target` is there.
    """
    aside = aside_of(temporary)
    for new_name in (target, discarded):
        try:
            fs.rename(aside, new_name)
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                continue
            if error.errno not in _NOTHING_TO_UNDO:
                raise
        return


def aside_of(temporary: str) -> str:
    """Return where a directory is moved to make room for `temporary`."""
    return temporary.removesuffix(TEMPORARY) + MOVED_ASIDE


def remove(path: str) -> bool:
    """Remove a file or a whole directory; tell whether nothing is left of it."""
    if os.path.isdir(path) and not os.path.islink(path):
        from shutil import rmtree

        rmtree(path, ignore_errors=True)
    else:
        try:
            os.unlink(path)
        except OSError:
            pass
    return not os.path.lexists(path)

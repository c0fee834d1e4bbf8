"""Files and directories owned and writable by this user alone, in directories that other users may share.

A user with write permission to a directory may create anything under any name in it: a link to one of this user's
files, a named pipe that blocks its opener. So files are opened from the tree's root down, without following links, each
directory held open while the next one is opened in it, and each must belong to this user and be writable for no other.
Directories above the root are not checked, but `renamer` returns users that could replace the tree.

Workers import this module: it imports only modules available there.
"""

from __future__ import annotations

import errno
import os
import stat

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_STICKY = "is writable without the sticky bit; chmod +t"
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class ForeignFile(OSError):
    """A file or directory is not a plain one that the run's owner alone can write: it is neither read nor written."""


def open_own_directory(path: str, root: str) -> int:
    """Return a descriptor of the directory `path`, after checking it and all directories above it up to `root`.

    Raises:
        ForeignFile: one of them is a link, belongs to another user, or is writable for others.
        OSError: it cannot be opened.
    """
    fd = _enter(root, None, root)
    for name in filter(None, path.removeprefix(root).split("/")):
        root = os.path.join(root, name)
        try:
            inner = _enter(name, fd, root)
        finally:
            os.close(fd)
        fd = inner
    return fd


def check_own_directory(path: str, root: str | None = None) -> None:
    """Check as `open_own_directory` does; `root` None: this directory alone."""
    os.close(open_own_directory(path, path if root is None else root))


def open_own_log(path: str, root: str) -> int:
    """Open the file `path`, below the directory `root`, for appending; create it, mode 0600, if it is missing.

    Raises:
        ForeignFile: it, or a directory up to `root`, is not this user's alone, or it has several hard links.
        OSError: it cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    directory = open_own_directory(os.path.dirname(path), root)
    try:
        fd = os.open(os.path.basename(path), flags, 0o600, dir_fd=directory)
    except OSError as error:
        # ENXIO: a named pipe without a reader, or a socket.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise ForeignFile(error.errno, "not a plain file", path) from None
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(directory)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise ForeignFile(errno.EINVAL, "not a plain file", path)
        if facts.st_uid != os.geteuid():
            raise ForeignFile(errno.EPERM, _belongs(facts), path)
        if facts.st_nlink > 1:
            raise ForeignFile(errno.EMLINK, "a hard link to another file", path)
    except OSError:
        os.close(fd)
        raise
    os.set_blocking(fd, True)
    return fd


def is_foreign(path: str) -> bool:
    """Tell whether something exists at `path` that is not a directory of this user's own."""
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid()


def renamer(path: str) -> tuple[str, str] | None:
    """Return a user or group that could replace the directory `path`, and why; None: there is none.

    Root does not count, nor do the owners of directories further above, in which this user has chosen to work. But the
    parent directory of `path` may have been created by the first user that ran ftslurm there.

    Raises:
        OSError: a directory cannot be examined.
    """
    parent = os.path.dirname(path)
    trusted = (0, os.geteuid())
    for directory in _above(path):
        facts = os.lstat(directory)
        if stat.S_ISLNK(facts.st_mode) and facts.st_uid not in trusted:
            return f"uid {facts.st_uid}", f"{directory} is a link that belongs to it; use a directory of your own"
    if (owner := os.stat(parent).st_uid) not in trusted:
        return f"uid {owner}", f"{parent} belongs to it; have root own it, or use a directory of your own"
    # A link in the path may be replaced at its own location, and so may its target.
    for directory in dict.fromkeys((*_above(path), *_above(os.path.realpath(path)))):
        facts = os.stat(directory)
        if facts.st_mode & stat.S_ISVTX:
            continue
        if facts.st_mode & stat.S_IWOTH:
            return "any user", f"{directory} {_NOT_STICKY} {directory}"
        if facts.st_mode & stat.S_IWGRP and not _own_group(facts.st_gid):
            return f"group {facts.st_gid}", f"{directory} {_NOT_STICKY} {directory}"
    return None


def _above(path: str) -> list[str]:
    """Return the directories above `path`, the nearest first."""
    found = []
    while (above := os.path.dirname(path)) != path:
        found.append(above)
        path = above
    return found


def _enter(name: str, above: int | None, path: str) -> int:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and os.path.islink(path):
            raise ForeignFile(errno.ELOOP, "a symbolic link, which is not followed", path) from None
        if error.errno == errno.EACCES and (facts := os.lstat(path)).st_uid != os.geteuid():
            raise ForeignFile(errno.EPERM, _belongs(facts), path) from None
        raise OSError(error.errno, error.strerror, path) from None
    facts = os.fstat(fd)
    problem = None
    if facts.st_uid != os.geteuid():
        problem = _belongs(facts)
    elif facts.st_mode & _OTHERS:
        problem = f"others may write to it (mode {stat.S_IMODE(facts.st_mode):04o}); chmod 700 {path}"
    if problem is not None:
        os.close(fd)
        raise ForeignFile(errno.EPERM, problem, path)
    return fd


def user_name() -> str:
    """Return the name of this process's user; one without a name, as in some containers, is `uid N`."""
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError):
        return f"uid {os.geteuid()}"


def _belongs(facts: os.stat_result) -> str:
    return f"it belongs to uid {facts.st_uid}, you are uid {os.geteuid()}"


def _own_group(gid: int) -> bool:
    """Return whether that group has this user as its only member (a user private group)."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}

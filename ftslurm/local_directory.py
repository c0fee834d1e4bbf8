"""Node-local directories of this user alone: creation, protection from cleaners, removal."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable

PROBES = 16
"""Number of files, about those of two ranks, that must fit into the directory for temporary files."""
ROOMY_INODES = 1000
"""Free inodes required on a filesystem that counts them, for all ranks of a large node, unless no candidate has
them."""


def make_private(path: str) -> None:
    """Create the directory `path`, and missing parents, for this user alone; an existing one stays.

    Not `os.makedirs`, which leaves the mode of parents to the umask: an agent's directory that a cleaner has
    removed must not come back readable by others.

    Raises:
        OSError: it cannot be created; `FileExistsError`: something else has that name.
    """
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        make_private(os.path.dirname(path))
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def keep_from_cleaners(path: str) -> None:
    """Hold a shared lock on the directory `path` for this process's life: systemd-tmpfiles then skips it.

    The descriptor stays open on purpose. Other cleaners have no such convention. Source: tmpfiles.d(5), on aging.
    """
    try:
        fcntl.flock(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        # A filesystem without locks, or a cleaner at work: the job works without.
        pass


def remove_tree(path: str) -> None:
    """Remove a node-local directory, as far as it can be removed."""
    for directory, subdirectories, files in os.walk(path, topdown=False):
        for name in (*files, *subdirectories):
            # A link to a directory is listed as one.
            _try(os.unlink, os.path.join(directory, name)) or _try(os.rmdir, os.path.join(directory, name))
    _try(os.rmdir, path)


def _try(remove: Callable[[str], None], path: str) -> bool:
    try:
        remove(path)
    except OSError:
        return False
    return True


def make_agent_directory(complain: Callable[[str], None]) -> str:
    """Make the node-local directory of agent and ranks on the first filesystem that supports what they need.

    $TMPDIR may be that of another node, full, or on a filesystem without named pipes. Without any named
    pipe, torch's timers are not received.

    Args:
        complain: receives what the user should know of it.

    Raises:
        OSError: there is no place for it; the text has the problem of each.
    """
    bases = dict.fromkeys(os.path.abspath(base) for base in (os.environ.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm"))
    for inodes, pipes in ((ROOMY_INODES, True), (0, True), (0, False)):
        problems = []
        for base in bases:
            path = os.path.join(base, f"ftslurm-{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}")
            try:
                os.mkdir(path, 0o700)
                _try_out(path, inodes, pipes)
            except OSError as error:
                problems.append(f"{base}: {error.strerror}")
                remove_tree(path)
                continue
            if problems:
                complain(f"{'; '.join(problems)}: {base} is used for temporary files instead")
            if not pipes:
                complain("no named pipe can be made on this node: torch's timers are not received")
            keep_from_cleaners(path)
            return path
    raise OSError(errno.ENOSPC, "; ".join(problems))


def _try_out(path: str, inodes: int, pipes: bool) -> None:
    """Make and remove what agent and ranks make in their directory: files with content and, optionally, a named pipe.

    Raises:
        OSError: that failed, or fewer than `inodes` inodes are free.
    """
    room = os.statvfs(path)
    if room.f_files and room.f_favail < inodes:
        raise OSError(errno.ENOSPC, f"only {room.f_favail} inodes are free")
    names = [os.path.join(path, f"probe-{number}") for number in range(PROBES)]
    for name in names:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b" " * 4096)
        finally:
            os.close(fd)
    for name in names:
        os.unlink(name)
    if pipes:
        os.mkfifo(names[0], 0o600)
        os.unlink(names[0])

"""Node-local directories of this user alone: made, kept from cleaners, removed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable


def make_private(path: str) -> None:
    """Make the directory `path`, and those above it that are missing, for this user alone; one that exists stays.

    Not `os.makedirs`, which leaves those above to the umask: an agent's directory that a cleaner has removed must not
    come back readable by others.

    Raises:
        OSError: it cannot be made; `FileExistsError` where something else lies there.
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
    """Hold a shared lock on the directory `path` for this process's life: systemd-tmpfiles then passes it by.

    The descriptor stays open on purpose. Other cleaners know no such sign. Source: tmpfiles.d(5), on aging.
    """
    try:
        fcntl.flock(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        # A filesystem without locks, or a cleaner that is at it: the job works without.
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

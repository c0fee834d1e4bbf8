"""The checkpoint that a rank reports to load: a small file in the rank's node-local record directory.

Not a message in the node's pipe: a rank that dies while it loads is exactly the one whose file must be read.
"""

from __future__ import annotations

import os

FILE = "loading"
LIMIT = 1024
"""Longest path, in characters."""


def write(record_dir: str, path: str) -> None:
    """Note that this rank loads `path`; the last one counts.

    Raises:
        ValueError: it is empty or too long.
        OSError: the file cannot be written.
    """
    if not path or len(path) > LIMIT or "\n" in path or "\0" in path:
        raise ValueError(f"a checkpoint's path should have 1 to {LIMIT} characters on one line")
    new = os.path.join(record_dir, f".{FILE}.{os.getpid()}")
    with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(path)
    os.rename(new, os.path.join(record_dir, FILE))


def read(record_dir: str) -> str | None:
    """Return the path that a rank has noted, None without one."""
    try:
        # Not followed, and not waited for: the directory is the ranks' own.
        fd = os.open(os.path.join(record_dir, FILE), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.read(fd, 4 * LIMIT + 1)
    except OSError:
        return None
    finally:
        os.close(fd)
    path = data.decode("utf-8", "surrogateescape")
    return path if 0 < len(path) <= LIMIT and "\n" not in path and "\0" not in path else None

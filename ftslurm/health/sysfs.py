"""Reads the kernel's small files of one value each (/sys and /proc)."""

from __future__ import annotations

import os

_LIMIT = 1 << 16


def text(*parts: str) -> str | None:
    """Return a file's text, stripped; None: it does not exist, or cannot be read."""
    try:
        fd = os.open(os.path.join(*parts), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _LIMIT).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def number(*parts: str) -> int | None:
    """Return a file's number, decimal or with 0x; None: there is none ("N/A (no PMA)")."""
    found = text(*parts)
    if found is None:
        return None
    try:
        return int(found, 0)
    except ValueError:
        return None


def names(*parts: str) -> list[str]:
    """Return the sorted names in a directory; empty if it does not exist."""
    try:
        return sorted(os.listdir(os.path.join(*parts)))
    except OSError:
        return []

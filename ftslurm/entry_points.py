"""Entry points by which other packages extend ftslurm, found at little cost where there are none."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def find(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group; raises any error of broken metadata."""
    if not _any_added(f"[{group}]".encode()):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def _any_added(group: bytes) -> bool:
    """Search the installers' files for the group's name: importing importlib.metadata costs more than all the rest."""
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) and _mentions(os.path.join(place, name), group):
                return True
    return False


def _mentions(directory: str, group: bytes) -> bool:
    try:
        with open(os.path.join(directory, "entry_points.txt"), "rb") as file:
            return group in file.read(1 << 20)
    except OSError:
        return False

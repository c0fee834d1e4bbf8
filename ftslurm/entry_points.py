"""What other packages add to ftslurm by entry points, found at little cost where nothing was added."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def find(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group; whatever the packages' metadata is broken by is raised."""
    if not _any_added(f"[{group}]".encode()):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def _any_added(group: bytes) -> bool:
    """Look for the group's name where installers put it: importing importlib.metadata costs more than all the rest."""
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

"""Which frames of a traceback are the user's own code (pure)."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftslurm.records.error import Frame

_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen|/ftslurm/(worker|boot/)"
    # A traceback in which the directories were left out, and one of Windows.
    r"|\.pyx$|^torch/|[\\/]([Ss]ite|dist)-packages[\\/]|\\lib\\\w+\.py$"
)


def is_library(file: str) -> bool:
    """Return whether a file is not part of the user's own code."""
    return _LIBRARY.search(file) is not None


def own_frame(frames: Sequence[Frame]) -> Frame:
    """Return the innermost frame of the user's own files, else of other code of the user's; else the innermost."""
    own = [frame for frame in reversed(frames) if not is_library(frame.file)]
    return next((frame for frame in own if not frame.file.startswith("<")), own[0] if own else frames[-1])

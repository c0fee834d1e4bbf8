"""The list of what a rank has imported, for the standby workers that import the same ahead for the next round.

With it the variables that the script has changed: many scripts set one before they import what reads it, and a standby
worker would import too early for that. Written by the first rank of a node with its second step or heartbeat, when what
training needs has been imported, also what torch imports only in the first step. The file is node-local and private;
names are in it, and checksums of the variables' values.
"""

from __future__ import annotations

import os
import sys

from ftslurm.round_variables import changed_variables
from ftslurm.standby_imports import NOT_AHEAD

VARIABLE = "FTSLURM_IMPORTS"
"""Where the list is written to; only one rank of a node has it."""
_PACKAGES = ("/site-packages/", "/dist-packages/")
_MODULE = type(sys)


def write_list(path: str) -> None:
    """Write the modules that came from installed packages, in the order of their imports, and changed variables."""
    names = [name for name, module in list(sys.modules.items()) if is_installed(name, module)]
    changed = (f"{name}={checksum}" for name, checksum in sorted(changed_variables().items()))
    text = "\n".join([*names, "", *changed])
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, os.fsencode(text))
    finally:
        os.close(fd)
    os.replace(temporary, path)


def is_installed(name: str, module: object) -> bool:
    """Return whether that is a module of an installed package that may be imported ahead, by this very name."""
    if not isinstance(module, _MODULE) or name.partition(".")[0] in NOT_AHEAD or not _is_plain(name):
        return False
    # Not by getattr: that would load a module whose import its package puts off.
    spec = _MODULE.__getattribute__(module, "__dict__").get("__spec__")
    origin = getattr(spec, "origin", None)
    if getattr(spec, "name", None) != name or not isinstance(origin, str):
        return False
    return any(part in origin for part in _PACKAGES)


def _is_plain(name: str) -> bool:
    return name.isascii() and all(part.isidentifier() for part in name.split("."))

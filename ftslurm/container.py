"""What agent and worker exchange in a rank's record directory where a container lies between them (`--worker-prefix`).

A container runtime may drop the environment, start the worker as its child instead of becoming it, and give it process
ids of its own: so the variables are in a file, and the worker writes down the process id that it has in there.
Imported by workers before the user's code: without imports that are not built in.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT, PROCESS = "environment", "process"


def write_environment(directory: str, variables: Mapping[str, str]) -> None:
    """Write the variables for `enter`; `OSError` when that fails."""
    text = "\0".join(f"{name}={value}" for name, value in variables.items())
    _write(os.path.join(directory, ENVIRONMENT), os.fsencode(text))


def enter(directory: str) -> None:
    """Set the variables that the agent has written, then write this process's id: the rank has begun.

    Raises:
        OSError: the directory is not visible in the container, or cannot be written there.
    """
    with open(os.path.join(directory, ENVIRONMENT), "rb") as file:
        text = os.fsdecode(file.read())
    for item in text.split("\0"):
        name, _, value = item.partition("=")
        os.environ[name] = value
    _write(os.path.join(directory, PROCESS), b"%d" % os.getpid())


def announced(directory: str) -> int | None:
    """Return the process id that the worker has in its container; None: it has not begun, or wrote no number."""
    try:
        with open(os.path.join(directory, PROCESS), "rb") as file:
            text = file.read(20)
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)

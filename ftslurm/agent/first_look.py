"""The process that will look at this node first: it loads the checks while its agent still finds out what to check.

Forked before the agent has loaded anything, so that both load at the same time, and before it has a second thread.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from ftslurm.kernel import die_with_parent, pidfd_open, pidfd_send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ftslurm.health.verdict import Json

_DESCRIPTORS = 4096


class FirstLook:
    """One process, which is told to look once, or is dropped.

    Args:
        request: the file that will hold the request, see `ftslurm.health.look`; not on the shared filesystem.

    Attributes:
        pid, pidfd: of the process.
        fd: what it answers can be read here, without waiting.
    """

    def __init__(self, request: str) -> None:
        """Fork it.

        Raises:
            OSError: that is not possible.
        """
        self._request = request
        self.fd, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        wait, self._go = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write, True)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _be_look(request, wait, write)
            # Nobody collects children yet: the number is still its own.
            self.pidfd = pidfd_open(self.pid)
        finally:
            os.close(wait)
            os.close(write)

    def begin(self, request: Json) -> bool:
        """Have it look; False, and it is dropped, when the request cannot be written: a full disk, say."""
        try:
            with open(self._request, "w") as file:
                json.dump(request, file)
        except OSError:
            self.drop()
            return False
        os.close(self._go)
        return True

    def drop(self) -> None:
        """It is not needed; whoever collects children collects it."""
        pidfd_send_signal(self.pidfd, signal.SIGKILL)
        for fd in (self.fd, self.pidfd, self._go):
            os.close(fd)


def first_look(local_dir: str) -> FirstLook | None:
    """Return one that answers requests in this node-local directory; None: no process could be made."""
    try:
        return FirstLook(os.path.join(local_dir, "health-request.json"))
    except OSError:
        return None


def _be_look(request: str, wait: int, write: int) -> NoReturn:
    code = 1
    try:
        die_with_parent()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.dup2(wait, 0)
        os.dup2(write, 1)
        # The agent's own: what tells the guardian of its end must have no other holder.
        os.closerange(3, _DESCRIPTORS)
        from ftslurm.health import catalog, look

        catalog.builtin()
        # Until the agent closes its end.
        os.read(0, 1)
        os.dup2(os.open(request, os.O_RDONLY), 0)
        look.main()
        code = 0
    except Exception as error:
        # A module that is broken or gone. The agent says that the look came to nothing.
        sys.stderr.write(f"ftslurm: health: {type(error).__name__}: {error}\n")
    finally:
        os._exit(code)

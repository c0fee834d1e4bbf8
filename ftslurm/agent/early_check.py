"""The process of the first health check run: it loads the checks while its agent still determines what to check.

It is forked before the agent has loaded anything, so that both load at the same time on two cores, and before the agent
has a second thread. An interpreter of its own would load half of the modules again, which takes long where processes
start slowly.
"""

from __future__ import annotations

import json
import os
import signal

from ftslurm.kernel import die_with_parent, pidfd_open, pidfd_send_signal
from ftslurm.terminal import print_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ftslurm.health.verdict import Json

_REQUEST = "health-request.json"
_DESCRIPTORS = 4096


class EarlyCheck:
    """A process that runs the health checks once, when `begin` passes the request.

    Args:
        local_dir: node-local directory for the request.

    Attributes:
        pid, pidfd: of the process.
        fd: its output, see `ftslurm.health.agent_run`; reading does not block.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, local_dir: str) -> None:
        self._request = os.path.join(local_dir, _REQUEST)
        self.fd, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        wait, self._go = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write, True)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run(self._request, wait, write)
            # No handler for SIGCHLD exists yet, so the pid cannot have been reused.
            self.pidfd = pidfd_open(self.pid)
        finally:
            os.close(wait)
            os.close(write)

    def begin(self, request: Json) -> bool:
        """Start the checks; return False, and drop the process, if the request cannot be written (a full disk)."""
        try:
            with open(self._request, "w") as file:
                json.dump(request, file)
            os.write(self._go, b"x")
        except OSError:
            # The disk is full, or the process has ended.
            self.drop()
            return False
        os.close(self._go)
        return True

    def drop(self) -> None:
        """Kill the process; the agent collects it with its other children."""
        pidfd_send_signal(self.pidfd, signal.SIGKILL)
        for fd in (self.fd, self.pidfd, self._go):
            os.close(fd)


def start_early_check(local_dir: str) -> EarlyCheck | None:
    """Return an `EarlyCheck`, or None if the process cannot be started."""
    try:
        return EarlyCheck(local_dir)
    except OSError:
        return None


def _run(request: str, wait: int, write: int) -> NoReturn:
    code = 1
    try:
        die_with_parent()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.dup2(wait, 0)
        os.dup2(write, 1)
        # The pipe by which the guardian notices the agent's end must have no other holder.
        os.closerange(3, _DESCRIPTORS)
        from ftslurm.health import agent_run, catalog

        catalog.builtin()
        # An agent that has ended, for wrong arguments perhaps, sends nothing.
        if os.read(0, 1):
            os.dup2(os.open(request, os.O_RDONLY), 0)
            agent_run.main()
        code = 0
    except Exception as error:
        # A module that is broken or missing. The agent reports that the check run failed.
        print_error(f"ftslurm: health: {type(error).__name__}: {error}")
    finally:
        os._exit(code)

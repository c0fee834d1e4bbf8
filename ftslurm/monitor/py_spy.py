"""``py-spy dump --native``, where it is installed: the native frames of a process that hangs, bounded in time and size.

py-spy reads another process's memory, which the kernel often allows to root alone (ptrace(2), Yama): a denial
is one line, and nothing else is lost. A shell searches PATH for it and starts it, because PATH may lead to a
shared filesystem that hangs: then the shell hangs, not the agent.
"""

from __future__ import annotations

import os
import signal

from ftslurm.kernel import pidfd_send_signal, spawn

LIMIT = 256 * 1024
_SHELL = 'command -v "$0" >/dev/null 2>&1 || exit; exec "$0" dump --native --pid "$1"'
_READS_PER_TURN = 16


class PySpy:
    """One ``py-spy dump``, begun by the first `poll`.

    Args:
        pid: the process to examine.
        program: py-spy, by name or path.
    """

    def __init__(self, pid: int, program: str = "py-spy") -> None:
        self._command = ["/bin/sh", "-c", _SHELL, program, str(pid)]
        self._pidfd = self._fd = -1
        self._output = bytearray()
        self._note = ""
        self._done = False

    def poll(self, now_s: float, deadline_s: float) -> bool:
        """Start it, or take what it has written; return whether it is over.

        Args:
            now_s: monotonic seconds.
            deadline_s: the monotonic second at which it is killed.
        """
        if self._done:
            return True
        if self._pidfd < 0 and not self._start():
            return True
        for _ in range(_READS_PER_TURN):
            try:
                part = os.read(self._fd, 65536)
            except BlockingIOError:
                break
            self._output += part[: LIMIT - len(self._output)]
            if not part:
                self._end()
                return True
        if now_s >= deadline_s:
            self._note = "py-spy was not ready in time"
            self._end()
        return self._done

    def text(self) -> str:
        """Return its stacks, or one line with the reason why there are none; empty where there is no py-spy."""
        text = self._output.decode("utf-8", "replace").strip()
        if "Thread" in text:
            return f"{text}\n{self._note}".strip()
        lines = text.splitlines()
        denied = next((line for line in lines if "denied" in line.lower() or "permitted" in line.lower()), None)
        why = denied or (lines[-1] if lines else "")
        return self._note or (f"py-spy gave no stacks: {why.strip()[:300]}" if why else "")

    def close(self) -> None:
        """Kill it if it still runs."""
        if self._pidfd >= 0 and not self._done:
            self._end()

    def _start(self) -> bool:
        self._fd, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        outputs = [(os.POSIX_SPAWN_DUP2, write, fd) for fd in (1, 2)]
        try:
            _, self._pidfd = spawn(self._command, os.environ, [no_input, *outputs])
        except OSError as problem:
            self._note = f"py-spy could not be started: {problem.strerror}"
            self._done = True
            os.close(self._fd)
            return False
        finally:
            os.close(write)
        return True

    def _end(self) -> None:
        self._done = True
        os.close(self._fd)
        try:
            # Whatever keeps it (it may be in D state itself): the agent's own collecting of children buries it.
            pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(self._pidfd)

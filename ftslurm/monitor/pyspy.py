"""``py-spy dump --native``, where it is installed: the native frames of a process that hangs, bounded in time and size.

py-spy reads another process's memory, which the kernel often allows to root alone (ptrace(2), Yama): that it was denied
is said in one line, and nothing else is lost. It is looked for and started by a shell, because PATH may lead to a
shared filesystem that hangs: then the shell hangs, not the agent.
"""

from __future__ import annotations

import os
import subprocess

LIMIT = 256 * 1024
_SHELL = 'command -v "$0" >/dev/null 2>&1 || exit; exec "$0" dump --native --pid "$1"'
_READS_PER_TURN = 16


class PySpy:
    """One ``py-spy dump``, begun by the first `poll`.

    Args:
        pid: the process to look at.
        program: py-spy, by name or path.
    """

    def __init__(self, pid: int, program: str = "py-spy") -> None:
        self._command = ["/bin/sh", "-c", _SHELL, program, str(pid)]
        self._process: subprocess.Popen[bytes] | None = None
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
        if self._process is None and not self._start():
            return True
        assert self._process is not None
        assert self._process.stdout is not None
        for _ in range(_READS_PER_TURN):
            try:
                part = os.read(self._process.stdout.fileno(), 65536)
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
        """Return its stacks, or the one line that says why there are none; empty where there is no py-spy."""
        text = self._output.decode("utf-8", "replace").strip()
        if "Thread" in text:
            return f"{text}\n{self._note}".strip()
        lines = text.splitlines()
        denied = next((line for line in lines if "denied" in line.lower() or "permitted" in line.lower()), None)
        why = denied or (lines[-1] if lines else "")
        return self._note or (f"py-spy gave no stacks: {why.strip()[:300]}" if why else "")

    def close(self) -> None:
        """Kill it if it still runs."""
        if self._process is not None and not self._done:
            self._end()

    def _start(self) -> bool:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as problem:
            self._note = f"py-spy could not be started: {problem.strerror}"
            self._done = True
            return False
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        return True

    def _end(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        self._done = True
        process.stdout.close()
        # Whatever keeps it (it may be in D state itself): the agent's own collecting of children buries it.
        process.kill()
        process.poll()

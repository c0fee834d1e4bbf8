"""The user's own commands: exit code 0 is ok, 1 a warning, 2 a failure, with the first line of output as the reason.

They run all at once, by `sh -c`, in the job's environment with FTSLURM_NODE, and with FTSLURM_HEALTH_BUSY=1 while ranks
are running. Their children do not outlive them: when a command ends, or exceeds its time-out, its descendants are
killed, also those that left its session.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Absent, Check, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.kernel import become_subreaper, end_descendants, pidfd_open, signal_name
from ftslurm.records.health import FAIL, UNKNOWN, WARN
from ftslurm.text import one_line, plural

LIMIT_S = 8.0
STATUSES = {1: WARN, 2: FAIL}
_KEPT = 4096
_REAP_S = 0.5
_SHOWN = 60


def fetch(context: Context) -> Json:
    """Run them all, and finally kill all descendants of this process: it must be the check's own."""
    if not context.commands:
        raise Absent("no commands of your own")
    # Orphans are reparented to this process, and can be found.
    become_subreaper()
    environ = {**os.environ, **context.environ, "FTSLURM_NODE": context.node}
    environ["FTSLURM_HEALTH_BUSY"] = "1" if context.busy else "0"
    running: list[_Command] = []
    try:
        for command in context.commands:
            running.append(_Command(command, environ))
        _wait(running, time.monotonic() + LIMIT_S)
        return {"commands": [one.facts() for one in running]}
    finally:
        end_descendants(_REAP_S)


def _wait(commands: Sequence[_Command], deadline: float) -> None:
    poll = select.poll()
    waiting = {one.pidfd: one for one in commands}
    outputs = {fd: one for one in commands for fd in one.outputs}
    for fd in (*waiting, *outputs):
        poll.register(fd, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000 + 1):
            if fd in waiting:
                poll.unregister(fd)
                waiting.pop(fd).end()
            elif not outputs[fd].read(fd):
                poll.unregister(fd)


class _Command:
    """One running command."""

    def __init__(self, command: str, environ: dict[str, str]) -> None:
        self.command = command
        self.began = time.monotonic()
        self.took_s: float | None = None
        # Imported only with commands.
        import subprocess

        # In this process's group: if this process hangs and its group is killed, the commands are killed too.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._kept = {self._process.stdout.fileno(): b"", self._process.stderr.fileno(): b""}
        for fd in self._kept:
            os.set_blocking(fd, False)
        self.pidfd = pidfd_open(self._process.pid)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Standard output and standard error."""
        return tuple(self._kept)

    def read(self, fd: int) -> bool:
        """Read the available output; False at the end. Excess output is dropped: the command must not block."""
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        if len(self._kept[fd]) >= _KEPT:
            # Endless output must not occupy a whole CPU.
            time.sleep(0.002)
        self._kept[fd] = (self._kept[fd] + chunk)[:_KEPT]
        return bool(chunk)

    def end(self) -> None:
        """Record its end; its children may keep its output open."""
        self.took_s = time.monotonic() - self.began
        self._process.wait()
        for fd in self.outputs:
            while len(self._kept[fd]) < _KEPT:
                before = self._kept[fd]
                if not self.read(fd) or self._kept[fd] == before:
                    break

    def facts(self) -> Json:
        """Return its result, with code None if it did not end, and its first line."""
        lines = [line for kept in self._kept.values() for line in kept.splitlines() if line.strip()]
        return {
            "command": self.command,
            "code": self._process.returncode,
            "line": one_line(lines[0].decode("utf-8", "replace")) if lines else "",
            "took_s": self.took_s,
        }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge by the exit codes."""
    found: list[Finding] = []
    for one in facts["commands"]:
        subject, code, line = one_line(one["command"], _SHOWN), one["code"], one["line"]
        if code == 0:
            continue
        advice = f"It is your command: run it on {context.node} by hand."
        if code is None:
            text = f"has not ended within {LIMIT_S:g} s, and was killed" + (f"; its output: {line}" if line else "")
            found.append(Finding(UNKNOWN, subject, text, advice))
        elif code in STATUSES:
            found.append(Finding(STATUSES[code], subject, line or f"exit code {code}, no output", advice))
        else:
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"exit code {code}, expected 0, 1 or 2"
            found.append(Finding(UNKNOWN, subject, f"{how}: {line}" if line else how, advice))
    lines = [one["line"] for one in facts["commands"] if one["code"] == 0 and one["line"]]
    how = f"{len(found)} not ok" if found else one_line(lines[0], 80) if lines else "all ok"
    return Judgement(f"{plural(len(facts['commands']), 'command')}, {how}", tuple(found))


CHECK = Check(
    name="own-commands",
    about="your own commands",
    sets=frozenset((QUICK, BACKGROUND, THOROUGH)),
    limit_s=LIMIT_S + 2.0,
    fetch=fetch,
    judge=judge,
    late=UNKNOWN,
    late_text="a command cannot be killed",
    late_advice="It hangs in the kernel; look at what it was doing.",
    may_hang=lambda context: bool(context.commands),
)

"""Runs checks, each in a process of its own, all at once, and each with its own time-out.

A check that hangs is a finding. It is killed, and what it started; one that hangs in the kernel cannot even be killed
at once: it is not waited for, and its pid is told.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from ftslurm.health.check import Absent, Check, Context
from ftslurm.health.result import Looked
from ftslurm.health.verdict import OK, UNKNOWN, Finding, Json, Judgement, Verdict, verdict

REAP_S = 0.2
_LIMIT = 4 << 20
"""Bytes of facts that are read of one check; more is taken to be broken."""


def run(
    checks: Sequence[Check],
    context: Context,
    before: Mapping[str, Json],
    clock: Callable[[], float] = time.monotonic,
) -> Looked:
    """Run the checks and judge what they fetch. Call it from a process without other threads: it forks.

    Args:
        before: the facts of the look before, by check.
    """
    began = clock()
    children: list[_Child] = []
    try:
        for check in checks:
            children.append(_Child(check, context, clock))
        _collect(children, clock)
    finally:
        for child in children:
            child.kill()
        stuck = _reap(children, clock)
    verdicts = tuple(child.verdict(before.get(child.check.name), context) for child in children)
    present = tuple(one.check for one in verdicts if one.facts is not None)
    return Looked(verdicts, stuck, clock() - began, present)


def _collect(children: Sequence[_Child], clock: Callable[[], float]) -> None:
    poll = select.poll()
    running = {child.fd: child for child in children}
    for fd in running:
        poll.register(fd, select.POLLIN)
    while running:
        wait_s = min(child.deadline for child in running.values()) - clock()
        for fd, _ in poll.poll(max(0.0, wait_s) * 1000 + 1):
            if not running[fd].receive():
                poll.unregister(fd)
                running.pop(fd).took_s = clock() - children[0].began
        for fd, child in list(running.items()):
            if clock() >= child.deadline:
                child.late = True
                child.took_s = child.check.limit_s
                poll.unregister(fd)
                del running[fd]


def _reap(children: Sequence[_Child], clock: Callable[[], float]) -> tuple[int, ...]:
    deadline = clock() + REAP_S
    left = {child.pid for child in children}
    while left:
        left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
        if not left or clock() >= deadline:
            break
        time.sleep(0.002)
    return tuple(sorted(left))


class _Child:
    """The process of one check."""

    def __init__(self, check: Check, context: Context, clock: Callable[[], float]) -> None:
        self.check = check
        self.began = clock()
        self.deadline = self.began + check.limit_s
        self.late = False
        self.took_s = 0.0
        self._data = bytearray()
        self.fd, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _fetch(check, context, write)
        os.close(write)

    def receive(self) -> bool:
        """Take what came; False at the end."""
        chunk = os.read(self.fd, 1 << 16)
        self._data += chunk
        return bool(chunk) and len(self._data) <= _LIMIT

    def kill(self) -> None:
        """Kill it and what it started."""
        os.close(self.fd)
        for kill, target in ((os.killpg, self.pid), (os.kill, self.pid)):
            try:
                kill(target, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def verdict(self, before: Json | None, context: Context) -> Verdict:
        """Judge what it fetched."""
        check = self.check
        if self.late:
            text = f"{check.late_text}: no answer within {check.limit_s:g} s"
            return verdict(
                check.name, Judgement(text, (Finding(check.late, "", text, check.late_advice),)), self.took_s
            )
        try:
            said = json.loads(self._data)
            absent, problem, facts = said["absent"], said["problem"], said["facts"]
        except (ValueError, KeyError, TypeError):
            absent, problem, facts = None, "its process was killed", None
        if absent is not None:
            return Verdict(check.name, OK, absent, (), self.took_s)
        if problem is None:
            try:
                return verdict(check.name, check.judge(facts, before, context), self.took_s, facts)
            except Exception as error:  # facts that nobody thought of must not cost the other checks
                problem = f"{type(error).__name__}: {error}"
        text = f"could not be checked: {problem}"
        advice = f"Run `ftslurm health {check.name}` there by hand."
        return verdict(check.name, Judgement(text, (Finding(UNKNOWN, "", text, advice),)), self.took_s)


def _fetch(check: Check, context: Context, write: int) -> None:
    """Fetch the facts and send them; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        # A library that prints must not do so into our caller's output.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        said: Json = {"absent": None, "problem": None, "facts": None}
        try:
            said["facts"] = check.fetch(context)
        except Absent as absent:
            said["absent"] = str(absent)
        except Exception as error:  # whatever a driver's library comes up with is a finding, no more
            said["problem"] = f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)
        data = memoryview(json.dumps(said).encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(write, data) :]
        code = 0
    finally:
        # Nothing of the parent's is flushed or run a second time.
        sys.stderr.flush()
        os._exit(code)

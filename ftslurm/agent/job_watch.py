"""What announces the end of the job while ranks run: Slurm's end time and preemption, a notice of the node's own."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Mapping

from ftslurm.agent.helper_process import HelperProcess
from ftslurm.boot import module_command
from ftslurm.dataclasses import dataclass
from ftslurm.records.stop import DRAIN, NOTICE, JobEnd, StopRequest
from ftslurm.text import duration, names, one_line

QUERY_EVERY_S, QUERY_SOON_S, QUERY_S = 60.0, 10.0, 30.0
"""Intervals of the coordinator's queries of Slurm, see `query_interval_s`, and the time after which one is given up."""
QUERIES_LEFT = 20
NOTICE_EVERY_S, NOTICE_S = 5.0, 10.0
"""Interval at which each node checks for its notice, and the time after which its command is killed."""
FILE_LIMIT = 4096
RUN_COMMAND = '(eval "$0"); printf \'\\n%s\' "$?"'
"""The shell's program: the command's output and, behind it, its exit code, which else only its collector learns."""
CANNOT_RUN = (126, 127)
"""Exit codes of a shell whose program is not executable, or not there (POSIX, Exit Status for Commands)."""


@dataclass(frozen=True)
class JobWatchSettings:
    """What is watched.

    Attributes:
        job_id: the job; None: there is no Slurm.
        nodes: its nodes.
        python: the interpreter of the query.
        environment: of the query and of a command.
        file: a file whose appearance is a notice.
        command: a shell command whose exit code 0 is a notice.
        drain: a drained node is a notice.
    """

    job_id: str | None
    nodes: tuple[str, ...]
    python: str
    environment: Mapping[str, str]
    file: str | None = None
    command: str | None = None
    drain: bool = False


class JobWatch:
    """Watches for the end of the job.

    Args:
        settings: what is watched.
        send: runs a task where the filesystem may hang; its result goes to the function given with it.
        spared: receives the pids that the sweep of a round leaves alone. The collector of a process removes its pid.
        monotonic, now_ns: the clocks.
        log: writes a line: each kind of problem that makes a notice impossible is named once.

    Attributes:
        fd: becomes readable when a query or command has output.
    """

    def __init__(
        self,
        settings: JobWatchSettings,
        send: Callable[[Callable[[], object], Callable[[object], None]], None],
        spared: set[int],
        monotonic: Callable[[], float],
        now_ns: Callable[[], int],
        log: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._send = send
        self._spared = spared
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._log = log
        self._named: set[str] = set()
        self._poll = select.epoll()
        self.fd = self._poll.fileno()
        self._query: HelperProcess | None = None
        self._command: HelperProcess | None = None
        self._query_at: float | None = None
        self._query_by = self._command_by = 0.0
        self._notice_at: float | None = monotonic() if settings.file or settings.command else None
        self._end_ns: int | None = None
        self._coordinating = False
        self._stopping = False
        self._reading = False
        self._was_missing = False
        self._events: list[JobEnd | StopRequest] = []

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `poll` is due."""
        if self._events:
            return 0.0
        moments = (
            self._query_by if self._query is not None else self._query_at,
            self._command_by if self._command is not None else self._notice_at,
        )
        return min((moment for moment in moments if moment is not None), default=None)

    def on_state(self, coordinating: bool, stopping: bool) -> None:
        """The newest state was read; ``stopping``: the run is to stop, for which Slurm may have a reason."""
        if self._settings.job_id is None:
            return
        if coordinating and (not self._coordinating or (stopping and not self._stopping)):
            self._query_at = self._monotonic()
        if not coordinating:
            self._query_at = None
        self._coordinating, self._stopping = coordinating, stopping

    def poll(self) -> list[JobEnd | StopRequest]:
        """Do what is due; return what was learned."""
        now = self._monotonic()
        if self._query is not None:
            self._follow_query(self._query, now)
        elif self._query_at is not None and now >= self._query_at:
            self._begin_query(now)
        if self._command is not None:
            self._follow_command(self._command, now)
        elif self._notice_at is not None and now >= self._notice_at:
            self._look_for_notice(now)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Kill what runs."""
        for process in (self._query, self._command):
            if process is not None:
                process.drop(self._poll)
        self._query = self._command = self._query_at = self._notice_at = None

    # Slurm

    def _begin_query(self, now: float) -> None:
        settings = self._settings
        assert settings.job_id is not None
        command = module_command(settings.python, "ftslurm.slurm.job_query", settings.job_id, *settings.nodes)
        self._query_at, self._query_by = now + query_interval_s(self._left_s()), now + QUERY_S
        try:
            self._query = HelperProcess.start(command, settings.environment, self._poll)
            self._spared.add(self._query.pid)
        except OSError:
            # No process left: the next query may succeed.
            self._query = None

    def _follow_query(self, process: HelperProcess, now: float) -> None:
        if not process.receive() and now < self._query_by:
            return
        process.drop(self._poll)
        self._query = None
        answer = _answer(bytes(process.data))
        if answer is None:
            return
        end_ns, preempted, draining = answer
        self._end_ns = end_ns
        if self._query_at is not None:
            self._query_at = min(self._query_at, now + query_interval_s(self._left_s()))
        self._events.append(JobEnd(end_ns, preempted, draining, self._now_ns()))
        if draining and self._settings.drain:
            self._events.append(StopRequest(DRAIN, f"{names(draining)} is being drained", self._now_ns()))

    def _left_s(self) -> float | None:
        return None if self._end_ns is None else (self._end_ns - self._now_ns()) / 1e9

    # A notice of this node's own

    def _look_for_notice(self, now: float) -> None:
        self._notice_at, self._command_by = now + NOTICE_EVERY_S, now + NOTICE_S
        if self._settings.command is not None:
            command = ("/bin/sh", "-c", RUN_COMMAND, self._settings.command)
            try:
                environment = self._settings.environment
                self._command = HelperProcess.start(command, environment, self._poll, reads_errors=True)
                self._spared.add(self._command.pid)
            except OSError as error:
                self._command = None
                self._name("start", f"cannot be started now ({error.strerror}); it is tried again")
        elif self._settings.file is not None and not self._reading:
            path = self._settings.file
            # The file may lie on the shared filesystem, where a call may hang.
            self._reading = True
            self._send(lambda: _read(path), self._on_file)

    def _on_file(self, content: object) -> None:
        self._reading = False
        if isinstance(content, bytes):
            left_over = "" if self._was_missing else ", since before this start: if nothing else removes it, remove it"
            self._on_notice(f"{self._settings.file} exists{left_over}", content)
        elif content is None:
            self._was_missing = True
        elif isinstance(content, OSError):
            self._name("file", f"cannot be examined: {content.strerror}; it gives no notice before that is mended")

    def _follow_command(self, process: HelperProcess, now: float) -> None:
        if not process.receive() and now < self._command_by:
            return
        process.drop(self._poll)
        self._command = None
        output, _, code = bytes(process.data).rpartition(b"\n")
        if process.over and code == b"0":
            self._on_notice(f"`{self._settings.command}` succeeded", output)
        elif (found := problem_of(int(code) if process.over and code.isdigit() else None, process.errors)) is not None:
            self._name(*found)

    def _name(self, kind: str, text: str) -> None:
        """Log a problem, unless one of its kind was logged before."""
        if kind not in self._named:
            self._named.add(kind)
            what = self._settings.file or f"`{one_line(self._settings.command or '', 60)}`"
            self._log(f"--stop-when: {one_line(what, 100)} {text}")

    def _on_notice(self, what: str, content: bytes) -> None:
        self._notice_at = None
        seconds, text = parse_notice(content)
        reason = f"{what}: {text}" if text else what
        self._events.append(StopRequest(NOTICE, one_line(reason, 200), self._now_ns(), grace_s=seconds))


def query_interval_s(left_s: float | None) -> float:
    """Return after how many seconds Slurm is queried again: often enough to learn of an extended limit in time.

    Args:
        left_s: seconds until the known end of the job; None: unknown, or there is none.
    """
    if left_s is None:
        return QUERY_EVERY_S
    return min(QUERY_EVERY_S, max(QUERY_SOON_S, left_s / QUERIES_LEFT))


def parse_notice(content: bytes) -> tuple[float | None, str]:
    """Return the seconds left, if the first line of a notice is a number, and the first other line as text."""
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return None, ""
    try:
        seconds = float(lines[0])
    except ValueError:
        return None, lines[0]
    return (seconds if 0 <= seconds < 1e7 else None), (lines[1] if len(lines) > 1 else "")


def problem_of(code: int | None, errors: bytes | bytearray) -> tuple[str, str] | None:
    """Return the kind of problem of a command that gave no notice, and what to do; None: it works.

    Codes but 0 are its normal answer, so that they are named only with a message on stderr (pure).

    Args:
        code: its exit code by the shell; None: it did not end in time.
        errors: the end of its stderr.
    """
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    last = f": {one_line(lines[-1], 120)}" if lines else ""
    if code is None:
        again = "exit code 0 within that time is a notice, another one is none"
        return "time", f"did not end within {duration(NOTICE_S)} and was killed{last}; expected: {again}"
    if code in CANNOT_RUN:
        return "program", f"cannot be run here (code {code}{last}): correct the command, or install its program"
    if lines:
        return f"code {code}", f"ended with code {code}{last}; only code 0 is a notice"
    return None


def _read(path: str) -> bytes | OSError | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        # If it exists, and cannot be read: a notice without text.
        return b"" if os.path.lexists(path) else error
    try:
        return os.read(fd, FILE_LIMIT)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _answer(data: bytes) -> tuple[int | None, bool, tuple[str, ...]] | None:
    try:
        content = json.loads(data)
        end_ns, preempted, draining = content["end_ns"], content["preempted"], content["draining"]
        if (end_ns is not None and not isinstance(end_ns, int)) or not isinstance(preempted, bool):
            return None
        return end_ns, preempted, tuple(str(node) for node in draining)
    except (ValueError, KeyError, TypeError):
        return None

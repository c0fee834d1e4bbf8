"""The guardian: the small parent process that outlives the agent.

Workers die with their agent (parent-death signal), but what *they* started would live on and hold the GPU. So the
process that srun or the user started stays a guardian and forks the agent: as a subreaper it inherits whatever
the agent leaves behind, kills it, and publishes at once that this agent is gone. When the guardian itself is killed,
the agent notices and does the same.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from ftslurm.kernel import (
    FORWARDED,
    STOPPING,
    become_subreaper,
    die_with_parent,
    identity,
    kill_descendants,
    signal_name,
    supervise,
)
from ftslurm.local_directory import make_agent_directory, remove_tree
from ftslurm.terminal import print_error

DEATH_NOTICE_S = 3.0
CLEANING_S = 10.0
EXIT_USAGE = 2
REPLACEMENTS, REPLACED_WITHIN_S = 3, 3600.0
START_NAME = "FTSLURM__START_NAME"
"""Names this start of `ftslurm run` outside Slurm, so that an agent that replaces a killed one joins the same run."""
SUPERVISOR = "FTSLURM_SUPERVISOR"
"""In the environment of all processes below a guardian: its `identity`."""
REASON_LIMIT = 300
SWEEP_NICE = 10
"""Removal of leftovers has lower priority than the agent's start."""
NEEDED = (
    "Linux 5.3 or newer; in a container, a seccomp profile that allows prctl, pidfd_open and pidfd_send_signal, and "
    "the /proc of its own PID namespace"
)


Predecessor = tuple[str, str, int]


class SupervisorPipe:
    """Pipe by which the agent registers its node file, so that the guardian can mark the node as gone if it dies.

    Attributes:
        local_dir: a new node-local directory for this agent alone.
        guardian: a pidfd of the guardian; when the guardian ends, so does the agent.
        predecessor: incarnation, end and time (nanoseconds since the epoch) of the killed agent that this one replaces.
    """

    def __init__(self, local_dir: str, guardian: int, pipe: int, predecessor: Predecessor | None) -> None:
        self.local_dir = local_dir
        self.guardian = guardian
        self.predecessor = predecessor
        self._pipe = pipe

    def register(self, node_file: str, incarnation: str) -> None:
        """Have the guardian mark this incarnation as gone in `node_file`, unless the agent does so itself."""
        self._write(f"{incarnation} {node_file}\0".encode("utf-8", "surrogateescape"))

    def explain(self, reason: str) -> None:
        """Set the reason that the guardian writes into a death notice."""
        self._write(f"{reason[:REASON_LIMIT]}\0".replace("\n", " ").encode("utf-8", "surrogateescape"))

    def left(self) -> None:
        """Cancel the death notice: the agent has published that it left."""
        # Not a file: a worker may have emptied or filled TMPDIR.
        self._write(b"\0")

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._pipe, data)
        except BrokenPipeError:
            # The guardian was killed.
            pass


class _Agent:
    """One agent below this guardian.

    Attributes:
        ended_with: its exit code, 128 + n when signal n killed it.
        killed: a signal ended it.
        messages: what it wrote into the supervisor pipe: first its incarnation and its node file.
        clean: no descendant of it is left.
    """

    def __init__(
        self,
        agent: Callable[[SupervisorPipe], int],
        myself: int,
        mask: set[int | signal.Signals],
        predecessor: Predecessor | None,
    ) -> None:
        self.local_dir = _make_local_dir()
        self._pipe, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.ended_with, self.killed, self.clean = 1, False, False
        self.messages: tuple[str, ...] = ()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._pipe)
                code = _run_agent(agent, SupervisorPipe(self.local_dir, myself, write_end, predecessor), mask)
            except SystemExit as request:
                code = request.code if isinstance(request.code, int) else 1
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                _flush()
                os._exit(code)
        os.close(write_end)

    @property
    def has_registered(self) -> bool:
        """Whether it registered its node file, so that other nodes may know it."""
        return bool(self.messages)

    @property
    def has_left(self) -> bool:
        """Whether it has published by itself that it left."""
        return "" in self.messages[1:]

    def wait(self, watched: set[signal.Signals]) -> bool:
        """Forward signals to it until it ends, then kill its leftovers; return whether a stop was requested."""
        status, stop_requested = _watch(self.pid, watched)
        self.killed = os.WIFSIGNALED(status)
        self.ended_with = 128 + os.WTERMSIG(status) if self.killed else os.WEXITSTATUS(status)
        self.clean = leave_nothing()
        try:
            self.messages = tuple(os.read(self._pipe, 1 << 16).decode("utf-8", "surrogateescape").split("\0")[:-1])
        except BlockingIOError:
            # Another process holds the write end; the agent is dead and has written nothing.
            pass
        os.close(self._pipe)
        return stop_requested


def guard(agent: Callable[[SupervisorPipe], int], below_launcher: bool = False) -> int:
    """Run `agent` in a child process and clean up after it; return its exit code, 128 + n when signal n killed it.

    An agent that is killed after it has registered is replaced by a new one, which joins the run as a new incarnation
    of its node: at most `REPLACEMENTS` times in `REPLACED_WITHIN_S`, never once a stop was requested, and not while
    a process of the dead one cannot be killed: two processes of the same rank would run.

    Args:
        below_launcher: the death of this process's parent is a SIGTERM for the agent.
    """
    # What was ignored from the start (nohup, a shell's background job) stays ignored.
    watched = {signal.SIGCHLD, *(n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN)}
    # Blocked before the fork: a signal in between waits for sigwait instead of being lost.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        if below_launcher:
            die_with_parent(signal.SIGTERM)
        # A pidfd made before the fork: afterwards the guardian may be dead and its pid reused.
        myself = supervise()
        os.environ[SUPERVISOR] = identity(os.getpid())
    except OSError as error:
        _complain(f"cannot supervise processes here: {error}; expected {NEEDED}")
        return EXIT_USAGE
    os.environ[START_NAME] = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    deaths: list[float] = []
    predecessor: Predecessor | None = None
    swept = False
    while True:
        try:
            child = _Agent(agent, myself, old_mask, predecessor)
        except OSError as error:
            _complain(f"no process can be started for the agent: {error.strerror} (ulimit -u, the cgroup's pids.max)")
            return EXIT_USAGE
        if not swept:
            _sweep(child.local_dir)
            swept = True
        stop_requested = child.wait(watched)
        now = time.monotonic()
        deaths = [at for at in deaths if now - at < REPLACED_WITHIN_S]
        replaced = child.killed and child.has_registered and not child.has_left and not stop_requested
        replaced = replaced and child.clean and len(deaths) < REPLACEMENTS
        if child.has_registered and not child.has_left:
            predecessor = _publish_death_notice(child, replaced)
        if child.killed:
            _remove_local_dir(child.local_dir)
        remove_tree(child.local_dir)
        if not replaced:
            return child.ended_with
        deaths.append(now)
        _complain(f"the agent {_end_of(child)}: a new one starts")


def _make_local_dir() -> str:
    try:
        return make_agent_directory(_complain)
    except OSError as error:
        _complain(f"no place for temporary files: {error.strerror}; set TMPDIR to a writable directory on this node")
        sys.exit(EXIT_USAGE)


def _sweep(local_dir: str) -> None:
    """Remove leftovers of earlier runs while the agent starts; its workers start later."""
    # In a separate process: this one stays small.
    try:
        pid = os.fork()
    except OSError:
        # Leftovers can wait for another start.
        return
    if pid == 0:
        try:
            os.nice(SWEEP_NICE)
            from ftslurm.agent.build_locks import remove_noted
            from ftslurm.leftovers import sweep_leftovers

            sweep_leftovers(local_dir, SUPERVISOR, lambda path: remove_noted(path, _complain), _complain)
        finally:
            _flush()
            os._exit(0)


def _run_agent(agent: Callable[[SupervisorPipe], int], pipe: SupervisorPipe, mask: set[int | signal.Signals]) -> int:
    try:
        # Own process group: Ctrl-C reaches the guardian alone, which forwards it once.
        os.setpgid(0, 0)
    except PermissionError:
        # A seccomp profile: a Ctrl-C in a terminal then reaches the agent twice.
        pass
    become_subreaper()
    # Until the agent handles them: a program that is still starting must not die of "save a checkpoint", and
    # Python's own handling of Ctrl-C would not interrupt a filesystem that hangs.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # In a group in the background, a terminal with `stty tostop` would stop it for writing.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # A launcher starts this process with them blocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask - set(FORWARDED))
    return agent(pipe)


def _watch(pid: int, watched: set[signal.Signals]) -> tuple[int, bool]:
    """Forward signals to the agent until it ends; collect orphans meanwhile.

    Returns:
        The agent's wait status, and whether a forwarded signal stops the job.
    """
    stop_requested = False
    while True:
        number = signal.sigwait(watched)
        if number != signal.SIGCHLD:
            stop_requested = stop_requested or number in STOPPING
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
            continue
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return 1 << 8, stop_requested
            if ended == pid and os.WIFSTOPPED(status):
                # An agent that is stopped alone would be replaced while its workers go on: two of the same rank. A
                # suspended job has its guardian stopped, too.
                os.kill(pid, signal.SIGCONT)
            elif ended == pid:
                return status, stop_requested
            if ended == 0:
                break


def leave_nothing() -> bool:
    """Kill and collect every descendant of this process within 10 seconds; return whether all are gone."""
    end = time.monotonic() + CLEANING_S
    _collect()
    while left := kill_descendants(os.getpid()):
        if time.monotonic() >= end:
            break
        # Killed ones take a moment to become zombies; SIGCHLD is blocked and wakes this wait.
        signal.sigtimedwait({signal.SIGCHLD}, 0.02)
        _collect()
    return not left


def _collect() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _end_of(child: _Agent) -> str:
    if len(child.messages) > 1:
        return f"ended by {child.messages[1]}"
    return (
        f"was killed by {signal_name(child.ended_with - 128)}"
        if child.killed
        else f"ended with code {child.ended_with}"
    )


def _remove_local_dir(local_dir: str) -> None:
    """Remove the build locks of a killed agent's ranks; they may lie on a filesystem that hangs."""

    def remove() -> None:
        from ftslurm.agent.build_locks import NOTES, remove_noted

        if os.path.exists(os.path.join(local_dir, NOTES)):
            remove_noted(local_dir, _complain)

    _within(DEATH_NOTICE_S, remove)


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Run `work` in a child process that is killed after `seconds`: the guardian must not hang."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            _flush()
            os._exit(0)
    end = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        left_s = end - time.monotonic()
        if left_s <= 0:
            os.kill(pid, signal.SIGKILL)
            return
        signal.sigtimedwait({signal.SIGCHLD}, left_s)


def _publish_death_notice(child: _Agent, replaced: bool) -> Predecessor:
    """Mark the dead agent as gone in its node file, so that no other node waits for its heartbeat to expire.

    In a child process that can be killed: the shared directory may hang, the guardian must not.
    """
    incarnation, _, path = child.messages[0].partition(" ")
    death = (incarnation, f"its agent {_end_of(child)}", time.time_ns())
    _within(DEATH_NOTICE_S, lambda: _write_death_notice(path, death, replaced))
    return death


def _write_death_notice(path: str, death: Predecessor, replaced: bool) -> None:
    from ftslurm.dataclasses import replace
    from ftslurm.records.codec import BadFile
    from ftslurm.records.node import NodeRecord
    from ftslurm.records.state import LEFT
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import publish

    fs = PosixFileSystem(owner=os.geteuid())
    incarnation, reason, time_ns = death
    try:
        record = NodeRecord.decode(fs.read(path, 1 << 20), path)
        # The file may hold another agent's record, newer or older.
        if record.incarnation == incarnation and record.status != LEFT:
            gone = replace(
                record,
                counter=record.counter + 1,
                status=LEFT,
                reason=reason,
                time_ns=time_ns,
                to_be_replaced=replaced,
            )
            publish(fs, path, gone.encode())
    except (OSError, BadFile):
        pass


def _complain(problem: str) -> None:
    print_error(f"ftslurm: {os.uname().nodename}: {problem}")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass

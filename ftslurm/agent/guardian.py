"""The guardian: the tiny process above the agent that outlives it.

Workers die with their agent (parent-death signal), but what *they* started would live on and hold the GPU. So the
process that srun or the user started stays a guardian and forks the agent: as a subreaper it inherits whatever
the agent leaves behind, kills it, and tells the other nodes at once that this agent is gone. When the guardian itself
is killed, the agent notices and does the same.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from ftslurm.kernel import become_subreaper, die_with_parent, kill_descendants, signal_name, supervise

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*STOPPING, signal.SIGUSR1, signal.SIGUSR2)
EPITAPH_S = 3.0
CLEANING_S = 10.0
EXIT_USAGE = 2
NEEDED = "Linux 5.3 or newer, in a container one whose seccomp profile allows prctl, pidfd_open and pidfd_send_signal"


class Ward:
    """What the guardian gives its agent, and what the agent tells it in time, so that it need not ask a dead one.

    Attributes:
        local_dir: a new node-local directory for this agent alone.
        guardian: a pidfd of the guardian, whose end is the agent's.
    """

    def __init__(self, local_dir: str, guardian: int, will: int) -> None:
        self.local_dir = local_dir
        self.guardian = guardian
        self._will = will

    def bequeath(self, node_file: str, incarnation: str) -> None:
        """Have the guardian say in `node_file` that this incarnation is gone, should the agent not say so itself."""
        self._write(f"{incarnation} {node_file}\0".encode("utf-8", "surrogateescape"))

    def left(self) -> None:
        """There is nothing to be said any more: the agent has said that it left."""
        # Not a file: a worker may have emptied or filled TMPDIR.
        self._write(b"\0")

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._will, data)
        except BrokenPipeError:
            # The guardian was killed.
            pass


def guard(agent: Callable[[Ward], int], below_launcher: bool = False) -> int:
    """Run `agent` in a child process and clean up behind it; return its exit code, 128 + n when signal n killed it.

    Args:
        below_launcher: the death of whoever started this process is a SIGTERM for the agent.
    """
    # What was ignored from the start (nohup, a shell's background job) stays ignored.
    watched = {signal.SIGCHLD, *(n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN)}
    # Blocked before the fork: a signal in between waits for sigwait instead of being lost.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        if below_launcher:
            die_with_parent(signal.SIGTERM)
        # A pidfd made before the fork: afterwards the guardian may be dead and its pid somebody else's.
        myself = supervise()
    except OSError as error:
        _complain(f"cannot supervise processes here: {error}; expected {NEEDED}")
        return EXIT_USAGE
    local_dir = _make_local_dir()
    will, legacy = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(will)
            code = _be_agent(agent, Ward(local_dir, myself, legacy), old_mask)
        except SystemExit as request:
            code = request.code if isinstance(request.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            _flush()
            os._exit(code)
    os.close(legacy)
    code = _watch(pid, watched)
    leave_nothing()
    _execute(will, code)
    remove_tree(local_dir)
    return code


def _be_agent(agent: Callable[[Ward], int], ward: Ward, mask: set[int | signal.Signals]) -> int:
    # A group of its own: Ctrl-C reaches the guardian alone, which passes it on once.
    os.setpgid(0, 0)
    become_subreaper()
    # Until the agent handles them: a program that is still starting must not die of "please save a checkpoint", and
    # Python's way with Ctrl-C would not get it out of a filesystem that hangs.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # In a group in the background, a terminal with `stty tostop` would stop it for writing.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # A launcher starts this process with them blocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask - set(FORWARDED))
    return agent(ward)


def _watch(pid: int, watched: set[signal.Signals]) -> int:
    """Pass signals on to the agent until it ends; collect orphans meanwhile."""
    while True:
        number = signal.sigwait(watched)
        if number != signal.SIGCHLD:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
            continue
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return 1
            if ended == pid and os.WIFSTOPPED(status):
                # An agent that is stopped alone would be replaced while its workers go on: two of the same rank. Who
                # suspends a job stops the guardian, too.
                os.kill(pid, signal.SIGCONT)
            elif ended == pid:
                return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if ended == 0:
                break


def leave_nothing() -> None:
    """Kill and collect every descendant of this process, as far as that succeeds within 10 seconds."""
    end = time.monotonic() + CLEANING_S
    _collect()
    while kill_descendants(os.getpid()) and time.monotonic() < end:
        # Killed ones take a moment to become zombies; SIGCHLD is blocked and says when.
        signal.sigtimedwait({signal.SIGCHLD}, 0.02)
        _collect()


def _collect() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _execute(will: int, code: int) -> None:
    """Say in the dead agent's node file that it is gone: nobody needs to wait for its silence to be noticed.

    In a process of its own, which may be killed: the shared directory may hang, the guardian may not.
    """
    try:
        words = os.read(will, 1 << 16).decode("utf-8", "surrogateescape").split("\0")
    except BlockingIOError:
        # Somebody else holds the other end; the agent at least is dead and has said nothing.
        return
    if len(words) != 2:
        return
    incarnation, _, path = words[0].partition(" ")
    pid = os.fork()
    if pid == 0:
        try:
            _epitaph(path, incarnation, code)
        finally:
            os._exit(0)
    end = time.monotonic() + EPITAPH_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        left_s = end - time.monotonic()
        if left_s <= 0:
            os.kill(pid, signal.SIGKILL)
            return
        signal.sigtimedwait({signal.SIGCHLD}, left_s)


def _epitaph(path: str, incarnation: str, code: int) -> None:
    from ftslurm.dataclasses import replace
    from ftslurm.rendezvous.node_word import NodeWord
    from ftslurm.rendezvous.state import LEFT
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import BadFile, publish

    how = f"was killed by {signal_name(code - 128)}" if code > 128 else f"ended with code {code}"
    fs = PosixFileSystem(owner=os.geteuid())
    try:
        word = NodeWord.decode(fs.read(path, 1 << 20), path)
        # The file may speak for another agent by now, or still.
        if word.incarnation == incarnation and word.status != LEFT:
            gone = replace(
                word, counter=word.counter + 1, status=LEFT, reason=f"its agent {how}", time_ns=time.time_ns()
            )
            publish(fs, path, gone.encode())
    except (OSError, BadFile):
        pass


def _make_local_dir() -> str:
    base = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(base, f"ftslurm-{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        path = os.path.abspath(path)
        os.mkdir(path, 0o700)
    except OSError as error:
        _complain(f"{path}: {error.strerror}; set TMPDIR to a writable directory on this node")
        sys.exit(EXIT_USAGE)
    return path


def _complain(problem: str) -> None:
    sys.stderr.write(f"ftslurm: {os.uname().nodename}: {problem}\n")


def remove_tree(path: str) -> None:
    """Remove a node-local directory, as far as it can be removed."""
    for directory, subdirectories, files in os.walk(path, topdown=False):
        for name in (*files, *subdirectories):
            # A link to a directory is listed as one.
            _try(os.unlink, os.path.join(directory, name)) or _try(os.rmdir, os.path.join(directory, name))
    _try(os.rmdir, path)


def _try(remove: Callable[[str], None], path: str) -> bool:
    try:
        remove(path)
    except OSError:
        return False
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass


__all__ = ["Ward", "guard", "leave_nothing", "remove_tree"]

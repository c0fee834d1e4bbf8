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
from collections.abc import Callable

from ftslurm.agent.kernel import become_subreaper, kill_descendants

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
EPITAPH_S = 10
SWEEPS = 500


def guard(agent: Callable[[str], int]) -> int:
    """Run `agent` in a child process and clean up behind it; return its exit code, 128 + n when signal n killed it.

    Args:
        agent: gets a new node-local directory, returns an exit code.
    """
    become_subreaper()
    local_dir = _make_local_dir()
    watched = {signal.SIGCHLD, *FORWARDED}
    # Blocked before the fork: a signal in between waits for sigwait instead of being lost.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = _be_agent(agent, local_dir, old_mask)
        except SystemExit as request:
            code = request.code if isinstance(request.code, int) else 1
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            _flush()
            os._exit(code)
    code = _watch(pid, watched)
    leave_nothing()
    if code > 128 or not os.path.exists(os.path.join(local_dir, "left")):
        _epitaph(local_dir, code)
    remove_tree(local_dir)
    return code


def _be_agent(agent: Callable[[str], int], local_dir: str, mask: set[int | signal.Signals]) -> int:
    # A group of its own: Ctrl-C reaches the guardian alone, which passes it on once.
    os.setpgid(0, 0)
    become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return agent(local_dir)


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
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if ended == pid:
                return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if ended == 0:
                break


def leave_nothing() -> None:
    """Kill and collect every descendant of this process."""
    for _ in range(SWEEPS):
        count = kill_descendants(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if not count:
                return
            continue
        if count:
            # Killed ones take a moment to become zombies; SIGCHLD is blocked and says when.
            signal.sigtimedwait({signal.SIGCHLD}, 0.02)
        elif not kill_descendants(os.getpid()):
            return


def _epitaph(local_dir: str, code: int) -> None:
    """Say in the dead agent's node file that it is gone: nobody needs to wait for its silence to be noticed."""
    try:
        with open(os.path.join(local_dir, "node_file")) as file:
            path = file.read()
    except OSError:
        return
    # The shared directory may hang; this process may not.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(EPITAPH_S)
    from dataclasses import replace

    from ftslurm.rendezvous.state import LEFT, NodeWord
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import BadFile, publish

    how = f"was killed by {signal.Signals(code - 128).name}" if code > 128 else f"ended with code {code}"
    fs = PosixFileSystem()
    try:
        word = NodeWord.decode(fs.read(path, 1 << 20), path)
        if word.status != LEFT:
            gone = replace(word, counter=word.counter + 1, status=LEFT, reason=f"its agent {how}")
            publish(fs, path, gone.encode())
    except (OSError, BadFile):
        pass
    signal.alarm(0)


def _make_local_dir() -> str:
    base = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(base, f"ftslurm-{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        sys.stderr.write(f"ftslurm: {path}: {error.strerror}; set TMPDIR to a writable directory on this node\n")
        sys.exit(2)
    return path


def remove_tree(path: str) -> None:
    """Remove a node-local directory, as far as it can be removed."""
    for directory, subdirectories, files in os.walk(path, topdown=False):
        for name in files:
            _try(os.unlink, os.path.join(directory, name))
        for name in subdirectories:
            _try(os.rmdir, os.path.join(directory, name))
    _try(os.rmdir, path)


def _try(remove: Callable[[str], None], path: str) -> None:
    try:
        remove(path)
    except OSError:
        pass


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass


__all__ = ["guard", "leave_nothing", "remove_tree"]

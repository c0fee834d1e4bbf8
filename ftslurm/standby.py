"""A worker that is started ahead of its round: it imports modules, then waits for the order that assigns its rank.

Its standard input is a socket to the agent. There it reports what could not be imported and that it is ready, and reads
its order: the worker's whole environment and the arguments of its command line. What is left afterwards is what a
worker started only then would be once its script has imported the same: environment, streams, free descriptor numbers.
When packages were installed or removed meanwhile, it starts anew by execve(2) instead.

Imports as little as it can itself: what is in ``sys.modules`` here is there for the user's program, too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the module below `signal`, which would bring `enum` along
import os
import sys

from ftslurm import round_variables
from ftslurm.standby_imports import import_ahead, read_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_PROBLEM = 300
_FOR_WORKERS = (_signal.SIGUSR1, _signal.SIGUSR2)
_MFD_CLOEXEC = 1
_FIRST_FD = 200  # out of the way of what the modules open
_OOM_SCORE = "/proc/self/oom_score_adj"
_FIRST_VICTIM = b"1000"


class Standby:
    """This process, from its start to its order."""

    def __init__(self) -> None:
        self._before = dict(os.environ)
        self._installed = _stamps()
        # When memory is short, the kernel takes this one before any rank. It may be lowered again (proc(5)).
        self._oom_score = _replace_content(_OOM_SCORE, _FIRST_VICTIM)
        # "Please save a checkpoint", which Slurm may send to every process of a step: not yet.
        self._handlers = {number: _signal.signal(number, _signal.SIG_IGN) for number in _FOR_WORKERS}
        self._channel = _move_up(0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._streams = {fd: _move_up(fd) for fd in (1, 2)}
        # What the modules print belongs into the log of a rank that is not known yet.
        self._output = {fd: _memory_file() for fd in (1, 2)}
        for fd, output in self._output.items():
            os.dup2(output, fd)

    def prepare(self, order: Mapping[str, str], argv: list[str], place: str | None) -> None:
        """Import the modules as the script would; report to the agent what cannot be, or must not be imported ahead.

        Does not return if a module makes this process unusable, see `ftslurm.standby_imports`.

        Args:
            order: the options by which this was started, see `ftslurm.worker`.
            argv: what the modules find as `sys.argv`.
            place: the first entry of `sys.path` for modules that the user has named; None: as it is.
        """
        variables: dict[str, str] = {}
        if auto := order["standby"] == "auto":
            place = None
            modules, variables = read_list(order["standby-list"])
        else:
            modules = order["standby"].split(",")
        without = order.get("standby-without", "").split(",")
        modules = [name for name in modules if name.partition(".")[0] not in without]
        old, sys.argv = sys.argv, argv
        if place is not None:
            sys.path.insert(0, place)

        def report(name: str, error: BaseException) -> None:
            # A list has names that exist only when another module has made them.
            if not auto:
                self._send(f"problem {name}: {_describe(error)}"[:LONGEST_PROBLEM])

        unusable = import_ahead(modules, float(order.get("standby-share", 1)), report)
        sys.argv = old
        if place is not None and place in sys.path:
            sys.path.remove(place)
        # What the modules change in the environment themselves has changed here, too, and to the same values.
        own = round_variables.changed_variables() if variables else {}
        if changed := [name for name, value in variables.items() if own.get(name) != value]:
            self._send(f"refused {' '.join(sorted(changed))}"[:LONGEST_PROBLEM])
            os._exit(0)
        self._send("ready" if unusable is None else f"unusable {unusable}")
        if unusable is not None:
            os._exit(0)

    def await_order(self) -> list[str]:
        """Wait; become the worker of the order and return the arguments of its command line.

        Does not return when there will be none (the agent has gone, or needs this process no more), or when the
        installed packages have changed.
        """
        order = _read_order(self._channel)
        if order is None:
            os._exit(0)
        arguments, environment = order
        round_variables.ordered = environment
        _set_environment(merged(self._before, dict(os.environ), environment))
        sys.orig_argv = [*sys.orig_argv[: sys.orig_argv.index("--parent")], *arguments]
        os.close(self._channel)
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == _signal.SIG_IGN:
                _signal.signal(number, handler)
        for fd, stream in self._streams.items():
            os.dup2(stream, fd)
            os.close(stream)
        if self._oom_score:
            _replace_content(_OOM_SCORE, self._oom_score)
        if _stamps() != self._installed:
            os.execve(sys.executable, sys.orig_argv, environment)
        return arguments

    def repeat_output(self) -> None:
        """Write what was printed meanwhile to the standard streams, which lead to the rank's log by now."""
        for fd, output in self._output.items():
            os.lseek(output, 0, os.SEEK_SET)
            try:
                while text := os.read(output, 1 << 16):
                    while text:
                        text = text[os.write(fd, text) :]
            except OSError:
                pass  # print() would fail, too, but at another time.
            os.close(output)

    def _send(self, text: str) -> None:
        line = " ".join(text.split()).encode("utf-8", "backslashreplace") + b"\n"
        try:
            while line:
                line = line[os.write(self._channel, line) :]
        except OSError:
            os._exit(0)  # The agent has gone.


def merged(before: Mapping[str, str], now: Mapping[str, str], order: Mapping[str, str]) -> dict[str, str]:
    """Return the order's environment with what the imports have changed in theirs.

    Args:
        before, now: this process's environment at its start and after the imports.
        order: what the worker is to have; where it differs from `before`, it counts.
    """
    untouched = {name for name in {*order, *now} if order.get(name) == before.get(name)}
    ordered = {name: value for name, value in order.items() if name not in untouched}
    return {**ordered, **{name: value for name, value in now.items() if name in untouched}}


def _set_environment(environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _read_order(channel: int) -> tuple[list[str], dict[str, str]] | None:
    """Read ``<length>\\n``, then as many bytes: argument count, arguments, NAME=VALUE..., separated by NUL.

    Not JSON: the json package would be in `sys.modules`. Returns None when the other end was closed before that.
    """
    data = b""
    while b"\n" not in data or len(data.partition(b"\n")[2]) < int(data.partition(b"\n")[0]):
        try:
            more = os.read(channel, 1 << 20)
        except OSError:
            return None
        if not more:
            return None
        data += more
    count, *items = os.fsdecode(data.partition(b"\n")[2]).split("\0")
    arguments, variables = items[: int(count)], items[int(count) :]
    return arguments, dict(_pair(item) for item in variables)


def _pair(item: str) -> tuple[str, str]:
    # As os.environ reads it: a name may begin with "=".
    name, _, value = item[1:].partition("=")
    return item[:1] + name, value


def _stamps() -> list[tuple[str, int]]:
    """Return when a package was installed or removed last, per directory of packages.

    Each that pip installs, replaces or removes has a directory or file of its own there, named by its version. Files
    that are edited in place are not noticed.
    """
    stamps = []
    for place in sys.path:
        if place.rstrip("/").endswith("-packages"):
            try:
                stamps.append((place, os.stat(place).st_mtime_ns))
            except OSError:
                stamps.append((place, 0))
    return stamps


def _replace_content(path: str, content: bytes) -> bytes:
    """Write a file of /proc and return what it had; empty if that is not possible."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        before = os.read(fd, 64).strip()
        os.write(fd, content)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return before


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}"


def _move_up(fd: int) -> int:
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)
    except OSError:
        return os.dup(fd)  # RLIMIT_NOFILE is lower than that.


def _memory_file() -> int:
    name = "ftslurm-standby-output"
    try:
        # A Python built against a libc before 2.27 lacks it, where the machine's libc has it.
        fd = os.memfd_create(name) if hasattr(os, "memfd_create") else _libc_memfd(name)
    except OSError:
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    high = _move_up(fd)
    os.close(fd)
    return high


def _libc_memfd(name: str) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.memfd_create(name.encode(), _MFD_CLOEXEC) if hasattr(libc, "memfd_create") else -1
    if fd < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    return fd

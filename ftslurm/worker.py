"""Start one worker: the user's program exactly as plain Python runs it, but with a record of its failure.

``python -u -m ftslurm.worker --parent PID [--container DIRECTORY] [--standby auto|MODULES [--standby-list FILE]
[--standby-without MODULES] [--standby-share SHARE]] [--log-root DIRECTORY] [--log-stdout FILE] [--log-stderr FILE]
(--script FILE | --module NAME | --exec PROGRAM) -- ARGS...``; called by the agent, never by people.
``python -u .../ftslurm/boot/worker.py`` with the same arguments starts faster, see there.

How the traceback stays the user's own: an exception is recorded here and then raised on, so that the
interpreter itself prints it, runs ``sys.excepthook`` and ``atexit`` and chooses the exit status. Only the
frames of this file are taken off it, just before the hook that is installed then gets to see it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType, TracebackType
    from typing import NoReturn

    from ftslurm.failures.recorder import Recorder

USAGE_ERROR = 2
DO_NOT_RESTART = 78
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_THREADS_S = 0.01


class Order:
    """The parsed command line; ``target`` is a file, a module name or a program, depending on ``kind``."""

    def __init__(self) -> None:
        self.parent = 0
        self.container = ""
        self.standby: dict[str, str] = {}
        self.kind = ""
        self.target = ""
        self.log: dict[int, str] = {}
        self.log_root = ""
        self.arguments: list[str] = []


def parse(arguments: list[str]) -> Order:
    """Read the command line (by hand: argparse would cost more than all the rest of the start).

    Raises:
        ValueError: it is not what an agent of this version sends.
    """
    order = Order()
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            order.arguments = list(rest)
            break
        value = next(rest, None)
        if value is None:
            raise ValueError(f"{argument} lacks its value")
        if argument == "--parent":
            order.parent = int(value)
        elif argument == "--container":
            order.container = value
        elif argument in ("--standby", "--standby-list", "--standby-without", "--standby-share"):
            order.standby[argument[2:]] = value
        elif argument in ("--log-stdout", "--log-stderr"):
            order.log[1 if argument == "--log-stdout" else 2] = value
        elif argument == "--log-root":
            order.log_root = value
        elif argument in ("--script", "--module", "--exec") and not order.kind:
            order.kind, order.target = argument[2:], value
        else:
            raise ValueError(f"unexpected {argument} {value}")
    if not order.kind or not order.parent:
        raise ValueError("needs --parent PID and one of --script, --module, --exec")
    return order


def main(arguments: list[str]) -> None:
    """Run the worker. Returns when the user's program has; raises what it raises."""
    try:
        order = parse(arguments)
    except ValueError as problem:
        sys.stderr.write(f"ftslurm.worker: {problem}; it is started by the ftslurm agent, not by hand\n")
        sys.exit(USAGE_ERROR)
    if order.container:
        _enter(order.container)
    if not order.container or os.getppid() == order.parent:
        _die_with(order.parent)
    # Else it is a container runtime's child. The agent finds and ends it; the end of the runtime's thread that made it
    # (prctl(2)) proves nothing.
    _lead_session()
    standby = None
    if order.standby:
        from ftslurm.standby import Standby

        standby = Standby()
        argv0 = "-m" if order.kind == "module" else order.target
        standby.prepare(order.standby, [argv0, *order.arguments], _place(order))
        order = parse(standby.await_order())
    from ftslurm.failures.recorder import Recorder

    recorder = Recorder([order.target, *order.arguments])
    _redirect(order.log, order.log_root, recorder)
    if standby is not None:
        standby.repeat_output()
    if order.kind == "exec":
        _become(order.target, order.arguments, recorder)
    recorder.watch_fatal_signals()
    from ftslurm.monitor.flight_server import arm

    arm()
    _watch_imports()
    run = _run_module if order.kind == "module" else _run_script
    try:
        run(order.target, order.arguments, recorder)
    except BaseException as error:
        recorder.exception(error, _user_part(error.__traceback__))
        if not isinstance(error, SystemExit):
            _hide_own_frames()
        raise
    finally:
        _let_threads_finish()


def _let_threads_finish() -> None:
    """Let torch's threads have the interpreter once more before it ends.

    One of gloo that still has to drop a tensor of the last collective waits for it, and aborts the process if Python
    ends instead ("terminate called without an active exception"; torch 2.13, half of all jobs of four ranks that end
    right after a collective).
    """
    if "torch.distributed" in sys.modules:
        import time

        time.sleep(_THREADS_S)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the agent goes (prctl(2): when the thread that made it goes)."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # A Python without ctypes: the agent still kills its workers as long as it can act itself.
    if os.getppid() != parent:
        os._exit(1)  # The agent died in between; no process would read a message.


def _enter(directory: str) -> None:
    """Take over what the agent has left for a worker in a container."""
    from ftslurm.container import enter

    try:
        enter(directory)
    except OSError as problem:
        what = f"{directory} cannot be used in the container ({problem.strerror})"
        sys.stderr.write(f"ftslurm.worker: {what}: bind the directory above it, see docs/containers.md\n")
        sys.exit(DO_NOT_RESTART)


def _lead_session() -> None:
    """As `ftslurm.kernel.lead_session`, which brings more modules than a user's program should find loaded."""
    if os.getsid(0) != os.getpid():
        try:
            os.setsid()
        except PermissionError:
            pass


def _place(order: Order) -> str | None:
    """Return where the program's own modules are searched first."""
    if order.kind == "script" and _is_importable_place(order.target):
        return _absolute(order.target)
    if _safe_path():
        return None
    if order.kind == "script":
        return os.path.dirname(os.path.realpath(order.target))
    try:
        return os.getcwd()
    except OSError:
        return None  # The directory is gone: plain Python goes on without it, too.


def _redirect(log: dict[int, str], root: str, recorder: Recorder) -> None:
    """Let stdout and stderr lead to these files; the directories up to `root` must be this user's alone."""
    if not log:
        return
    from ftslurm.sharedfs.ownership import open_own_log

    opened: list[tuple[int, int]] = []
    for target, path in log.items():
        try:
            place = os.path.abspath(path)
            fd = open_own_log(place, root or os.path.dirname(place))
        except OSError as problem:
            recorder.stop(1, f"cannot open the log file {path}: {problem.strerror}")
        opened.append((fd, target))
    for fd, target in opened:
        os.dup2(fd, target)
        os.close(fd)


def _become(program: str, arguments: list[str], recorder: Recorder) -> NoReturn:
    """Exec ``program`` as a shell would, 126 and 127 included."""
    import signal

    for ignored_by_python in ("SIGPIPE", "SIGXFSZ"):  # and execve keeps what is ignored
        signal.signal(getattr(signal, ignored_by_python), signal.SIG_DFL)
    try:
        os.execvp(program, [program, *arguments])
    except FileNotFoundError:
        if os.path.exists(program):
            what = "the interpreter named in its first line does not exist"
            recorder.stop(126, f"cannot start {program}: {what}")
        what = "no such file" if os.sep in program else "no such program in PATH"
        recorder.stop(127, f"cannot start {program}: {what}")
    except (OSError, ValueError) as problem:
        recorder.stop(126, f"cannot start {program}: {getattr(problem, 'strerror', None) or problem}")


def _watch_imports() -> None:
    """Have what the script does not report noticed where torch has hooks for it."""
    if "FTSLURM_RECORD_DIR" not in os.environ:
        return
    from ftslurm.import_hook import after_import

    if os.environ.get("FTSLURM_AUTO_PROGRESS") == "on":
        after_import("torch.optim.optimizer", _watch_optimizers)


def _watch_optimizers() -> None:
    from ftslurm.monitor.optimizer_steps import watch

    watch()


def _run_script(path: str, arguments: list[str], recorder: Recorder) -> None:
    """What ``python -u path arguments`` does (CPython: Modules/main.c, pymain_run_python)."""
    sys.argv = [path, *arguments]
    # Programs that start themselves anew take it.
    sys.orig_argv = [sys.orig_argv[0], "-u", *sys.argv]
    module = _fresh_main()
    if _is_importable_place(path):
        sys.path.insert(0, _absolute(path))
        import runpy

        # Private, but it is the very call that the interpreter makes, in all versions from 2.6 on.
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    filename = _absolute(path)
    try:
        with open(filename, "rb") as file:
            source = file.read()
    except OSError as problem:
        text = f"can't open file {filename!r}: [Errno {problem.errno}] {problem.strerror}"
        recorder.stop(USAGE_ERROR, text, prefix=sys.orig_argv[0])
    if not _safe_path():
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    exec(_load(filename, source, module), module.__dict__)


def _run_module(name: str, arguments: list[str], recorder: Recorder) -> None:
    """What ``python -u -m name arguments`` does."""
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [sys.orig_argv[0], "-u", "-m", name, *arguments]
    if not _safe_path():
        try:
            sys.path.insert(0, os.getcwd())
        except OSError:
            pass  # The directory is gone: plain Python goes on without it, too.
    _fresh_main()
    import runpy

    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _load(filename: str, source: bytes, module: ModuleType) -> CodeType:
    from importlib.machinery import SourceFileLoader, SourcelessFileLoader

    module.__file__ = filename
    module.__dict__["__cached__"] = None
    if not filename.endswith(".pyc"):
        module.__loader__ = SourceFileLoader("__main__", filename)
        return compile(source, filename, "exec", dont_inherit=True)
    module.__loader__ = loader = SourcelessFileLoader("__main__", filename)
    code = loader.get_code("__main__")
    assert code is not None
    return code


def _fresh_main() -> ModuleType:
    global _first_main
    import builtins

    # The interpreter goes on using the dictionary of the module that it started, without owning it
    # (CPython: _PyRun_SimpleFile, after printing the exception).
    _first_main = sys.modules["__main__"]
    module = type(sys)("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = module
    return module


def _is_importable_place(path: str) -> bool:
    """Whether ``path`` is a directory or an archive to search for ``__main__.py``."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _absolute(path: str) -> str:
    """As Python does it: nothing but the current directory put before it."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _safe_path() -> bool:
    return bool(getattr(sys.flags, "safe_path", sys.flags.isolated))


_first_main: ModuleType | None = None
_RUNNERS = (_run_script.__code__, _run_module.__code__, _load.__code__)


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame behind this file's own ones on; None if there is none."""
    part, user_part = trace, trace
    while part is not None:
        if part.tb_frame.f_code in _RUNNERS:
            user_part = part.tb_next
        part = part.tb_next
    return user_part


def _hide_own_frames() -> None:
    """Let the excepthook which is installed now see the exception as it would without this file."""
    hook: Callable[..., object] | None = getattr(sys, "excepthook", None)
    if hook is None:
        return

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        error.__traceback__ = sys.last_traceback = trace = _user_part(trace)
        try:
            hook(kind, error, trace)
        except BaseException as problem:
            problem.__traceback__ = problem.__traceback__ and problem.__traceback__.tb_next
            raise

    sys.excepthook = excepthook


if __name__ == "__main__":
    if not _safe_path():
        del sys.path[0]  # The current directory, put there by -m.
    main(sys.argv[1:])

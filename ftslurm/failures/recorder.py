"""Records the failure of this worker process: its exceptions, and by faulthandler its fatal signals.

Runs in the user's process, so it imports nothing before a failure, and no error here may
hide the user's own exception or change the exit status.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import NoReturn

    from ftslurm.records.error import ErrorRecord

_RESERVE = 16 * 1024 * 1024  # bytes for recording a MemoryError, whose frames still hold all other memory
_SPARE_FILES = 3  # file descriptors for the modules and files of recording an EMFILE failure


class Recorder:
    """Recorder of this worker's failure: its directory and identity are read before the user's code runs."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.pid = os.getpid()
        self.environment = dict(os.environ)
        directory = os.environ.get("FTSLURM_RECORD_DIR")
        self.directory = os.path.abspath(directory) if directory else None
        self.done = False
        self.reserve = bytes(_RESERVE)  # untouched zeroes: address space, but no memory
        self.spare: list[int] = []

    def watch_fatal_signals(self) -> None:
        """Have faulthandler write all stacks to stacks.txt, unless the user has it write elsewhere.

        And to hang.txt on the agent's request, see `ftslurm.monitor.dump_signal`.
        """
        import faulthandler

        if self.directory is None:
            return
        try:
            from ftslurm.monitor import dump_signal

            dump_signal.install(self.directory)
            null = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE_FILES))
            self.spare = [dump_signal.raised(fd) for fd in null]
            if not faulthandler.is_enabled():
                fd = dump_signal.private_file(os.path.join(self.directory, "stacks.txt"))
                faulthandler.enable(fd, all_threads=True)
        except (OSError, ImportError) as problem:
            write_stderr(f"stacks of fatal signals or of a hang will not be recorded: {self.directory}: {problem}")

    def exception(self, error: BaseException, trace: TracebackType | None) -> None:
        """Write the record of this process's failure; never raises. Forked children write nothing."""
        if self.done or os.getpid() != self.pid:
            return
        limit = sys.getrecursionlimit()
        try:
            del self.reserve
            self._close_spare()
            sys.setrecursionlimit(max(limit, 1000))
            try:
                self._record(error, trace)
            except RuntimeError:
                # A handler of signals of the program's raised meanwhile, as torch's does when a loader's worker dies.
                self._record(error, trace)
        except BaseException as problem:
            write_stderr(f"the error record could not be made: {type(problem).__name__}: {problem}")
        finally:
            sys.setrecursionlimit(limit)

    def _record(self, error: BaseException, trace: TracebackType | None) -> None:
        from ftslurm.dataclasses import replace
        from ftslurm.failures import record, worker_context

        if isinstance(error, SystemExit) and record.exit_status(error) == 0:
            return
        worker = replace(self._worker(), **worker_context.context(error, self.directory))
        previous = record.read(self.directory)[0] if self.directory else None
        self._write(record.from_exception(error, trace, worker, previous))
        self._leave_collectives()

    def _leave_collectives(self) -> None:
        """Leave what torch has recorded of its collectives: this process can soon not be asked any more."""
        from ftslurm.monitor import flight_server

        if self.directory is not None:
            try:
                flight_server.leave(self.directory)
            except Exception:
                pass  # Evidence that other ranks have, too; the error record is there.

    def stop(self, code: int, text: str, prefix: str = "ftslurm") -> NoReturn:
        """Exit because the user's program could not be started: one line on stderr, the record, ``code``."""
        write_stderr(text, prefix)
        try:
            from ftslurm.dataclasses import replace
            from ftslurm.failures.exceptions import clean

            self._write(replace(self._worker(), kind="exit", exit_code=code, message=clean(text)))
        except BaseException as problem:
            write_stderr(f"the error record could not be made: {type(problem).__name__}: {problem}")
        self.done = True
        sys.exit(code)

    def _close_spare(self) -> None:
        null = os.stat(os.devnull)
        for fd in self.spare:
            try:
                if os.path.samestat(os.fstat(fd), null):  # else the user has reused the number
                    os.close(fd)
            except OSError:
                continue
        self.spare = []

    def _worker(self) -> ErrorRecord:
        """Return the record without the failure: identity, time and step."""
        import time

        from ftslurm.failures import record
        from ftslurm.monitor.heartbeat_page import read_progress
        from ftslurm.records.error import ErrorRecord

        mark = read_progress(self.directory) if self.directory else None
        return ErrorRecord(
            kind="exception",
            time_ns=time.time_ns(),
            host=os.uname().nodename,
            pid=self.pid,
            step=mark.last_step if mark else None,
            argv=tuple(self.argv),
            **record.identity(self.environment),
        )

    def _write(self, content: ErrorRecord) -> None:
        from ftslurm.failures import record

        if self.directory is None:
            return  # Started by hand.
        self.done = True
        run, rank = self.environment.get("FTSLURM_RUN_DIR"), record.identity(self.environment)
        directories = [self.directory]
        if run and rank["round"] is not None and rank["rank"] is not None:
            place = f"rounds/{rank['round']:06}/ranks/{rank['rank']:05}"
            directories.append(os.path.join(run, place))
        try:
            record.write(content, directories)
        except OSError as problem:
            write_stderr(f"the error record could not be written: {problem}")


def write_stderr(text: str, prefix: str = "ftslurm") -> None:
    """Write one line to file descriptor 2, independent of ``sys.stderr``."""
    try:
        os.write(2, f"{prefix}: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass

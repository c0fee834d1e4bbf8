"""`record`: a decorator for code whose failure `ftslurm.worker` cannot observe.

A script's main process needs nothing: the agent starts it through `ftslurm.worker`, which records its failure. But it
cannot observe a failure in a child process of the script (multiprocessing), in a thread's entry, or in a program
started by ``--no-python``, and the report would contain no more than "exit code 1".
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import ParamSpec, TypeVar

    from ftslurm.failures.recorder import Recorder

    Arguments = ParamSpec("Arguments")
    Result = TypeVar("Result")

_IS_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the import of inspect


def record(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Write the exception that leaves ``function`` into this rank's error record, and raise it again.

    Like ``torch.distributed.elastic.multiprocessing.errors.record``: outside an agent it does nothing, the exception is
    always raised again, and ``sys.exit(0)`` is no failure. Under torchrun the record is written to torchrun's error
    file, in a form that torch's readers accept. A call may cost a millisecond more, so it is intended for the entry of
    a process or thread, not for each step::

        @ftslurm.record
        def load(queue): ...

        multiprocessing.get_context("spawn").Process(target=load, args=(queue,)).start()

    An exception that is caught further up does no harm: a worker that succeeds has no record. Of several the last
    one counts, and it names the previous one.

    Args:
        function: any callable; a coroutine function is recorded when it is awaited.
    """
    from functools import wraps

    if _is_coroutine(function):

        @wraps(function)
        async def recorded(*arguments: Arguments.args, **named: Arguments.kwargs) -> object:
            recorder = _recorder()
            try:
                return await function(*arguments, **named)  # type: ignore[misc]
            except BaseException as error:
                _write(recorder, error, error.__traceback__)
                raise

        return recorded  # type: ignore[return-value]

    @wraps(function)
    def recorded_call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        recorder = _recorder()
        try:
            return function(*arguments, **named)
        except BaseException as error:
            _write(recorder, error, error.__traceback__)
            raise

    return recorded_call


def _is_coroutine(function: object) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & _IS_COROUTINE)


def _recorder() -> Recorder | None:
    """The recorder, created before a failure: without free memory it could not be."""
    ours, torchs = os.environ.get("FTSLURM_RECORD_DIR"), os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not ours and not (torchs and os.path.basename(torchs) == "error.json"):
        return None
    from ftslurm.failures.recorder import Recorder

    recorder = Recorder(list(sys.argv))
    if not ours and torchs:
        recorder.directory = os.path.dirname(os.path.abspath(torchs))
    return recorder


def _write(recorder: Recorder | None, error: BaseException, trace: TracebackType | None) -> None:
    # Closing a generator or task is no failure.
    if recorder is not None and not isinstance(error, GeneratorExit) and type(error).__name__ != "CancelledError":
        # The first frame is this wrapper's.
        recorder.exception(error, trace and trace.tb_next)

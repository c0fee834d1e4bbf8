"""`record`: a decorator for code whose failure `ftslurm.worker` does not see.

A script's main process needs nothing: the agent starts it through `ftslurm.worker`, which records what ends it. But a
child that the script made (multiprocessing), a thread's entry, or a program started by ``--no-python`` fails out of its
sight, and the report would know no more than "exit code 1".
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

_IS_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the weight of inspect


def record(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Write the exception that leaves ``function`` into this rank's error record, and let it go on.

    Like ``torch.distributed.elastic.multiprocessing.errors.record``: outside an agent it does nothing, the exception is
    always raised again, and ``sys.exit(0)`` is no failure. Under torchrun the record goes where torchrun looks for it,
    and torch's readers understand it. A call may cost a millisecond more, so it is meant for the entry of a
    process or thread, not for each step::

        @ftslurm.record
        def load(queue): ...

        multiprocessing.get_context("spawn").Process(target=load, args=(queue,)).start()

    An exception that is caught further up does no harm: a worker that ends well has no record. Of several the last
    one counts, and it names the one before.

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
    """Who will write it, made before there is a failure: with no memory left it could not be."""
    ours, torchs = os.environ.get("FTSLURM_RECORD_DIR"), os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not ours and not (torchs and os.path.basename(torchs) == "error.json"):
        return None
    from ftslurm.failures.recorder import Recorder

    recorder = Recorder(list(sys.argv))
    if not ours and torchs:
        recorder.directory = os.path.dirname(os.path.abspath(torchs))
    return recorder


def _write(recorder: Recorder | None, error: BaseException, trace: TracebackType | None) -> None:
    # A generator or a task that is only being closed has not failed.
    if recorder is not None and not isinstance(error, GeneratorExit) and type(error).__name__ != "CancelledError":
        # The first frame is the one above.
        recorder.exception(error, trace and trace.tb_next)

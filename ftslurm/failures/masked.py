"""Whether an exception was raised by a cleanup, so that it hides the failure that the cleanup followed.

Python shows both in the same way as an exception that was raised by a handler: the source decides. Runs in a failing
process; whatever cannot be decided is no mask.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from types import TracebackType

SOURCE_LIMIT = 2 * 1024 * 1024  # characters of a file that is parsed
_EXITS = ("__exit__", "__aexit__")


def masks(error: BaseException, trace: TracebackType | None) -> bool:
    """Whether ``error`` was raised in a ``finally`` or an ``__exit__`` that its context passed through.

    Args:
        error: an exception with a context.
        trace: its traceback, from the user's first frame on.
    """
    try:
        return _masks(error, trace)
    except BaseException:
        return False


def _masks(error: BaseException, trace: TracebackType | None) -> bool:
    context = error.__context__
    passed = context.__traceback__ if context is not None else None
    if passed is None or error.__cause__ is not None:
        return False
    code = passed.tb_frame.f_code
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    if trace is None:
        return False
    after = trace.tb_next
    if after is not None and after.tb_frame.f_code.co_name in _EXITS:
        return True
    return _in_finally(code.co_filename, passed.tb_lineno or 0, trace.tb_lineno or 0)


def _in_finally(file: str, failed: int, raised: int) -> bool:
    """Whether line ``raised`` is in the ``finally`` of the innermost ``try`` whose body has line ``failed``."""
    import ast
    import linecache

    source = "".join(linecache.getlines(file))
    if not source or len(source) > SOURCE_LIMIT:
        return False
    tries = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Try)]
    return any(
        _has(node.finalbody, raised)
        and (_has(node.body, failed) or any(_has(handler.body, failed) for handler in node.handlers))
        for node in tries
    )


def _has(body: list[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)

"""From a live exception to plain data: the Exc dictionary of the error record, and the traceback as text.

Runs in a failing process, possibly out of memory or with exceptions that cannot be printed: everything is bounded, and
a placeholder replaces what cannot be formatted.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

STRING_LIMIT = 16 * 1024  # characters, of any one string in the record
TEXT_LIMIT = 64 * 1024  # characters, of a whole traceback
HIDDEN_LIMIT = 500  # characters
LINKS = 8  # depth: causes, contexts and members of groups followed from the exception
EXCEPTIONS = 64  # in all
FIRST_FRAMES, LAST_FRAMES = 20, 80
_SOURCE_LIMIT = 400
_TEXT_FRAMES = 2000


def clean(text: object, limit: int = STRING_LIMIT) -> str:
    """``text`` in a form that UTF-8 can encode, cut in the middle to about ``limit`` characters."""
    whole = text if isinstance(text, str) else repr(text)
    if len(whole) > limit:
        head = limit // 4
        whole = f"{whole[:head]} ... {len(whole) - limit} characters left out ... {whole[head - limit :]}"
    return whole.encode("utf-8", "backslashreplace").decode("utf-8")


def message(error: BaseException) -> str:
    """``str(error)``, even if its ``__str__`` raises."""
    try:
        return clean(str(error))
    except BaseException:
        return f"<unprintable {type(error).__name__} object>"


def headline(error: BaseException) -> str:
    """``ValueError: boom``: the form of the message in torch's own error files."""
    text = message(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traceback_text(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback as Python prints it, chained exceptions included."""
    import traceback

    try:
        parts = traceback.TracebackException(type(error), error, trace, limit=-_TEXT_FRAMES, compact=True)
        return clean("".join(parts.format()), TEXT_LIMIT)
    except BaseException as problem:
        return f"{headline(error)}\n(the traceback could not be formatted: {type(problem).__name__})\n"


def describe(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """The Exc dictionary of ``error``; ``trace`` is its traceback without ftslurm's frames."""
    return _describe(error, trace, LINKS, set())


def where(exception: dict[str, Any]) -> str:
    """``train.py:12 in step`` of the innermost frame; empty if there is none."""
    if not exception["frames"]:
        return ""
    frame = exception["frames"][-1]
    return f"{frame['file'].rpartition('/')[2]}:{frame['line']} in {frame['function']}"


def _describe(error: BaseException, trace: TracebackType | None, links: int, seen: set[int]) -> dict[str, Any]:
    seen.add(id(error))

    def follow(other: object) -> dict[str, Any] | None:
        if not isinstance(other, BaseException) or links <= 0 or id(other) in seen or len(seen) >= EXCEPTIONS:
            return None
        return _describe(other, other.__traceback__, links - 1, seen)

    frames, left_out = _frames(trace)
    described: dict[str, Any] = {
        "type": clean(type(error).__qualname__, 500),
        "module": clean(type(error).__module__, 500),
        "message": message(error),
        "notes": _notes(error),
        "frames": frames + _syntax_error_place(error),
        "cause": follow(error.__cause__),
        "context": follow(error.__context__) if _shows_context(error) else None,
        "exceptions": [m for m in map(follow, _members(error)) if m is not None],
    }
    if not described["cause"] and not described["context"] and error.__context__ is not None:
        # Not shown in the report, as its author intends; but failures with different hidden exceptions differ.
        hidden = error.__context__
        described["hidden"] = clean(f"{type(hidden).__qualname__}: {message(hidden)}", HIDDEN_LIMIT)
    if left_out:
        described["frames_left_out"] = left_out
    return described


def _shows_context(error: BaseException) -> bool:
    # A SystemExit prints no traceback that ``from None`` could shorten; the hidden exception is the program's reason.
    return isinstance(error, SystemExit) or not error.__suppress_context__


def _frames(trace: TracebackType | None) -> tuple[list[dict[str, Any]], int]:
    from collections import deque

    first: list[TracebackType] = []
    last: deque[TracebackType] = deque(maxlen=LAST_FRAMES)
    count = 0
    while trace is not None:
        if count < FIRST_FRAMES:
            first.append(trace)
        else:
            last.append(trace)
        count += 1
        trace = trace.tb_next
    kept = [*first, *last]
    return [_frame(part) for part in kept], count - len(kept)


def _frame(part: TracebackType) -> dict[str, Any]:
    import linecache

    code, line = part.tb_frame.f_code, part.tb_lineno or 0
    try:
        source = linecache.getline(code.co_filename, line, part.tb_frame.f_globals).strip()
    except BaseException:
        source = ""
    return {
        "file": clean(code.co_filename, 2000),
        "line": line,
        "function": clean(code.co_name, 500),
        "source": clean(source, _SOURCE_LIMIT) if source else None,
    }


def _syntax_error_place(error: BaseException) -> list[dict[str, Any]]:
    """The location of text that did not compile: it has no frame, but is the relevant location."""
    if not isinstance(error, SyntaxError) or not isinstance(error.filename, str):
        return []
    source = error.text.strip() if isinstance(error.text, str) else ""
    return [
        {
            "file": clean(error.filename, 2000),
            "line": error.lineno if isinstance(error.lineno, int) else 0,
            "function": "<module>",
            "source": clean(source, _SOURCE_LIMIT) if source else None,
        }
    ]


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, (list, tuple)):
        return []
    return [clean(note, 4000) for note in notes[:16] if isinstance(note, str)]


def _members(error: BaseException) -> tuple[object, ...]:
    """The members of an exception group (PEP 654, or its backport; by name, as 3.10 has no such type)."""
    members = getattr(error, "exceptions", None)
    is_group = any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__)
    return tuple(members) if is_group and isinstance(members, (list, tuple)) else ()

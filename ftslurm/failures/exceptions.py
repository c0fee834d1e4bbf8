"""From a live exception to its part of the error record, and to the traceback as text.

Runs in a failing process, possibly out of memory or with exceptions that cannot be printed: everything is bounded, and
a placeholder replaces what cannot be formatted.
"""

from __future__ import annotations

from ftslurm.failures.masked import masks
from ftslurm.records.error import HAS_PROPERTY, ExceptionRecord, Frame
from ftslurm.text import cut_middle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

STRING_LIMIT = 16 * 1024  # characters, of any one string in the record
TEXT_LIMIT = 64 * 1024  # characters, of a whole traceback
HIDDEN_LIMIT = 500  # characters
LINKS = 8  # depth: causes, contexts and members of groups followed from the exception
ROOT_LINKS = 3  # of them, those at the other end of a longer chain: its root is the reason
CHAIN = 1000  # exceptions, of which a chain's root is sought
OUTPUT_LIMIT = 4000
EXCEPTIONS = 64  # in all
FIRST_FRAMES, LAST_FRAMES = 20, 80
_SOURCE_LIMIT = 400
_TEXT_FRAMES = 2000


def clean(text: object, limit: int = STRING_LIMIT) -> str:
    """``text`` in a form that UTF-8 can encode, cut in the middle to about ``limit`` characters."""
    whole = text if isinstance(text, str) else repr(text)
    return cut_middle(whole, limit).encode("utf-8", "backslashreplace").decode("utf-8")


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


def describe(error: BaseException, trace: TracebackType | None) -> ExceptionRecord:
    """The record of ``error``; ``trace`` is its traceback without ftslurm's frames."""
    return _describe(error, trace, LINKS, set())


def where(exception: ExceptionRecord) -> str:
    """``train.py:12 in step`` of the innermost frame; empty if there is none."""
    return exception.frames[-1].place.rpartition("/")[2] if exception.frames else ""


def _describe(error: BaseException, trace: TracebackType | None, links: int, seen: set[int]) -> ExceptionRecord:
    seen.add(id(error))

    def follow(other: object) -> ExceptionRecord | None:
        if not isinstance(other, BaseException) or links <= 0 or id(other) in seen or len(seen) >= EXCEPTIONS:
            return None
        return _describe(other, other.__traceback__, links - 1, seen)

    behind, skipped = _behind(error, links)
    frames, left_out = _frames(trace)
    explicit = error.__cause__ is not None
    cause = follow(behind) if explicit else None
    context = follow(behind) if not explicit else None
    hidden = error.__context__ if cause is None and context is None else None
    return ExceptionRecord(
        type=clean(type(error).__qualname__, 500),
        module=clean(type(error).__module__, 500),
        message=message(error),
        notes=_notes(error),
        frames=(*frames, *_syntax_error_place(error)),
        cause=cause,
        context=context,
        exceptions=tuple(member for member in map(follow, _members(error)) if member is not None),
        hidden=_hidden(hidden),
        frames_left_out=left_out,
        links_left_out=skipped if cause or context else 0,
        masks=context is not None and masks(error, trace),
        output=_output(error) or _output(hidden),
    )


def _hidden(context: BaseException | None) -> str:
    # Not shown in the report, as its author intends; but failures with different hidden exceptions differ.
    return clean(f"{type(context).__qualname__}: {message(context)}", HIDDEN_LIMIT) if context is not None else ""


def _next(error: BaseException) -> BaseException | None:
    """The exception behind another one, if Python shows it."""
    if error.__cause__ is not None:
        return error.__cause__
    return error.__context__ if _shows_context(error) else None


def _behind(error: BaseException, links: int) -> tuple[BaseException | None, int]:
    """The exception to record behind ``error``, and how many are left out before it: a long chain keeps its root."""
    behind = _next(error)
    if links != ROOT_LINKS or behind is None:
        return behind, 0
    chain, known = [behind], {id(error), id(behind)}
    while len(chain) < CHAIN:
        further = _next(chain[-1])
        if further is None or id(further) in known:
            break
        known.add(id(further))
        chain.append(further)
    skipped = max(0, len(chain) - links)
    return chain[skipped], skipped


def _output(error: BaseException | None) -> str:
    """The end of what a child process wrote, of exceptions that have it: ``stderr``, else ``output``."""
    for name in ("stderr", "output", "stdout"):
        try:
            value = getattr(error, name, None)
        except BaseException:
            continue
        if isinstance(value, bytes):
            value = value[-4 * OUTPUT_LIMIT :].decode("utf-8", "replace")
        if isinstance(value, str) and value.strip():
            return clean(value[-OUTPUT_LIMIT:])
    return ""


def _shows_context(error: BaseException) -> bool:
    # A SystemExit prints no traceback that ``from None`` could shorten; the hidden exception is the program's reason.
    return isinstance(error, SystemExit) or not error.__suppress_context__


def _frames(trace: TracebackType | None) -> tuple[list[Frame], int]:
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


def _frame(part: TracebackType) -> Frame:
    import linecache

    code, line = part.tb_frame.f_code, part.tb_lineno or 0
    try:
        source = linecache.getline(code.co_filename, line, part.tb_frame.f_globals).strip()
    except BaseException:
        source = ""
    return _bounded(code.co_filename, line, code.co_name, source)


def _bounded(file: str, line: int, function: str, source: str) -> Frame:
    return Frame(clean(file, 2000), line, clean(function, 500), clean(source, _SOURCE_LIMIT) if source else None)


def _syntax_error_place(error: BaseException) -> tuple[Frame, ...]:
    """The location of text that did not compile: it has no frame, but is the relevant location."""
    if not isinstance(error, SyntaxError) or not isinstance(error.filename, str):
        return ()
    source = error.text.strip() if isinstance(error.text, str) else ""
    return (_bounded(error.filename, error.lineno if isinstance(error.lineno, int) else 0, "<module>", source),)


def _notes(error: BaseException) -> tuple[str, ...]:
    notes = getattr(error, "__notes__", None)
    own = notes[:16] if isinstance(notes, (list, tuple)) else ()
    return tuple(clean(note, 4000) for note in (*own, *_hidden_property(error)) if isinstance(note, str))


def _hidden_property(error: BaseException) -> tuple[str, ...]:
    """Return a note if ``__getattr__`` raised it for the name of a property: an error within that one is hidden.

    torch's modules have such a method. None of the program's own code is called.
    """
    trace = error.__traceback__ if type(error) is AttributeError else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_name != "__getattr__":
        return ()
    try:
        name, of = getattr(error, "name", None), type(getattr(error, "obj", None))
        if type(name) is not str:
            return ()
        for kind in type.__getattribute__(of, "__mro__"):
            own = type.__getattribute__(kind, "__dict__").get(name)
            if issubclass(type(own), property):
                return (f"{clean(type.__getattribute__(kind, '__name__'), 200)} {HAS_PROPERTY} {name}",)
    except Exception:
        pass  # a class whose metaclass does something else
    return ()


def _members(error: BaseException) -> tuple[object, ...]:
    """The members of an exception group (PEP 654, or its backport; by name, as 3.10 has no such type)."""
    members = getattr(error, "exceptions", None)
    is_group = any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__)
    return tuple(members) if is_group and isinstance(members, (list, tuple)) else ()

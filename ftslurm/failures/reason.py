"""The judged exception of a recorded chain: the program's reason, not its own exit or what came after (pure).

Hydra, and all code that logs an exception and then calls ``sys.exit(1)``, end by a SystemExit that contains only a
number. Another process raises a worker's exception again with the original traceback in its message. A cleanup that
fails takes the place of the failure that it followed. The recorder stores the whole chain; agent and report both select
the judged exception here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ftslurm.dataclasses import replace
from ftslurm.failures.exception_message import OF_TORCH_SCRIPT, TORCH_SCRIPT
from ftslurm.failures.own_code import is_library
from ftslurm.pattern import pattern
from ftslurm.records.error import ErrorRecord, ExceptionRecord, Frame
from ftslurm.text import cut_middle

EXIT = "SystemExit"
CUT = "the log ends before its type and text"
"""The message of an exception whose traceback is cut off."""
PARSERS = pattern(r"/(argparse|optparse)\.py$|/(click|typer|absl|fire)/")
"""Modules that end a program by exit code 2 because they reject its command line."""
_STEPS = 16  # exits, processes and cleanups that are passed
_UNFINISHED = pattern(r"\bunexpected pos \d+ vs \d+")  # of torch.save, at the end of a file whose writing failed
_AGAIN_LIMIT = 200  # characters
_CLEANUP = pattern(r"__a?exit__|_*(close|clean_?up|shut_?down|tear_?down|finalize|release|destroy_process_group)")
"""Functions that a ``finally`` or a handler calls to clean up."""
_LAST_SAVE = pattern(
    r"(?:\w+\.)?_*(?:(?:emergency|crash|rescue)_?\w*|\w*on_(?:error|failure|crash|exception)"
    r"|(?:save|dump|flush|upload|notify|alert|report)_\w*(?:crash|error|fail|emergency|state|checkpoint|ckpt)\w*)"
)
"""Functions that a handler calls to save what can be saved, or to report the failure."""
_CLOSES = pattern(r"\.(?:close|terminate|join|shutdown|release|cleanup|stop|finish|flush)\(")
_CODE = pattern(r"-?\d*")
_REFERS = pattern(r"(?i)\bsee (?:the )?(?:inner|above|previous|original|causing) (?:exception|error)")
_CAUGHT = pattern(r"\w+: Caught (?P<type>\w+) (?P<where>in .+?)\.?")
"""Of torch's ExceptionWrapper: it repeats the type, and adds the place of the other process or thread."""
ON_RANKS = "on rank"
"""How a failure begins to name the ranks where it happened, for use in `raised_again`."""
_COLLECTED = pattern(r"CheckpointException: CheckpointException ranks:dict_keys\(\[(\d{1,6}(?:, \d{1,6})*)\]\)")
_SPAWNED = pattern(
    r"(?:ProcessRaisedException: |Exception: (?:-- )?)Process (\d+) terminated with the following error:?$"
)
_SCRIPT_FRAME = pattern(
    r"(?m)^ {2}File \"(?P<file>[^\"\n]{1,4096})\", line (?P<line>\d{1,9}), in (?P<function>.{1,200}?)$"
)
_USER_CODE = "\nfrom user code:"
_RUNTIME_WORDS = pattern(
    r"gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL (error|version|WARN)|c10::|The (client|server) socket has"
)


def reason(exception: ExceptionRecord) -> ExceptionRecord:
    """Return the exception that is judged; its ``raised_again`` is the one that took its place, if there is one.

    The cause or context of a SystemExit is judged as if it had not been caught. A context counts only if the function
    that caught it called the exit itself: otherwise the program may have continued without it
    (``except ImportError: train_without_it()``). A rejected command line is a reason by itself.
    """
    for _ in range(_STEPS):
        inner = _behind_exit(exception) or _referred_to(exception) or _of_compiled_code(exception)
        inner = inner or _of_torch_script(exception)
        inner = inner or _elsewhere(exception) or _masked(exception)
        if inner is None:
            break
        exception = inner
    return exception


def _behind_exit(exception: ExceptionRecord) -> ExceptionRecord | None:
    if exception.type != EXIT or refuses_arguments(exception):
        return None
    return exception.cause or handled(exception)


def _referred_to(exception: ExceptionRecord) -> ExceptionRecord | None:
    """Return the cause to which a message refers for the reason: ``See inner exception for details.``"""
    if exception.cause is not None and exception.message == "generator raised StopIteration":
        # Of a generator's own code, which the frames of the exception do not reach.
        frames = (*exception.frames, *exception.cause.frames)
        return replace(exception, frames=frames, cause=None, raised_again=exception.raised_again)
    if exception.cause is None or _REFERS.search(exception.message) is None:
        return None
    return replace(exception.cause, raised_again=exception.cause.raised_again or exception.type)


def _of_compiled_code(exception: ExceptionRecord) -> ExceptionRecord | None:
    """Return an exception of torch's compiler with the place in the code that it compiled, which its message has."""
    message, border, place = exception.message.partition(_USER_CODE)
    if not border:
        return None
    from ftslurm.failures.traceback_text import open_frames

    lines = place.strip("\n").split("\n\n", 1)[0].split("\n")
    return replace(exception, message=message.rstrip(), frames=(*exception.frames, *open_frames(lines)[1]))


def _of_torch_script(exception: ExceptionRecord) -> ExceptionRecord | None:
    """Return the error that TorchScript's interpreter passes on, with its frames, which are in the message, too."""
    if not exception.message.startswith(TORCH_SCRIPT):
        return None
    error = OF_TORCH_SCRIPT.search(exception.message)
    if error is None:
        return None
    found = _SCRIPT_FRAME.finditer(exception.message)
    frames = (Frame(each["file"], int(each["line"]), each["function"]) for each in found)
    return replace(exception, type=error["type"], message=error["message"], frames=(*exception.frames, *frames))


def _elsewhere(exception: ExceptionRecord) -> ExceptionRecord | None:
    """Return the exception of another process, or of a compiler, that this one passes on."""
    messages, cause = [exception.message], exception.cause
    if cause is not None and cause.frames and (cause.type, cause.message) == (exception.type, exception.message):
        return replace(cause, raised_again=exception.raised_again)
    if cause is not None and not cause.frames:
        messages.append(cause.message)
    for text in messages:
        if "\n" not in text or "</" in text:  # a server's page
            continue
        from ftslurm.failures.traceback_text import embedded

        inner = embedded(text)
        if inner is not None:
            frames = _with_own(inner.frames, exception.frames)
            if inner.type.endswith("Group") and not inner.exceptions:
                inner = replace(inner, exceptions=exception.exceptions)
            return replace(inner, frames=frames, raised_again=_again(exception, inner) or exception.raised_again)
    return None


def _masked(exception: ExceptionRecord) -> ExceptionRecord | None:
    """Return the failure that a cleanup's own one hides."""
    masked = exception.context
    if masked is None or exception.cause is not None:
        return None
    # A library that the cleanup calls raises its own exception while it handles another one.
    behind = next((each for each in _contexts(masked) if _in_exit(exception, each)), None)
    masked = behind or masked
    closes = _closes_nothing(exception, masked)
    cleans_up = closes or _in_exit(exception, masked) or _saves_last(exception, masked)
    if not (exception.masks or cleans_up or _UNFINISHED.search(exception.message)):
        return None
    if not masked.type.endswith(("Error", "Exception", "Interrupt", "Exit")) and not masked.message:
        return None  # a StopIteration and the like, which only ends a loop
    called = _with_callers(masked, exception)
    if called.frames == masked.frames:
        called = replace(masked, frames=(*exception.frames[:-1], *masked.frames))
    return replace(called, raised_again=f"its cleanup raised {_one_line(exception)}")


def _contexts(exception: ExceptionRecord) -> Iterator[ExceptionRecord]:
    """Yield an exception and those that were handled when it was raised, the newest first."""
    found: ExceptionRecord | None = exception
    while found is not None:
        yield found
        found = found.context


def before_collective(exception: ExceptionRecord) -> ExceptionRecord | None:
    """Return the failure of a rank whose handler or cleanup then called a collective, which failed; None: no such.

    Only where no other rank has a reason of its own: a handler may also have gone on in spite of what it caught.
    """
    caught, frames = exception.context, exception.frames
    if caught is None or exception.cause is not None or not caught.frames or not frames:
        return None
    if not _of_runtime(exception) or _of_runtime(caught) or caught.type in ("StopIteration", EXIT):
        return None
    catcher = (caught.frames[0].file, caught.frames[0].function)
    called = next((inner for frame, inner in pairwise(frames) if (frame.file, frame.function) == catcher), None)
    if called is None or not ("/torch/distributed/" in called.file or _CLEANUP.fullmatch(called.function)):
        return None
    return replace(_with_callers(caught, exception), raised_again=f"then {_one_line(exception)}")


def _of_runtime(exception: ExceptionRecord) -> bool:
    return by_distributed(exception.type, exception.module, exception.message, exception.inner_file)


def _with_callers(inner: ExceptionRecord, outer: ExceptionRecord) -> ExceptionRecord:
    """Return an exception with all its frames: the traceback of a caught one begins where it was caught."""
    if not inner.frames:
        return inner
    catcher = (inner.frames[0].file, inner.frames[0].function)
    at = next((i for i, frame in enumerate(outer.frames) if (frame.file, frame.function) == catcher), 0)
    return replace(inner, frames=(*outer.frames[:at], *inner.frames))


def _with_own(inner: tuple[Frame, ...], outer: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames of the other process; below those that called it if all of them are a library's."""
    return inner if any(not is_library(frame.file) for frame in inner) else (*outer, *inner)


def _again(outer: ExceptionRecord, inner: ExceptionRecord) -> str:
    text = _one_line(outer)
    if outer.type == "BackendCompilerFailed":
        return ""  # "backend='inductor' raised"
    spawned = _SPAWNED.match(text)
    if spawned is not None:
        return f"in process {spawned[1]}"
    collected = _COLLECTED.match(text)
    if collected is not None:
        return f"{ON_RANKS}{'s' if ',' in collected[1] else ''} {collected[1]}"
    caught = _CAUGHT.fullmatch(text)
    if caught is not None and caught["type"] == inner.type:
        return caught["where"]
    plain = f"{inner.type}: {inner.message}".split("\n", 1)[0]
    return "" if text.startswith(plain[:_AGAIN_LIMIT]) else text


def _one_line(exception: ExceptionRecord) -> str:
    # Without the rules of torch's table.
    lines = [line.strip() for line in exception.message.split("\n") if line.strip(" =-")]
    first = next((line for line in lines if line not in ('"""', "'''") and "Traceback (most recent" not in line), "")
    first = first.removeprefix("-- ").rstrip(" :")
    return cut_middle(f"{exception.type}: {first}" if first else exception.type, _AGAIN_LIMIT)


def _closes_nothing(exception: ExceptionRecord, masked: ExceptionRecord) -> bool:
    """Return whether it was raised by a function that closes what it had failed to open."""
    last = exception.frames[-1] if exception.frames else None
    unset = exception.type == "UnboundLocalError" or "'NoneType' object" in exception.message
    if not unset or last is None or _CLOSES.search(last.source or "") is None:
        return False
    return any((frame.file, frame.function) == (last.file, last.function) for frame in masked.frames)


def _in_exit(exception: ExceptionRecord, masked: ExceptionRecord) -> bool:
    """Return whether it was raised in the cleanup that its context passed through, by their frames."""
    return _CLEANUP.fullmatch(_called_by_handler(exception, masked)) is not None


def _saves_last(exception: ExceptionRecord, masked: ExceptionRecord) -> bool:
    """Return whether it was raised by what a handler called to save, or to report, after a failure."""
    # A lookup that fails is often no failure: its handler does something else instead.
    return len(masked.frames) >= 2 and _LAST_SAVE.fullmatch(_called_by_handler(exception, masked)) is not None


def _called_by_handler(exception: ExceptionRecord, masked: ExceptionRecord) -> str:
    """Return the function which the function that caught ``masked`` called, in which it was raised; empty: none."""
    if not masked.frames:
        return ""
    passed = masked.frames[0]
    for frame, inner in pairwise(exception.frames):
        if (frame.file, frame.function) == (passed.file, passed.function):
            return inner.function
    return ""


def judged(record: ErrorRecord) -> ExceptionRecord | None:
    """Return the exception of a record that is judged; None without one.

    A record of torch alone has its traceback as text only, as has one that a nested launch had left in its place.
    """
    if record.exception is not None:
        found = reason(record.exception)
        before = record.reported_before if is_bare_exit(found) else None
        return _of_text(str(before.get("py_callstack"))) or found if before is not None else found
    if record.kind != "exception" or not record.traceback:
        return None
    return _of_text(record.traceback)


def _of_text(traceback: str) -> ExceptionRecord | None:
    from ftslurm.failures.traceback_text import embedded

    found = embedded(traceback)
    return reason(found) if found is not None else None


def handled(exception: ExceptionRecord) -> ExceptionRecord | None:
    """Return the exception whose handler itself raised this one; None: there is none.

    What is raised further down, in code that a handler calls, is another failure:
    ``except ImportError: train_without_it()``.
    """
    caught = exception.context
    if caught is None or exception.cause is not None or not caught.frames or not exception.frames:
        return None
    # The traceback of a caught exception begins with the function that caught it.
    handler, place = caught.frames[0], exception.frames[-1]
    return caught if (handler.file, handler.function) == (place.file, place.function) else None


def links(exception: ExceptionRecord) -> Iterator[ExceptionRecord]:
    """Yield the exception with all its causes and contexts, and the members of groups."""
    yield exception
    for inner in (exception.cause, exception.context, *exception.exceptions):
        if inner is not None:
            yield from links(inner)


def refuses_arguments(exception: ExceptionRecord) -> bool:
    """Return whether it is the exit of a command line parser that rejects its arguments."""
    by_parser = PARSERS.search(exception.inner_file) is not None
    return by_parser and exception.type in (EXIT, "FireExit") and exception.message == "2"


def is_bare_exit(exception: ExceptionRecord) -> bool:
    """Return whether it is a SystemExit with no more than a number."""
    return exception.type == EXIT and is_code(exception.message)


def is_code(message: str) -> bool:
    """Return whether the message of a SystemExit is a number or empty."""
    return _CODE.fullmatch(message) is not None


def by_distributed(name: str, module: str, message: str, inner_file: str) -> bool:
    """Return whether torch.distributed itself raised it: by type, by text of the runtime, or by the innermost frame.

    Args:
        name, module: of the exception's type; the module may be unknown.
        inner_file: the file of its innermost frame; may be empty.
    """
    if name.startswith("Dist") and (module.startswith("torch") or not module):
        return True
    if name != "RuntimeError":
        return False
    return "/torch/distributed/" in inner_file or _RUNTIME_WORDS.search(message) is not None

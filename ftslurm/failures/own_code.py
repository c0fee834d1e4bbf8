"""Which frames of a traceback are the user's own code (pure)."""

from __future__ import annotations

from ftslurm.pattern import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftslurm.records.error import Frame

_LIBRARY = pattern(
    r"/(site|dist)-packages/|/lib(64)?/python3|\.zip/|^<frozen|/ftslurm/(worker|boot/)"
    # A traceback in which the directories were left out, and one of Windows.
    r"|\.p(?:yx|xi|xd)$|^torch/|[\\/]([Ss]ite|dist)-packages[\\/]|\\lib\\\w+\.py$"
)

_SCRIPT = pattern(r"[/\\](?:bin|Scripts)[/\\][^/\\.]{1,60}(?:\.exe[/\\]__main__\.py)?$")
_SCRIPT_LINES = 40
_PACKAGE = pattern(r"[/\\](?:[Ss]ite|dist)-packages[/\\](\w+)[/\\]")
_FRONT_ENDS = frozenset(
    (
        "torch",
        "accelerate",
        "deepspeed",
        "ray",
        "submitit",
        "fire",
        "click",
        "typer",
        "hydra",
        "absl",
        "tyro",
        "jsonargparse",
    )
)
"""Packages that start an application, or parse its command line."""
_ALARM = pattern(r"(?i)alarm|alrm|time_?d?_?out|took (?:longer|too)|too (?:long|slow)|deadline")


def is_library(file: str) -> bool:
    """Return whether a file is not part of the user's own code."""
    return _LIBRARY.search(file) is not None


def own_frame(frames: Sequence[Frame]) -> Frame:
    """Return the innermost frame of the user's own files, else of other code of the user's; else of the application.

    The latter is the package of the program, as of one that is started by ``python -m``; without one the innermost
    frame is returned.
    """
    frames = frames[:-1] if interrupts_wait(frames) else frames
    own = [frame for frame in reversed(frames) if not is_library(frame.file) and not _is_entry(frame)]
    return next((frame for frame in own if not frame.file.startswith("<")), own[0] if own else _of_application(frames))


def interrupts_wait(frames: Sequence[Frame]) -> bool:
    """Return whether the innermost frame is of a signal's handler that interrupted the wait for a collective."""
    if len(frames) < 2 or is_library(frames[-1].file):
        return False
    waits = frames[-2]
    return "/torch/distributed/" in waits.file and "wait(" in (waits.source or "")


def gave_up_waiting(name: str, message: str, frames: Sequence[Frame]) -> bool:
    """Return whether it is of an alarm's handler that interrupted the wait for a collective; not of another signal's.

    Args:
        name, message: of the exception.
        frames: its own, outermost first.
    """
    if not interrupts_wait(frames) or name in ("SystemExit", "KeyboardInterrupt"):
        return False
    return is_of_alarm(f"{frames[-1].function} {name} {message[:400]}")


def is_of_alarm(text: str) -> bool:
    """Return whether a function and the exception that it raises, as text, are those of an alarm's handler."""
    return _ALARM.search(text) is not None


def _is_entry(frame: Frame) -> bool:
    """Whether it is the script that an installer writes for a program of a package, or Python's own start."""
    script = _SCRIPT.search(frame.file) is not None and frame.line <= _SCRIPT_LINES
    return (script and frame.function == "<module>") or frame.file.startswith("<frozen runpy")


def _of_application(frames: Sequence[Frame]) -> Frame:
    packages = [found[1] if (found := _PACKAGE.search(frame.file)) else "" for frame in frames]
    # A package that calls torch is nearer to the user than torch.
    if not (_is_entry(frames[0]) or frames[0].file.endswith("/runpy.py") or packages[-1] == "torch"):
        # Python's own modules say less than who called them.
        return next((each for each, name in zip(frames[::-1], packages[::-1], strict=True) if name), frames[-1])
    name = next((name for name in packages if name and name not in _FRONT_ENDS), "")
    own = [frame for frame, package in zip(frames, packages, strict=True) if name and package == name]
    # All else is a front end's: its script is the nearest to the user.
    return own[-1] if own else next((frame for frame in frames if not is_library(frame.file)), frames[-1])

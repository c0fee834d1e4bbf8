"""What the end of a failed worker's own output adds to its verdict, where its end says nothing of the reason (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ftslurm.dataclasses import dataclass
from ftslurm.failures.causes import Cause
from ftslurm.failures.message_line import message_line
from ftslurm.failures.reason import EXIT, handled, is_code, links, reason
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord
from ftslurm.text import cut_middle

if TYPE_CHECKING:
    from ftslurm.failures.stderr_witness import Witness

_OF_CHILD = pattern(
    r"returned non-zero exit status|died with <Signals|\ACommand .{1,4000} timed out after [\d.]+ seconds\Z"
    r"|exits with return code|was terminated abruptly|\Aprocess \d+ terminated with (?:signal|exit code)"
    r"|DataLoader worker .{0,60}(exited unexpectedly|is killed by signal)"
    r"|\b(fail|exit|end|di)ed\b.{0,20} (exit ?)?(code|status) \(?-?[1-9]"
)
# Of torch's handler of signals in a loader's worker.
_OF_BATCH_SCRIPT = pattern(r"^Lmod: |slurm_script: line \d+: ")
_BY_HANDLER = pattern(r"(?m)^.{0,40}\bUnexpected [\w -]{3,40} encountered in worker\b.*$")
_PLAIN = pattern(r"(?:returned non-zero exit status \d+|died with <Signals.\w+: \d+>)\.\Z")
_COMMAND = pattern(r"Command '?\[?'?([\w./+-]{1,200})")
_COMPILER_ERROR = pattern(
    r"(?m)^\S{1,300}[:(]\d{1,6}(?:[:,]\d{1,6})?\)?: (?:fatal )?error: .{1,300}$|^nvcc (?:fatal|error) *: .{1,300}$"
    r"|^(?:\S{0,200}/)?ld(?:\.\w+)?: (?:cannot find |.{0,200}undefined reference).{1,300}$"
    r"|^\S{1,300}: undefined reference to .{1,300}$"
    r"|^/bin/(?:ba|da)?sh: (?:line )?(?:\d+: )?\S{1,300}: (?:command )?not found$"
)
_COMPILER = pattern(r"Command '?\[?'?\S{0,200}(?:ninja|nvcc|hipcc|g\+\+|gcc|clang\+*|cc)\b")
# Each thread of a kernel prints one.
_KERNEL = pattern(
    r"(?m)(?P<file>[^\s:]{1,300}\.(?:cu|cuh|h|hip|cpp|py):\d{1,6}): .{0,300}?(?P<text>Assertion `[^\n]{1,200}' failed"
    r"|Assertion `[^\n]{1,200}` failed)"
)
_ERROR_LIMIT = 100
_SENTENCE = pattern(r"(?<=[.!]) ")
_NO_DEVICE = pattern(r"no GPUs found|No CUDA GPUs are available|CUDA is not available|is_available\(\) is False")
_INITIALIZATION = pattern(r"CUDA initialization: [^\n(]{8,200}")
_INTERRUPTS = pattern(r"(?i)interrupt|\bSIGINT\b|\bCtrl[-+ ]?C\b")
_TOOL_LINES, _FEW = 60, 5
_BY_TOOL = pattern(r"[\w.+-]{1,60}: \S")
_OF_ITS_CHILD = pattern(r"(?i)\bchild returned status|\bexited with|\bfailed with exit|\bnot recoverable")
_NUMBER = pattern(r"\d+")
_CHILD_LIMIT = 200  # characters of a child's last line
_WARNS = pattern(r"(?i)\bwarning\b")
_TYPES = pattern(r"^(?:\w+::)*\w+: ")


@dataclass(frozen=True)
class OutputEvidence:
    """What an output says.

    Attributes:
        found: as parsed.
        source: "its stderr", for use after "from ".
        exception: to judge; None: there is only text.
        certain: whether the exception's type is in the output too; else only its text was found.
        of_child: whether it is a child process's failure, which the worker's own exception reports.
    """

    found: Witness
    source: str
    exception: ExceptionRecord | None
    certain: bool = True
    of_child: bool = False


def output_evidence(
    cause: Cause,
    exception: ExceptionRecord | None,
    signal: str | None,
    texts: Mapping[str, str],
    healthy: Sequence[str] = (),
    stale: Collection[str] = (),
) -> OutputEvidence | None:
    """Return what the output says about a worker's end; None: the end has its own reason, or the output has none.

    Args:
        cause: of the end by itself.
        exception: of the end, if there was one.
        signal: that ended it.
        texts: the ends of its output by stream.
        healthy: the ends of the stderr of ranks that did not fail: what they printed, too, was survived.
        stale: the streams to which it wrote last long before the other one: what they report was survived.
    """
    if exception is not None and exception.type == "KeyboardInterrupt":
        return _of_interrupt(texts.get("stderr", ""))
    if exception is not None and _is_launcher_without_record(exception):
        return _of_launcher(exception, texts.get("stderr", ""))
    child = None if exception is None else _child_error(exception)
    if child is not None:
        return _of_child(child, texts.get("stderr", ""))
    known_forms = (_of_loader, _of_kernel, _of_device) if exception is not None else ()
    evidence = (form(exception, texts.get("stderr", "")) for form in known_forms if exception is not None)
    if (known_form := next((each for each in evidence if each is not None), None)) is not None:
        return known_form
    if cause.name == "abort" and (aborted := _of_abort(texts.get("stderr", ""), signal)) is not None:
        return aborted
    if not cause.silent:
        return None
    # Most failures have a reason of their own: a fast report does not load this.
    from ftslurm.failures.closing_lines import has_only_aftermath
    from ftslurm.failures.stderr_witness import LOGGED, TRACEBACK, witness

    if cause.name == "shell-missing" and (by_shell := _of_shell(texts.get("stderr", ""))) is not None:
        return _accepted(by_shell, "its stderr", exception, signal)
    known = exception.message if exception is not None else ""
    for stream in ("stderr", "stdout"):
        found = witness(texts.get(stream, ""), apart_from=known.split("\n"))
        survived = stream in stale or (found is not None and any(map(partial(_is_in, found), healthy)))
        if found is not None and found.kind in (TRACEBACK, LOGGED) and survived:
            return None
        if found is not None:
            return _accepted(found, f"its {stream}", exception, signal)
        if not has_only_aftermath(texts.get(stream, "")):
            return None
    return None


def _of_abort(stderr: str, signal: str | None) -> OutputEvidence | None:
    """Return the exception whose frames are all that a program printed before it aborted, as by a hook of its own."""
    from ftslurm.failures.stderr_witness import frames_at_end

    printed = frames_at_end(stderr)
    return None if printed is None else _accepted(printed, "its stderr", None, signal)


def _of_shell(stderr: str) -> Witness | None:
    """Return what a shell could not run, below which its script's traps may have printed."""
    from ftslurm.failures.closing_lines import output_lines
    from ftslurm.failures.logged_error import BY_SHELL
    from ftslurm.failures.stderr_witness import LOGGED, Witness

    line = next(filter(BY_SHELL.fullmatch, reversed(output_lines(stderr))), "")
    return Witness(LOGGED, cut_middle(line, _CHILD_LIMIT)) if line else None


def _is_in(found: Witness, text: str) -> bool:
    """Return whether an output has the same line, but for numbers."""
    line = _NUMBER.sub("#", found.text)
    return any(line in _NUMBER.sub("#", other) for other in text.splitlines())


def _accepted(found: Witness, source: str, exited: ExceptionRecord | None, signal: str | None) -> OutputEvidence | None:
    from ftslurm.failures.stderr_witness import LOGGED, RUNTIME, TRACEBACK

    if found.kind == LOGGED and signal not in (None, "SIGABRT"):
        return None  # what sent the signal did not write the line
    if found.kind != TRACEBACK and exited is not None and not is_code(exited.message):
        return None  # the program's own message is known
    if found.exception is not None:
        return OutputEvidence(found, source, _with_context(found.exception, exited))
    caught = exited.context if exited is not None and exited.type == EXIT else None
    if caught is not None and caught.message and message_line(caught.message) in found.text:
        return OutputEvidence(found, source, reason(caught))
    text = _TYPES.sub("", found.text) if found.kind == RUNTIME else found.text
    return OutputEvidence(found, source, ExceptionRecord("RuntimeError", "", text, frames=found.frames), certain=False)


def _with_context(named: ExceptionRecord, exited: ExceptionRecord | None) -> ExceptionRecord:
    """Return the exception that the output names; as recorded, if it was being handled when the program exited."""
    caught = exited.context if exited is not None and exited.type == EXIT else None
    if caught is None or _headline(caught) != _headline(named):
        return reason(named)
    return reason(caught)


def _headline(exception: ExceptionRecord) -> tuple[str, str]:
    return exception.type, message_line(exception.message)


def _of_compiler(text: str) -> Witness | None:
    """Return a compiler's first error: what it prints below are its consequences."""
    from ftslurm.failures.stderr_witness import LOGGED, Witness

    errors = [found[0].strip() for found in _COMPILER_ERROR.finditer(text)]
    if not errors:
        return None
    # What ends with a colon has its subject below.
    place, colon, text = next((each for each in errors if not each.endswith(":")), errors[0]).partition(": ")
    sentences = _SENTENCE.split(text)
    while len(sentences) > 1 and len(" ".join(sentences)) > _ERROR_LIMIT:
        sentences.pop()  # what is wrong comes first, then what may be done
    return Witness(LOGGED, cut_middle(f"{place.rpartition('/')[2]}{colon}{' '.join(sentences)}", _CHILD_LIMIT))


def _of_kernel(exception: ExceptionRecord, stderr: str) -> OutputEvidence | None:
    """Return what a GPU kernel asserted, which the exception only says that it did."""
    found = _KERNEL.search(stderr) if "device-side assert" in exception.message else None
    if found is None:
        return None
    from ftslurm.failures.stderr_witness import LOGGED, Witness

    name = found["file"].rpartition("/")[2]
    compiled = ".py:" in name  # by torch.compile, under a name that says nothing
    text = f"{'in a compiled kernel' if compiled else name}: {found['text']}"
    return OutputEvidence(Witness(LOGGED, cut_middle(text, _CHILD_LIMIT)), "its stderr", None, of_child=True)


def _of_device(exception: ExceptionRecord, stderr: str) -> OutputEvidence | None:
    """Return why torch found no GPU, of which it only warned before."""
    found = _INITIALIZATION.search(stderr) if _NO_DEVICE.search(exception.message) else None
    if found is None:
        return None
    from ftslurm.failures.stderr_witness import LOGGED, Witness

    text = found[0].rstrip(" .")
    inner = ExceptionRecord("RuntimeError", "", text, frames=exception.frames)
    return OutputEvidence(Witness(LOGGED, cut_middle(text, _CHILD_LIMIT)), "its stderr", inner, of_child=True)


def _of_tool(message: str, stderr: str) -> Witness | None:
    """Return the first of the last lines that a command-line tool prints with its name before them."""
    from ftslurm.failures.closing_lines import is_summary, output_lines
    from ftslurm.failures.stderr_witness import LOGGED, Witness

    command = _COMMAND.search(message)
    if command is None:
        return None
    name = f"{command[1].rpartition('/')[2]}: "
    lines = output_lines(stderr)[-_TOOL_LINES:]
    known = [line for line in lines if line.startswith(name)]
    above = [line for line in lines[: lines.index(known[0])][-1:] if known and _BY_TOOL.match(line)] if known else []
    if above and _OF_ITS_CHILD.search(known[0]):
        return Witness(LOGGED, cut_middle(above[0], _CHILD_LIMIT))
    reasons = [line for line in known if not is_summary(line)] or known
    # What comes first is the reason of the rest.
    return Witness(LOGGED, cut_middle(reasons[0 if len(reasons) <= _FEW else -1], _CHILD_LIMIT)) if known else None


def _child_error(exception: ExceptionRecord) -> ExceptionRecord | None:
    """Return what reports a child process's end: the exception, or one that it was raised from or has as a member."""
    # Its output is also that of an exception that it hides (``raise ... from None``).
    if _OF_CHILD.search(exception.message) or (exception.output and _OF_CHILD.search(exception.hidden)):
        return exception
    behind = (exception.cause, handled(exception), *exception.exceptions)
    return next((found for each in behind if each is not None and (found := _child_error(each)) is not None), None)


def _of_interrupt(stderr: str) -> OutputEvidence | None:
    """Return why a program interrupted itself: what a thread of it raised or logged with a traceback just before.

    Or the last line before the traceback if it speaks of an interruption: a watchdog of the program's own.
    """
    from ftslurm.failures.lines_above import line_before
    from ftslurm.failures.stderr_witness import LOGGED, TRACEBACK, Witness, witness

    before = witness(stderr, before="KeyboardInterrupt") if "KeyboardInterrupt" in stderr else None
    if before is not None and before.kind == TRACEBACK and before.exception is not None:
        return OutputEvidence(before, "its stderr", reason(before.exception), of_child=True)
    line = line_before(stderr, "KeyboardInterrupt") if "KeyboardInterrupt" in stderr else ""
    if not _INTERRUPTS.search(line):
        return None
    return OutputEvidence(Witness(LOGGED, cut_middle(line.strip(), _CHILD_LIMIT)), "its stderr", None)


def _is_launcher_without_record(exception: ExceptionRecord) -> bool:
    """Return whether a nested launch of torch's failed whose ranks left no record that torch could copy."""
    root = exception.message.partition("Root Cause")[2]
    return exception.type == "ChildFailedError" and re.search(r"error_file ?: <N/A>", root) is not None


def _of_launcher(exception: ExceptionRecord, stderr: str) -> OutputEvidence | None:
    """Return why a nested launch failed, by the output of its ranks."""
    from ftslurm.failures.stderr_witness import witness

    found = witness(stderr)
    # The table itself has how its rank ended.
    if found is None or found.exception is None or found.exception.type == exception.type:
        return None
    return OutputEvidence(found, "its child's stderr", reason(found.exception))


def _of_loader(exception: ExceptionRecord, stderr: str) -> OutputEvidence | None:
    """Return what torch's handler of signals printed in a loader's worker, whose pipe then broke."""
    handler = _BY_HANDLER.search(stderr)
    of_loader = any(frame.file.endswith("/torch/utils/data/dataloader.py") for frame in exception.frames)
    if handler is None or not of_loader or "killed by signal" in exception.message:
        return None
    from ftslurm.failures.stderr_witness import LOGGED, Witness

    return OutputEvidence(Witness(LOGGED, handler[0].strip()), "its stderr", None, of_child=True)


def _of_child(exception: ExceptionRecord, stderr: str) -> OutputEvidence | None:
    """Return why a child process failed: from what the exception has of its output, else from the rank's own."""
    from ftslurm.failures.closing_lines import is_summary, output_lines
    from ftslurm.failures.lines_above import error_before, line_before
    from ftslurm.failures.stderr_witness import LOGGED, Witness, witness

    found = _of_compiler(exception.output or exception.message)
    if found is None:
        found = witness(exception.output) if exception.output else None
    if found is None and exception.output:
        lines = [line for line in output_lines(exception.output) if line.strip()]
        reasons = [line for line in lines if not is_summary(line) and not _WARNS.search(line)] or lines[-1:]
        # Of one tool, what comes first is the reason of the rest.
        by_one = len({line.partition(": ")[0] for line in reasons}) == 1 < len(reasons) <= _FEW
        line = (reasons[0] if by_one else reasons[-1]) if reasons else ""
        found = Witness(LOGGED, cut_middle(line.strip(), _CHILD_LIMIT)) if line else None
    if found is None and _COMPILER.search(exception.message):
        found = _of_compiler(stderr)
    if found is None:
        # By which signal a worker died is in the exception, too.
        if any("killed by signal" in each.message for each in links(exception)):
            stderr = _BY_HANDLER.sub("", stderr)
        found = witness(stderr, before=exception.type) or _of_tool(exception.message, stderr)
    if found is not None and found.kind == LOGGED and _OF_BATCH_SCRIPT.search(found.text):
        found = None  # it ran before the rank
    # A message that says more than the exit code may be about something else: then only an error is quoted.
    plain = _PLAIN.search(exception.message) is not None
    if found is None and (line := (line_before if plain else error_before)(stderr, exception.type)):
        source = "the line before it" if plain else "its stderr"
        return OutputEvidence(Witness(LOGGED, cut_middle(line, _CHILD_LIMIT)), source, None, of_child=True)
    if found is None or found.text.endswith(":"):
        # What only introduces a reason says none.
        return None
    inner = None if found.exception is None else reason(found.exception)
    return OutputEvidence(found, "its child's output", inner, of_child=True)

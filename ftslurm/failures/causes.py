"""The cause of a worker's failure: pure functions that select a row of the catalogue and describe it.

The rows are in `ftslurm.failures.catalogue`, their input in `ftslurm.failures.evidence`; sites add rows by
`ftslurm.failures.plugins`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.failures.abort_message import abort_message
from ftslurm.failures.catalogue import (
    CASCADE,
    OLDER_CHECKPOINT,
    OTHER_NODE,
    POINTLESS,
    PRIMARY,
    RESTARTS,
    ROWS,
    SAME_NODE,
    Cause,
)
from ftslurm.failures.evidence import CONTEXT, HANDLED, MEMBER, Evidence
from ftslurm.failures.message_line import last_error, message_line, refusal, source_line, whole_line, without_choices
from ftslurm.failures.nccl_timeout import timeout_of
from ftslurm.failures.reason import is_code
from ftslurm.pattern import pattern
from ftslurm.records.error import HAS_PROPERTY, HostResources, OomKills, Space
from ftslurm.text import cut_middle

__all__ = [
    "CASCADE",
    "OLDER_CHECKPOINT",
    "OTHER_NODE",
    "POINTLESS",
    "PRIMARY",
    "RESTARTS",
    "ROWS",
    "SAME_NODE",
    "Cause",
    "Evidence",
]
__all__ += ["HostResources", "OomKills", "Space", "classify", "describe", "find"]

_SUB_EXCEPTIONS = pattern(r" \((\d+) sub-exceptions?\)$")
_TITLED = (
    "address-space",
    "no-directory",
    "checkpoint-mismatch",
    "weights-only",
    "ddp-unused",
    "master-name",
    "memory-limit",
    "host-oom-kill",
    "oom-kill",
)
"""Causes of which `message_line` leaves only the detail: the title says what it is about."""
_BINARY = pattern(r"[\x00-\x08\x0e-\x1a]")
_LINE_ENDS = pattern(r"[\r\n]+")
_BINARY_LIMIT = 64 * 1024  # characters
_INNER_LIMIT = 200  # characters of the exception behind another one


def classify(evidence: Evidence, rows: Sequence[Cause] = ROWS) -> Cause:
    """Return the row for this evidence; the last built-in row matches everything. Never raises."""
    return find(evidence, rows)[0]


def find(evidence: Evidence, rows: Sequence[Cause] = ROWS) -> tuple[Cause, Evidence]:
    """Return the row, and the evidence that matched: of a link of the exception's chain, or the whole.

    The exception that ended the worker decides; where its row is vague, its cause may be more specific. An exception
    that was only being handled when it was raised is used for rows that are reliable there (a full disk, a broken
    connection): a KeyError that a script had handled is no cause.
    """
    row = _first(evidence, rows)
    return (_behind(evidence, rows) if row.vague else None) or (row, evidence)


def _first(evidence: Evidence, rows: Sequence[Cause]) -> Cause:
    for row in rows:
        try:
            if row.fits(evidence):
                return row
        except Exception:  # a site's own row must not break the report
            continue
    return ROWS[-1]


def _behind(evidence: Evidence, rows: Sequence[Cause]) -> tuple[Cause, Evidence] | None:
    members: list[tuple[Cause, Evidence]] = []
    for how, inner in evidence.inner:
        row, where = find(inner, rows)
        if how == MEMBER:
            members.append((row, where))
        elif not row.vague and (row.behind or how not in (CONTEXT, HANDLED)):
            return row, where
    # Of a group's members, a specific one, and none that is a cascade.
    for wanted in (PRIMARY, CASCADE):
        matched = [found for found in members if found[0].role == wanted]
        if matched:
            clear = [found for found in matched if not found[0].vague]
            return (clear or matched)[0]
    return None


_RUN_WITH = pattern(r" \(run with NCCL_DEBUG=\w+ for details\)")
_BARE = ("error", "Error", "timeout", "Empty", "Full")
"""Names of exceptions that say something only with their module."""


def _with_port(message: str, output: str) -> str:
    """torch puts the port at the end of a long line, or only into its own log."""
    port = re.search(r"\bport: (\d{1,5})\b", message) or re.search(r"failed to bind to \S+:(\d{1,5}) ", output)
    if port is None:
        return message
    named = f"port {port[1]} is in use (EADDRINUSE)"
    return named if "server socket has failed" in message else f"{named}: {message}"


def describe(evidence: Evidence, cause: Cause, found: Evidence | None = None) -> str:
    """Describe the end in one line, for use after "rank 3 on n2: ". Never empty.

    Args:
        evidence: of the end.
        cause: the row for it.
        found: the link of the chain that matched the row, if not the exception of the end.
    """
    return _with_exit(_with_found(evidence, cause, found), evidence)


def _with_exit(text: str, evidence: Evidence) -> str:
    """Add the program's own exit because of the exception, where it has more information than Python's exit code."""
    if evidence.exception in (None, "SystemExit"):
        return text
    code, (first, newline, rest) = evidence.exit_code, text.partition("\n")
    if evidence.exit_message:
        parting = evidence.exit_message.strip().split("\n", 1)[0]
        return f"{'sys.exit' if code is None else f'exit code {code}'}: {parting} (from {_first_line(first)})"
    return text if code in (None, 1) or f"exit code {code}" in first else f"{first}; exit code {code}{newline}{rest}"


def _with_found(evidence: Evidence, cause: Cause, found: Evidence | None) -> str:
    text = _describe(evidence, cause)
    if found is None or found is evidence or found.exception is None:
        root, handled = evidence.root, evidence.handled
        if not cause.vague:
            return text
        # Of a group, what its first member has to say.
        member = next((inner for how, inner in root.inner if how == MEMBER), None) if root is not evidence else None
        root = root if member is None else member.root
        if root is not evidence and root.exception != "CancelledError":
            return _from(text, _describe(root, cause))
        return text if handled is None else f"{_first_line(text)} (after {_of_handled(handled, cause)})"
    inner = _first_line(_describe(found, cause))
    outer = text.split("\n", 1)[0]
    if any(how == MEMBER for how, _ in evidence.inner):
        number = _SUB_EXCEPTIONS.search(outer)
        which = f"one of {number[1]} in" if number is not None and number[1] != "1" else "in"
        return f"{inner} ({which} group: {_SUB_EXCEPTIONS.sub('', outer.partition(': ')[2] or outer)})"
    if cause.name.startswith("service-") and inner not in outer:
        # A client's library wraps what the service answered in long advice.
        return f"{inner} (then {evidence.exception})"
    title = f"{cause.title} ("
    if inner not in text and inner.startswith(title) and outer.startswith(title):
        # The title is of the inner one.
        return f"{inner} (then {outer.removeprefix(title).removesuffix(')')})"
    return text if inner in text else _from(text, inner)


def _of_handled(handled: Evidence, cause: Cause) -> str:
    """Describe an exception that was being handled by the root of its own chain, a group by its first member."""
    root = handled.root
    member = next((inner for how, inner in root.inner if how == MEMBER), None)
    if member is None:
        return _first_line(_describe(root, cause))
    return f"{_first_line(_describe(member.root, cause))}, in {root.exception}"


REPEATED = 12
"""Characters from which on a message that another one contains is the same by no chance."""


def _from(text: str, inner: str) -> str:
    first, inner = _first_line(text), _first_line(inner)
    # A message often has the other one's by repr().
    message = inner.partition(": ")[2]
    repeats = inner in first or (len(message) >= REPEATED and message in first)
    return text if repeats else f"{first} (from {inner})"


def _abort(evidence: Evidence, cause: Cause) -> str:
    timeout = timeout_of(evidence.tail) if cause.name == "nccl-abort" else None
    if timeout is not None:
        return timeout.text
    by_nccl = last_error(evidence.tail) if evidence.nccl else ""
    return by_nccl or evidence.watchdog_error or abort_message(evidence.tail)


def _first_line(text: str) -> str:
    return cut_middle(text.strip().split("\n", 1)[0], _INNER_LIMIT)


def _of_signal(evidence: Evidence) -> str:
    """Return what a negative number of sys.exit stands for: it is what subprocess returns for a child's signal."""
    number = evidence.message.removeprefix("-")
    # -1 is any program's word for an error.
    if not evidence.message.startswith("-") or number == "1" or not number.isdecimal() or len(number) > 2:
        return ""
    from signal import Signals

    try:
        return f": sys.exit({evidence.message}), as of a child process that {Signals(int(number)).name} ended"
    except ValueError:
        return ""


def _exception(evidence: Evidence, message: str) -> str:
    """Describe an exception; one without a message by the line of code that raised it."""
    if _BINARY.search(message):
        # Bytes of a file, whose ends of lines are by chance.
        message = _LINE_ENDS.sub(" ", message[:_BINARY_LIMIT])
    line = whole_line(message) or message_line(message)
    name = str(evidence.exception)
    if name in _BARE and evidence.module not in ("", "builtins", "__main__"):
        name = f"{evidence.module.rpartition('.')[2]}.{name}"
    if not line:
        text = f"{name} {_without_message(evidence)}".rstrip()
    elif message.split("\n", 1)[0].rstrip() == line:
        text = f"{name}: {message}"
    else:
        text = f"{name}: {line}"
    twice = [each for each in evidence.nccl_warnings if "has already checked in" in each]
    own = (twice or evidence.nccl_warnings)[-1:] if "nccl" in message.lower() and "Last error" not in message else ()
    if own and own[0] not in text:
        first, newline, rest = text.partition("\n")
        text = f"{_RUN_WITH.sub('', first)}: {own[0]}{newline}{rest}"
    if not evidence.raised_again:
        return text
    first, newline, rest = text.partition("\n")
    return f"{first} ({evidence.raised_again}){newline}{rest}"


def _without_message(evidence: Evidence) -> str:
    """Describe an exception without a message by its first note, or by the line of code that raised it."""
    note = next((note.strip() for note in evidence.notes if note.strip() and HAS_PROPERTY not in note), "")
    source = source_line(evidence.frames)
    if note and not source.startswith("assert"):
        return f"({_first_line(note)})"
    return f'in "{cut_middle(source, _INNER_LIMIT)}"' if source else ""


_OF_RUNTIME = pattern(r"^(?:\S{1,40}: failed to execute|error): ")  # of enroot and pyxis, before the subject


def _describe(evidence: Evidence, cause: Cause) -> str:
    if evidence.exception == "SystemExit" or (evidence.exception is not None and cause.name == "wrong-usage"):
        number = evidence.exit_code
        if number is None and is_code(evidence.message):
            # A signal arrived before the process had ended: only the script's own exit is known.
            return f"exit code {evidence.message}" if evidence.message else "sys.exit"
        code = "sys.exit" if number is None else f"exit code {number}"
        if cause.name == "wrong-usage":
            why = refusal(evidence.tail)
            return f"{cause.title}: {why} ({code})" if why else f"{cause.title} ({code})"
        return f"{code}{_of_signal(evidence)}" if is_code(evidence.message) else f"{code}: {evidence.message}"
    if evidence.exception is not None:
        if cause.name == "interrupt" and not evidence.message:
            return f"{cause.title} ({evidence.exception})"  # by chance at this line
        message = _with_port(evidence.message, evidence.tail) if cause.name == "port-in-use" else evidence.message
        text = _exception(evidence, message)
        silent = (not evidence.message and not cause.vague and not cause.cascade) or cause.name in _TITLED
        silent = silent or (cause.name == "checkpoint-damaged" and message.startswith("[Errno 22]"))
        silent = silent or cause.name == "no-stdin" or (cause.name == "dataloader-worker" and "DataLoader" not in text)
        return f"{cause.title} ({text})" if silent else text
    if evidence.kind == "signal":
        name = evidence.signal or "a signal"
        text = cause.title if name in cause.title else f"{cause.title} ({name})"
        message = _abort(evidence, cause) if evidence.signal == "SIGABRT" else ""
        return f"{text}: {message}" if message else text
    if cause.name.startswith("container-"):
        return f"{cause.title}: {_OF_RUNTIME.sub('', evidence.message.partition(': ')[2])}"
    if evidence.kind != "exit":
        return evidence.message or cause.title
    if evidence.exit_code is None:
        return evidence.message or "ended in an unrecorded way"
    if cause.name in ("missing-script", "missing-program", "batch-script", "line-ends"):
        return evidence.message
    if cause.name == "wrong-usage":
        return f"{cause.title}: {without_choices(evidence.message)} (exit code {evidence.exit_code})"
    if cause.name.startswith("shell-"):
        return f"{cause.title} (exit code {evidence.exit_code})"
    end = f"exit code {evidence.exit_code}"
    # What a launcher or an interpreter states of the end says more than its code.
    statement = "" if evidence.message.startswith(("exit code", "exited", "failed")) else evidence.message
    return f"{end}: {statement}" if statement else end

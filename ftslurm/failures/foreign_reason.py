"""Why a program that is not Python ended, by the last message of its runtime, its sanitizer or its compiler (pure).

Below the message are stacks, tables of memory and closing lines of many forms, so that it is sought by itself: each is
printed only when the program ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ftslurm.pattern import pattern
from ftslurm.records.error import Frame

LINES = 120
"""Lines at the end of an output in which a message is sought."""
TEXT_LIMIT = 300
_PLACE = r"(?P<file>[^\s:()]{1,300}):(?P<line>\d{1,9})(?::\d{1,9})?"


class Foreign(NamedTuple):
    """A message: where it begins among the lines, its text, and the place in the source; None: unknown."""

    first: int
    text: str
    frame: Frame | None


class _Form(NamedTuple):
    """The form of a message.

    Attributes:
        head: its first line; ``text``: the reason, else it is in the next line; ``file`` and ``line``: the place.
        place: the place in a line below, or above; None: it is in the head, or unknown.
        proof: what must be in the lines below; None: nothing.
    """

    head: re.Pattern[str]
    place: re.Pattern[str] | None = None
    proof: re.Pattern[str] | None = None


_FORMS = (
    _Form(pattern(rf"thread '[^'\n]{{0,100}}' (?:\(\d+\) )?panicked at (?P<at>{_PLACE}:?)$")),  # Rust
    _Form(pattern(rf"thread '[^'\n]{{0,100}}' panicked at '(?P<text>.{{1,1000}})', {_PLACE}$")),  # before 1.73
    _Form(
        pattern(r'Exception in thread "[^"\n]{1,100}" (?P<text>[\w.$]{1,200}(?:: .{1,1000})?)$'),
        pattern(r"\s+at (?P<function>[\w.$<>]{1,200})\((?P<file>\w+\.(?:java|scala|kt)):(?P<line>\d{1,9})\)"),
    ),
    _Form(
        pattern(r"(?P<text>(?:[a-z_]\w{1,60}\.){2,8}[A-Z]\w{0,80}(?:Exception|Error): .{1,1000})$"),
        pattern(r"\s+at (?P<function>[\w.$<>]{1,200})\((?P<file>\w+\.(?:java|scala|kt)):(?P<line>\d{1,9})\)"),
        pattern(r"\s+at [\w.$<>]{3,200}\("),
    ),  # logged
    _Form(
        pattern(r"ERROR: (?P<text>(?:LoadError: )?\w+(?:Error|Exception)\b.{0,600})$"),
        pattern(r"\s+@ \S+ (?P<file>(?!\./)\S{1,300}\.jl):(?P<line>\d{1,9})"),
        pattern(r"Stacktrace:$"),
    ),  # Julia
    _Form(
        pattern(r"forrtl: (?P<text>(?:severe|error) \(\d+\): .{1,300})$"),
        pattern(r"\S+ +[0-9A-F]{16} +(?P<function>\S+) +(?P<line>\d{1,9}) +(?P<file>\S{1,200}\.[fF]\w*)"),
    ),
    _Form(
        pattern(r"(?P<text>Fortran runtime error: .{1,300})$"),
        pattern(r"At line (?P<line>\d{1,9}) of file (?P<file>\S{1,300})"),
    ),
    _Form(
        pattern(r"==\d+==\s?ERROR: (?P<text>\w+Sanitizer: .{1,300})$"),
        pattern(rf"\s+#\d+ 0x[0-9a-f]+ in (?P<function>\S+) (?!/usr/|\.\./\.\./){_PLACE}"),
    ),
    _Form(
        pattern(rf"{_PLACE}: (?P<text>(?:fatal )?error: .{{1,300}})$"),
        None,
        pattern(r"compilation terminated|make(?:\[\d+\])?: \*\*\* |ninja: build stopped|\d+ errors? generated"),
    ),
    _Form(
        pattern(r"panic: (?P<text>.{1,300})$"),
        pattern(r"\s+(?P<file>\S{1,300}\.go):(?P<line>\d{1,9})"),
        pattern(r"goroutine \d+ \["),
    ),
    _Form(
        pattern(
            r"(?P<text>(?:Error|Fehler|Erreur|Errore|Erro|Ошибка)(?: (?:in|dans|en|em|в) .{1,200}?)?\s*: ?.{0,300})$"
        ),
        None,
        pattern(
            r"(?:Execution halted|Ausführung angehalten|Exécution arrêtée|Ejecución interrumpida|Esecuzione interrotta"
            r"|Execução interrompida|Выполнение остановлено|停止执行)\W*$"
        ),
    ),  # R
    _Form(
        pattern(r"\{?(?P<text>Error using (?P<function>[\w.>/+]{1,200})(?: \(line (?P<number>\d{1,9})\))?)$"),
        None,
        pattern(r"Error in [\w.>/+]{1,200} \(line \d{1,9}\)$"),
    ),  # MATLAB
)
_CAUSED = "Caused by: "
_NESTED = pattern(r"\s+nested task error: (.{1,300})$")
"""Of Julia, the reason of a task's failure."""
_MAYBE = pattern(
    r"panic|Exception|ERROR: |forrtl: |Fortran runtime|: (?:fatal )?error: "
    r"|^\{?(?:Error|Fehler|Erreur|Errore|Erro|Ошибка)\b"
)


def foreign_reason(lines: Sequence[str]) -> Foreign | None:
    """Return the last such message in the last lines of an output; None: there is none."""
    begin = max(0, len(lines) - LINES)
    for at in range(len(lines) - 1, begin - 1, -1):
        if _MAYBE.search(lines[at]) is None:
            continue
        for form in _FORMS:
            head = form.head.match(lines[at])
            below = lines[at + 1 :]
            if head is not None and (form.proof is None or any(map(form.proof.match, below))):
                return _found(lines, at, form, head)
    return None


def _found(lines: Sequence[str], at: int, form: _Form, head: re.Match[str]) -> Foreign:
    names = head.groupdict()
    # A compiler's first error is the reason of the others.
    first = next((i for i in range(max(0, at - LINES), at) if form.head.match(lines[i])), at) if form.proof else at
    if form.place is None and first != at and (earlier := form.head.match(lines[first])) is not None:
        at, head, names = first, earlier, earlier.groupdict()
    place: re.Match[str] | None = head if names.get("file") else None
    inner = next((i for i in range(len(lines) - 1, at, -1) if lines[i].startswith(_CAUSED)), at)  # of Java: the last
    if form.place is not None:
        near = [*lines[inner + 1 :], *lines[max(0, at - 2) : at]]
        place = next((found for line in near if (found := form.place.match(line)) is not None), None)
    nested = next((i for i in range(at + 1, min(at + 6, len(lines))) if _NESTED.match(lines[i])), None)
    if nested is not None and (task := _NESTED.match(lines[nested])) is not None:
        at, names = nested, {**names, "text": task[1]}
    text = names.get("text") or next((line.strip() for line in lines[at + 1 : at + 3] if line.strip()), "")
    if text.rstrip().endswith(":") or "number" in names:
        # Of R and MATLAB, the message follows its place.
        text = f"{text.rstrip()} {next((line.strip() for line in lines[at + 1 : at + 3] if line.strip()), '')}"
    frame = None
    if place is not None:
        function = place.groupdict().get("function") or "<module>"
        frame = Frame(place["file"], int(place["line"]), function)
    prefix = "" if names.get("text") else f"panicked at {head['at'].rstrip(':')}: "
    source = f" (from {lines[inner].removeprefix(_CAUSED).strip()})" if inner > at else ""
    return Foreign(at, f"{prefix}{text.strip()}{source}"[:TEXT_LIMIT], frame)

"""What collectors, viewers and people put before each line of a log, taken away (pure).

Times and names of journald, syslog, kubectl, containerd, GitHub Actions and loggers through which all output goes; line
numbers of ``cat -n``; quotes (``> ``); an indentation; a JSON document for each line (docker); HTML's entities. A
program's own loggers do the same, but not before tracebacks and labels: what is before these is not its own.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence

from ftslurm.failures.exception_line import HEADER
from ftslurm.failures.logged_error import json_object, text_of, traceback_texts
from ftslurm.pattern import pattern

NEARLY_ALL = 0.95
NAMED_SHARE = 0.8
"""Share of lines that begin with a program's name: what follows a carriage return of a progress bar has none."""
FEWEST = 3
OTHERS = 2
SAMPLE = 20
NESTED = 4
MOST_NAMES = 64
_TIME = (
    r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    r"|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})"
)
# No program writes these by itself.
_FOREIGN = (
    pattern(rf"<\d{{1,3}}>(?:1 )?{_TIME} [\w.-]{{1,80}} [\w./-]{{1,60}}(?:\[\d+\])?:(?: |$)"),
    pattern(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6,9}(?:Z|[+-]\d\d:\d\d)(?: (?:stdout|stderr) [FP])?(?: |$)"),
    pattern(r"> ?"),
    pattern(r"[A-Z][a-z]{2} \d{1,2}, \d{4} @ \d\d:\d\d:\d\d\.\d{3}\t(?:[^\t\n]{1,80}\t){0,3}"),
)
_FORMS = (
    pattern(rf"{_TIME} [\w.-]{{1,80}} [\w./-]{{1,60}}(?:\[\d+\])?:(?: |$)"),
    pattern(rf"{_TIME}(?: UTC)? [\w.-]{{1,80}} --(?: |$)"),
    pattern(rf"{_TIME} *\| *[A-Z]{{4,8}} *\| *\S{{1,120}} - "),
    pattern(rf"[\[(]?{_TIME}[\])]?:?(?: (?:stdout|stderr) [FP])?(?=\[(?:1,)?\d+\]<std|<std|[ \t]|$)[ \t]?"),
    pattern(r"> ?"),
    pattern(r" *\d{1,9}(?:\t|$)"),
    pattern(r" {0,20}\|(?: |$)"),
    pattern(r"(?:[^\t\n]{1,80}\t){1,4}"),
    pattern(r"[0-9a-f][0-9a-f-]{7,40} \|\|(?: |$)"),
    pattern(r"<std(?:out|err)>: ?"),
)
# Of a script that runs several programs; with a number it is a label.
_OF_PROGRAM = pattern(
    r"(?P<name>\[(?!(?i:trace|debug|info|notice|warn(?:ing)?|error|fatal|critical|std(?:out|err)|out|err|main|rank)\])"
    r"[A-Za-z][A-Za-z._-]{1,40}\])(?: |$)"
)
_NAMES = (
    pattern(r"(?P<name>\[(?:pod|container)/[^\]\s]{1,200}\])(?: |$)"),
    _OF_PROGRAM,
    pattern(r"(?P<name>[A-Za-z][A-Za-z./@_-]{0,60}) *\|(?: |$)"),  # with a number it is a label
    pattern(r"(?P<name>[A-Za-z(][\w./()=@-]{0,80}:?)(?: |$)(?! *[:|] )"),
    pattern(r"(?P<name>[A-Za-z(][\w./()=@-]{0,80} [A-Za-z(][\w./()=@-]{0,80}:?)(?: |$)(?! *[:|] )"),
)
_PROOF = pattern(
    r"(?: {0,6}\d{1,6}: |\[\d{1,6}\]: ?|[A-Za-z][\w-]{0,60}\d: )?"
    r"(?: {2,4}File \"|Traceback \(most recent call last\)|\[rank\d{1,6}\]:"
    r"|\[[a-z]{2,20}\d{1,4}\]:|\[(?:1,)?(?:mpirank:)?\d{1,6}(?:,[\w.-]{1,80})?\]<std|<std(?:out|err)>:"
    r"| {2}rank +: \d| *[│|╭╰] |\{\")"
)
_OF_POD = pattern(r"^\[pod/[^\]\s]{1,200}\] (?=\[(?:rank|default)\d)")
_DETERMINED = pattern(r"(?:\[[^\]\s]{10,40}\] )?[0-9a-f]{8} (?:\[rank=(\d{1,6})\] )?\|\| ?")
_PROCESS = pattern(r"\([\w.:()-]{1,80} pid=\d{1,9}[,)]")
_DIGITS = pattern(r"\d+")
_NAMED = pattern(r"^[A-Za-z][\w./-]{0,80} ")
_OF_FRAME = pattern(r"[A-Za-z][\w./-]{0,80}  {2}File \"")
_TIMED = pattern(rf"^{_TIME} ")
NARROWEST, WIDEST = 40, 300
"""Columns of a terminal."""
_RULES, _BORDERS = "-=*#_~─━", "│|╮╯┐┘"
_WHOLE = pattern(
    r"File \"[^\"\n]{1,400}\", line \d+, in \S|Traceback \(most recent call last\)|failed \(exitcode: "
    r"|Exited with exit code|CANCELLED AT \S+|closing signal SIG"
    r"|ProcessGroupNCCL's watchdog got stuck for \d+ sec|Heartbeat monitor timed out"
    r"|Watchdog caught collective operation timeout: WorkNCCL\([^)]{1,300}\) ran for"
)
_LAST_LOGS = pattern(r"\bfailed\b.{0,80}, last available logs \(truncated to [\d,]{1,12} chars\):$")
_RANKS = ("rank", "global_rank", "RANK", "process_index")
LABEL = 40
"""Characters before a document that may be a label."""
_KEYS = ("log", "message", "msg", "textPayload", "line", "text")


def uncollected(lines: list[str]) -> list[str]:
    """Return the lines as their program wrote them, as far as what is before them has one form."""
    lines = _without_repeat(_without_streams(_with_logged(_from_json(_of_determined(lines)))))
    if any("&quot;" in line or "&lt;" in line for line in lines) and any("Traceback (most" in line for line in lines):
        lines = [html.unescape(line) for line in lines]
    for _ in range(NESTED):
        without = _without_form(lines) or _without_name(lines) or _without_indent(lines)
        if without is None:
            break
        lines = without
    if any(line.startswith("[pod/") for line in lines):
        # Between events of another form, which have no container.
        lines = [_OF_POD.sub("", line, count=1) for line in lines]
    return _unwrapped(lines)


def _without_streams(lines: list[str]) -> list[str]:
    """Return the lines without the streams' names that a parent process puts before those of its child."""
    if not any(line.startswith("stderr: ") and _PROOF.match(line[8:]) for line in lines):
        return lines
    return [line[8:] if line.startswith(("stderr: ", "stdout: ")) else line for line in lines]


def _without_repeat(lines: list[str]) -> list[str]:
    """Return the lines without the last ones if these are there twice: Ray's client repeats them when a job failed."""
    at = next((i for i, line in enumerate(lines) if _LAST_LOGS.search(line)), len(lines)) + 1
    known = set(lines[:at])
    return lines[:at] if all(line in known for line in lines[at:]) else lines


def _of_determined(lines: list[str]) -> list[str]:
    """Return the lines of Determined's logs with their ranks as labels: ``[TIME] fa88a9df [rank=2] || text``."""
    found = [_DETERMINED.match(line) for line in lines]
    if sum(each is not None for each in found) < max(
        FEWEST, NEARLY_ALL * len([line for line in lines if line.strip()])
    ):
        return lines
    return [
        line if each is None else f"{f'rank{each[1]} | ' if each[1] else ''}{line[each.end() :]}"
        for line, each in zip(lines, found, strict=True)
    ]


def _unwrapped(lines: list[str]) -> list[str]:
    """Return the lines of a program whose output a terminal of fixed width has cut into pieces, in one piece each.

    Full lines of equal length may be so by chance: the pieces count only if they complete frames or ends.
    """
    width = max(map(len, lines), default=0)
    full = [line for line in lines if len(line) == width]
    if not NARROWEST <= width <= WIDEST or len(full) < FEWEST or any(map(_is_drawn, full)):
        return lines
    joined: list[str] = []
    begun = False
    for line in lines:
        if begun:
            joined[-1] += line
        else:
            joined.append(line)
        begun = len(line) == width
    before, after = (sum(_WHOLE.search(line) is not None for line in each) for each in (lines, joined))
    return joined if after > before else lines


def _is_drawn(line: str) -> bool:
    """Whether a line has the width of its text for another reason: it is a rule, or of a box."""
    return line[-1] in _BORDERS or all(mark in _RULES for mark in line[-3:])


def _without_form(lines: list[str]) -> list[str] | None:
    full = [line for line in lines if line.strip()]
    for form in _FOREIGN:
        if len(full) >= FEWEST and all(form.match(line) for line in full):
            return [form.sub("", line, count=1) for line in lines]
    found = (_before_all(lines, form, named=True) for form in _FORMS)
    return next((_rests(lines, each) for each in found if each is not None), None)


def _without_name(lines: list[str]) -> list[str] | None:
    """Return the lines without the name of a pod, a service or a file; of several with a bar behind it, as a label."""
    for form in _NAMES:
        if sum(_PROCESS.match(line) is not None for line in lines) >= FEWEST:
            break  # labels of Ray and the like
        found = _before_all(lines, form)
        names = Counter(match["name"] for match in found or () if match)
        shapes: Counter[str] = Counter()
        for name, count in names.items():
            shapes[_DIGITS.sub("0", name)] += count
        few = any(count < FEWEST for count in shapes.values()) and form is not _OF_PROGRAM
        if found is None or len(names) > MOST_NAMES or few:
            continue
        rests = _rests(lines, found)
        rests = _without_form(rests) or rests
        if len(names) == 1:
            return rests
        return [
            f"{_label(match['name'])} | {rest}" if match else rest for match, rest in zip(found, rests, strict=True)
        ]
    return None


def _rests(lines: Sequence[str], found: Sequence[re.Match[str] | None]) -> list[str]:
    return [line[match.end() :] if match else line for line, match in zip(lines, found, strict=True)]


def _before_all(
    lines: Sequence[str], form: re.Pattern[str], *, named: bool = False
) -> list[re.Match[str] | None] | None:
    """Return where a form is at the beginnings of lines; None: not of nearly all, tracebacks or labels among them.

    Args:
        lines: all of them.
        form: the form.
        named: whether a name may stand between it and the frames of tracebacks, or mpirun's labels, which tell more.
    """
    full = [line for line in lines if line.strip()]
    sample = full[:SAMPLE]
    if len(full) < FEWEST or 2 * sum(form.match(line) is not None for line in sample) < len(sample):
        return None
    found = [form.match(line) for line in lines]
    rests = [line[match.end() :] for line, match in zip(lines, found, strict=True) if match and line.strip()]
    # The first and the last line may be cut off. A logger's level is not before the frames of tracebacks.
    proved = form is _OF_PROGRAM and any(rest.startswith('  File "') for rest in rests)
    share = NAMED_SHARE if proved else NEARLY_ALL
    if len(rests) < FEWEST or len(full) - len(rests) > max(OTHERS, (1 - share) * len(full)):
        return None
    # A single name is a pod's, which stays as its label; names of several forms are no nodes'.
    names = {rest.partition(" ")[0] for rest in rests} if named else set()
    of_nodes = len(names) > 1 and len({_DIGITS.sub("0", name) for name in names}) == 1
    behind = (rest for rest in rests if "]<std" in rest or (of_nodes and _OF_FRAME.match(rest))) if named else ()
    rests += [_NAMED.sub("", rest, count=1) for rest in behind]
    return found if any(_PROOF.match(_TIMED.sub("", rest, count=1)) for rest in rests) else None


def _label(name: str) -> str:
    """Return the name of a pod or a program: ``[pod/train-0/pytorch]``, ``train-0 pytorch``, ``[vllm]``."""
    parts = name.strip("[]:").split("/" if "/" in name else None)
    return parts[1] if name.startswith("[") and len(parts) > 1 else parts[0]


def _without_indent(lines: list[str]) -> list[str] | None:
    """Return the lines without an indentation that all of them have."""
    full = [line for line in lines if line.strip()]
    depth = min((len(line) - len(line.lstrip(" \t")) for line in full), default=0)
    if depth == 0 or len(full) < FEWEST or not any(_PROOF.match(line[depth:]) for line in full):
        return None
    return [line[depth:] for line in lines]


def _from_json(lines: list[str]) -> list[str]:
    """Return the texts of lines that are all JSON documents of a collector."""
    full = [line for line in lines if line.strip()]
    if len(full) < FEWEST or not all(line.startswith("{") for line in full[:FEWEST]):
        return lines
    texts = [_text(line) for line in full]
    pods = [_pod(line) for line in full]
    if len({*pods}) > 1:
        texts = [text if text is None or not pod else f"{pod}{text}" for pod, text in zip(pods, texts, strict=True)]
    if sum(text is not None for text in texts) < NEARLY_ALL * len(full):
        return lines
    # A logger's documents have a level, and no lines of tracebacks of their own; docker's name the stream.
    if '"stream"' not in full[0] and not any(text is not None and _PROOF.match(text) for text in texts):
        return lines
    return [
        part for line, text in zip(full, texts, strict=True) for part in (line if text is None else text).split("\n")
    ]


def _pod(line: str) -> str:
    """Return the label of the pod that a document of Kubernetes' collectors names; empty: none."""
    value = json_object(line) or {}
    inner = value.get("kubernetes")
    name = text_of(inner if isinstance(inner, dict) else value, "pod_name", "pod")
    return f"[pod/{name}/-] " if name else ""


def _with_logged(lines: list[str]) -> list[str]:
    """Return the lines with the tracebacks that a structured logger puts into its documents, each in lines of its own.

    They come below the document's level, rank and message, as of a logger of text.
    """
    if not any("{" in line[:LABEL] and HEADER in line for line in lines):
        return lines
    return [part for line in lines for part in (_labelled_document(line) if HEADER in line else [line])]


def _labelled_document(line: str) -> list[str]:
    """Return the lines of a document, each with the label of a launcher before it."""
    label = line[: max(0, line[:LABEL].find("{"))]
    return [f"{label}{part}" for part in _logged(line[len(label) :])]


def _logged(line: str) -> list[str]:
    value = json_object(line)
    texts = traceback_texts(value or {})
    if value is None or not texts:
        return [line]
    level = text_of(value, "level", "levelname", "severity", "lvl") or "error"
    inner = (each for each in value.values() if isinstance(each, dict))
    ranks = (each[key] for each in (value, *inner) for key in _RANKS if isinstance(each.get(key), int | str))
    rank = next(ranks, None)
    message = text_of(value, "message", "msg", "event") or ""
    message = "" if HEADER in message else message.strip()
    head = f"{level.upper()} rank {rank}: {message}" if str(rank).isdecimal() else f"{level.upper()} {message}"
    return [head, *texts[0].rstrip("\n").split("\n")]


def _text(line: str) -> str | None:
    value = json_object(line)
    text = text_of(value, *_KEYS) if value is not None else None
    return text.rstrip("\n") if text is not None else None

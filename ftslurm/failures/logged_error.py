"""A line by which a program, its logger or its shell reports an error, and its text; lines of JSON (pure)."""

from __future__ import annotations

import json
from typing import Any

from ftslurm.failures.exception_line import HEADER, LINE_LIMIT
from ftslurm.failures.stated_lines import stated_in
from ftslurm.failures.traceback_text import tracebacks
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord

RANK_PREFIX = pattern(r"^(\[rank\d{1,6}\]: ?|\[default\d{1,4}\]: ?|\s{0,6}\d{1,6}: (?=\S))")
"""What torch's hook, torchrun or srun put before a rank's line."""
_LEVEL = pattern(
    r"(?:^|[\s\[(|:<>-])(?:ERROR|CRITICAL|FATAL(?! CALLED))(?=$|[\s\])|:>,]|-(?!\w))[\s\])|:>,-]*(?P<text>.*)"
)
_KEYS = pattern(r"\blevel=(?:error|fatal|critical)\b.*?\bmsg=(?P<text>\"(?:[^\"\\]|\\.){1,1000}\"|\S+)")
_PAIR = pattern(r"\b(\w{1,40})=(\"(?:[^\"\\]|\\.){1,1000}\"|\S+)")
_ERROR_KEYS = ("err", "error", "exc", "exception")
GLOG = pattern(r"\[?[EF]\d{4} [\d:.]{8,20} +(?:\d+ )?(?P<place>\S{1,200}:\d+)\] ?(?P<text>.*)")
BY_SHELL = pattern(
    r"[\w./-]{1,200}: (?:line )?\d{1,6}: \S.{0,300}(?:unbound variable|parameter not set|not found|bad substitution"
    r"|No such file or directory|Permission denied|[Ss]yntax error.{0,200}|Exec format error)"
    r"|Key '.{1,200}' is not in struct"
)
"""What bash and dash print of a script's own error; of Hydra."""
_PLAIN = pattern(r"(?:[\w./-]{1,80}: )?(?:[Ff]atal )?[Ee]rror: (?P<text>\S.*)")
_NAMED = pattern(
    r"(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception): \S|(?:[a-z_]\w{1,60}\.){2,6}[A-Z]\w{2,60}: \S"
)
_PLACE = pattern(
    r"^(?:(?:\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,9})? )?(?:\[[\w./-]{1,80}:\d{1,6}\] )?"
    r"(?:[\w.-]{1,80}:\w{1,80}:\d{1,6} - |[\w./-]{1,80}\.py:\d{1,6} (?:-- )?|(?a:[\w.]{1,80}):(?!\d) ?(?=\S)"
    r"|rank[= ]\d+\]?:? |on proc \d+: )?"
)
_LMOD = pattern(r"Lmod has detected the following error: +(?P<text>\S.*)")
NESTED = 3
"""Levels of a structured logger's object in which a traceback may be."""


def logged_error(line: str) -> str | None:
    """Return the text of a line of level ERROR or higher, or that is an error by its form; None: it is none."""
    bare = RANK_PREFIX.sub("", line[:LINE_LIMIT]).strip()
    if not bare:
        return None
    if bare.startswith("{"):
        return _json_error(bare)
    stated = stated_in(bare)
    if stated is not None and not stated.meaning:
        return stated.text
    if BY_SHELL.fullmatch(bare):
        return bare
    by_lmod = _LMOD.match(bare)
    if by_lmod is not None:
        return f"Lmod: {by_lmod['text']}"
    pairs = dict(_PAIR.findall(bare[:2000])) if _KEYS.search(bare[:1000]) else {}
    if named := next((pairs[key] for key in _ERROR_KEYS if key in pairs), ""):
        return named.strip('"').replace('\\"', '"')
    found = GLOG.match(bare) or _PLAIN.match(bare) or _KEYS.search(bare[:1000])
    if found is None and _NAMED.match(bare):
        return bare
    if found is None:
        level = _LEVEL.search(bare[:200])
        if level is None:
            return None
        text = bare[level.start("text") :]
    else:
        text = found["text"].strip('"')
    text = _PLACE.sub("", text.strip()).strip(" :") if not _NAMED.match(text) else text.strip()
    return text or None


def json_exception(line: str) -> ExceptionRecord | None:
    """Return the exception whose traceback is a value in a line of a structured logger; None: there is none."""
    bare = RANK_PREFIX.sub("", line[:LINE_LIMIT]).strip()
    value = json_object(bare) if HEADER in bare else None
    texts = traceback_texts(value or {})
    found = tracebacks(texts[0].split("\n"), whole=True) if texts else []
    return found[-1].exception if found else None


def traceback_texts(value: object, depth: int = NESTED) -> list[str]:
    """Return the tracebacks in an object of a structured logger: texts, or lists of lines, in it or in inner ones."""
    if isinstance(value, str):
        return [value] if HEADER in value else []
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        text = "".join(each if each.endswith("\n") else f"{each}\n" for each in value)
        return [text] if HEADER in text else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in traceback_texts(each, depth - 1)] if depth else []


def _json_error(line: str) -> str | None:
    value = json_object(line)
    if value is None:
        return None
    level = next((value[key] for key in ("level", "levelname", "severity", "lvl") if key in value), "")
    if str(level).upper() not in ("ERROR", "CRITICAL", "FATAL"):
        return None
    return (text_of(value, *_ERROR_KEYS) or text_of(value, "message", "msg", "event") or "").strip() or None


def json_object(line: str) -> dict[str, Any] | None:
    """Return the object that a whole line is; None: it is something else."""
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def text_of(value: dict[str, Any], *keys: str) -> str | None:
    """Return the first of these keys' values that is text; None: there is none."""
    return next((value[key] for key in keys if isinstance(value.get(key), str)), None)

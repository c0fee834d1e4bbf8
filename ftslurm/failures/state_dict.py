"""torch's message on a checkpoint that does not fit the model, in one line: the first key of each kind (pure)."""

from __future__ import annotations

import re

from ftslurm.pattern import pattern

_HEAD = pattern(r"\AError\(s\) in loading state_dict for [\w.]+: *\n")
_KEYS = pattern(r"^\s*(Missing|Unexpected) key\(s\) in state_dict: (.*)$", re.MULTILINE)
_NAME = pattern(r'"([^"]*)"')
_SIZE = pattern(
    r"size mismatch for (?P<key>[^\s:]+)(?:: copying a param with shape (?:torch\.Size\()?(?P<saved>\[[\d, ]*\])\)?"
    r" from checkpoint, the shape in current model is (?:torch\.Size\()?(?P<model>\[[\d, ]*\]))?"
)


def state_dict_line(message: str) -> str:
    """Return the first key of each kind, and how many more there are; empty for any other message.

    ``Missing key(s): "0.weight" and 3 more; Unexpected key(s): "1.weight" and 3 more``. The kinds tell another model
    from a prefix, the list of a thousand keys does not: ``only the checkpoint's keys begin with "module."``.
    """
    if _HEAD.match(message) is None:
        return ""
    parts: list[str] = []
    found: dict[str, list[str]] = {}
    for kind, keys in _KEYS.findall(message):
        named = found[kind] = _NAME.findall(keys)
        if named:
            parts.append(f'{kind} key(s): "{named[0]}"{_more(len(named))}')
    sizes = list(_SIZE.finditer(message))
    if sizes:
        first = sizes[0]
        both = f": {first['saved']} in the checkpoint, {first['model']} in the model" if first["saved"] else ""
        parts.append(f"size mismatch for {first['key']}{both}{_more(len(sizes))}")
    prefix = "" if sizes else _prefix(found.get("Missing", []), found.get("Unexpected", []))
    return prefix or "; ".join(parts)


def _prefix(missing: list[str], unexpected: list[str]) -> str:
    """Return by which prefix alone the keys of the model and those of the checkpoint differ; empty: by more."""
    sides = ((unexpected, missing, "the checkpoint's"), (missing, unexpected, "the model's"))
    for longer, shorter, whose in sides if missing and len(missing) == len(unexpected) else ():
        prefix = longer[0].removesuffix(shorter[0])
        if prefix.endswith(".") and longer == [prefix + key for key in shorter]:
            return f'only {whose} keys begin with "{prefix}"{f", all {len(longer)}" if len(longer) > 1 else ""}'
    return ""


def _more(number: int) -> str:
    return f" and {number - 1} more" if number > 1 else ""

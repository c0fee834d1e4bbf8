"""torch's message on a checkpoint that does not fit the model, in one line: the first key of each kind (pure)."""

from __future__ import annotations

import re

_HEAD = re.compile(r"\AError\(s\) in loading state_dict for [\w.]+: *\n")
_KEYS = re.compile(r"^\s*(Missing|Unexpected) key\(s\) in state_dict: (.*)$", re.MULTILINE)
_NAME = re.compile(r'"([^"]*)"')
_SIZE = re.compile(
    r"size mismatch for (?P<key>[^\s:]+)(?:: copying a param with shape (?:torch\.Size\()?(?P<saved>\[[\d, ]*\])\)?"
    r" from checkpoint, the shape in current model is (?:torch\.Size\()?(?P<model>\[[\d, ]*\]))?"
)


def state_dict_line(message: str) -> str:
    """Return the first key of each kind, and how many more there are; empty for any other message.

    ``Missing key(s): "0.weight" and 3 more; Unexpected key(s): "module.0.weight" and 3 more``. The kinds
    tell a prefix from another model; the list of a thousand keys does not.
    """
    if _HEAD.match(message) is None:
        return ""
    parts: list[str] = []
    for kind, keys in _KEYS.findall(message):
        named = _NAME.findall(keys)
        if named:
            parts.append(f'{kind} key(s): "{named[0]}"{_more(len(named))}')
    sizes = list(_SIZE.finditer(message))
    if sizes:
        first = sizes[0]
        both = f": {first['saved']} in the checkpoint, {first['model']} in the model" if first["saved"] else ""
        parts.append(f"size mismatch for {first['key']}{both}{_more(len(sizes))}")
    return "; ".join(parts)


def _more(number: int) -> str:
    return f" and {number - 1} more" if number > 1 else ""

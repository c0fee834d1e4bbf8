"""A line of output that is a JSON object: of a structured logger, or of a collector (pure)."""

from __future__ import annotations

import json
from typing import Any


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

"""Which other ranks an exception's message names, in the program's own words (pure)."""

from __future__ import annotations

import re

_NAMED = re.compile(
    r"(?i)(?<!dataloader )\b(?:rank|worker|peer)s?\b[ :=#]{0,3}[\[({]?(?P<first>\d{1,6})\b"
    r"(?P<more>(?:(?:, ?| and )\d{1,6}\b)*)"
)
_NUMBER = re.compile(r"\d+")
LIMIT = 4096
"""Characters of a message that are read."""


def other_ranks(message: str, own: int) -> set[int]:
    """Return the ranks that a message names apart from the own one: ``worker 2 disconnected``, ``missing ranks: [1]``.

    A number behind "worker" may be one of a pool of the rank's own processes.
    """
    found = (f"{each['first']}{each['more']}" for each in _NAMED.finditer(message[:LIMIT]))
    return {int(number) for text in found for number in _NUMBER.findall(text)} - {own}

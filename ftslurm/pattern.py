"""Regular expressions that are compiled on first use (pure).

A report holds hundreds of them and needs few for any one failure; to compile them all took a sixth of its time.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import AnyStr

    pattern = re.compile
else:

    def pattern(text: AnyStr, flags: int = 0) -> _OnFirstUse:
        """Return a regular expression as of ``re.compile``, whose errors appear on first use."""
        return _OnFirstUse(text, flags)


class _OnFirstUse:
    """Stands for an ``re.Pattern``: takes over what is used of it, so that only the first use costs more."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> object:
        value = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, value)
        return value

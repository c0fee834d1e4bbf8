"""Regular expressions that are compiled on first use (pure).

A report holds hundreds of them and needs few for any one failure; to compile them all took a sixth of its time.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, AnyStr

    pattern = re.compile
else:

    def pattern(text: AnyStr, flags: int = 0) -> _LazyPattern:
        """Return a regular expression as of ``re.compile``, whose errors appear on first use."""
        return _LazyPattern(text, flags)


class _LazyPattern:
    """Proxy of an ``re.Pattern`` that compiles it at the first access to an attribute, and keeps what was accessed."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags
        self._compiled: re.Pattern[Any] | None = None

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # also while it is copied, before it has its own attributes
            raise AttributeError(name)
        if self._compiled is None:
            self._compiled = re.compile(self._text, self._flags)
        value = getattr(self._compiled, name)
        setattr(self, name, value)
        return value

"""Classification of textual addresses (pure, and cheap to import)."""

from __future__ import annotations

import re

_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}")


def is_number(address: str) -> bool:
    """Return whether it is a numeric address, not a name."""
    return ":" in address or _IPV4.fullmatch(address) is not None


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address."""
    return address == "::1" or (address.startswith("127.") and is_number(address))

"""A short digest of a text, for comparison.

FNV-1a, implemented here: `hashlib` loads OpenSSL (3.5 MB, 7 ms), and every other module with a hash a library that
each agent would keep for the case of a failed rank. A deliberate collision does no harm.
"""

from __future__ import annotations

_PRIME, _OFFSET = 0x100000001B3, 0xCBF29CE484222325
_MASK = (1 << 64) - 1


def digest(text: str, size: int) -> str:
    """Return the digest, `size` bytes (at most 8), as hexadecimal digits. Takes 0.1 ms for 1 KB."""
    value = _OFFSET
    for byte in text.encode("utf-8", "backslashreplace"):
        value = (value ^ byte) * _PRIME & _MASK
    # The upper bits depend on all bytes.
    return f"{value >> (64 - 8 * size):0{2 * size}x}"

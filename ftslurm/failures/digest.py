"""A short digest of a text, to tell whether two are the same.

By the function itself: `hashlib` brings OpenSSL along (3.5 MB, 7 ms), and `binascii.crc32` zlib (0.2 MB).
"""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b


def digest(text: str, size: int) -> str:
    """Return `size` bytes of it, as hexadecimal digits."""
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=size).hexdigest()

"""Signature of a failure without an exception, for comparison with later ones: the end of its worker's stderr.

The file lies on the shared filesystem, which may hang: this is for the courier's thread.
"""

from __future__ import annotations

import os
import stat

from ftslurm.failures.signature import OUTPUT_LIMIT, of_output


def signature_of(path: str) -> str | None:
    """Return the signature of the end of a file, see `ftslurm.failures.signature.of_output`.

    Raises:
        OSError: the file cannot be read, or is no regular one.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        start = max(0, status.st_size - OUTPUT_LIMIT)
        text = os.pread(fd, OUTPUT_LIMIT, start).decode("utf-8", "replace")
    finally:
        os.close(fd)
    # The first line is cut at an arbitrary point.
    return of_output(text.partition("\n")[2] if start else text)

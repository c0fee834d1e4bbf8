"""`python -m ftslurm`: the command `ftslurm`, where it is not on PATH."""

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # -m searches the current directory first: a user's `numbers.py` there would hide a module of Python's own.
    with suppress(OSError):  # the current directory is gone
        if not getattr(sys.flags, "safe_path", sys.flags.isolated) and sys.path[:1] == [os.getcwd()]:
            del sys.path[0]
    from ftslurm.cli import console

    console()

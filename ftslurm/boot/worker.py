"""Start ``ftslurm.worker`` by this file's path: ``python -u <ftslurm>/boot/worker.py --parent ...``.

``-m ftslurm.worker`` does the same, but there the current directory is searched first: a ``types.py`` or
``ftslurm`` in it, which plain Python would never open for a script of another directory, breaks the start. By
path, ftslurm is also found where the worker's Python does not have it, and runpy is not imported (1 to 3 ms).
"""

import os
import sys

if not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # This file's directory.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from ftslurm.worker import main

del sys.path[0]
main(sys.argv[1:])

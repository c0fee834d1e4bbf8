"""Run a module of ftslurm as a program, by this file's path: ``python <ftslurm>/boot/module.py MODULE ARGUMENTS...``.

What ``python -m MODULE`` does, but nothing is imported from the current directory, where another user's ``types.py``
may lie. Use `ftslurm.boot.module_command`.
"""

import os
import sys

if not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # This file's directory.
_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, _root)
import ftslurm  # noqa: E402, F401  # this one, whichever else there is

# Last: it may be a directory of many packages, which must not hide modules of the standard library.
sys.path.append(sys.path.pop(0))
import runpy  # noqa: E402

sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

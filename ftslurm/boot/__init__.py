"""Holds the files by whose path Python programs of ftslurm are started; nothing else here is imported."""

from __future__ import annotations

import os


def module_command(python: str, module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a module of ftslurm as a program, see `ftslurm/boot/module.py`."""
    return (python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "module.py"), module, *arguments)

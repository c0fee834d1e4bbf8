"""The names of the package `ftslurm` itself, which are loaded when they are first asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ftslurm


def test_a_type_checker_sees_the_same_names_from_the_same_modules_as_the_interpreter() -> None:
    tree = ast.parse(Path(ftslurm.__file__).read_text())
    imports = {
        (alias.name, node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    public = {(name, module) for name, module in imports if module is not None and module.startswith("ftslurm.")}
    assert public == set(ftslurm._HOMES.items())


def test_the_peer_heartbeat_is_an_attribute_of_the_package_and_loaded_by_no_other_name() -> None:
    program = (
        "import sys, ftslurm; ftslurm.heartbeat; assert 'ftslurm.peer' not in sys.modules; print(ftslurm.peer.start)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:15]) == (0, "<function start"), done.stderr


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ftslurm' has no attribute 'haertbeat'"):
        getattr(ftslurm, "haertbeat")  # noqa: B009

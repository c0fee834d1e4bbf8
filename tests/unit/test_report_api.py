"""The functions of `ftslurm.report` for programs, as its documentation shows them."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import sample_runs
from sample_runs.builder import RunBuilder

import ftslurm.report


def test_the_documentations_examples_do_what_they_show() -> None:
    found = doctest.testmod(sample_runs)
    assert (found.failed, found.attempted > 5) == (0, True)


def test_every_public_name_is_there_and_documented() -> None:
    for name in ftslurm.report.__all__:
        value = getattr(ftslurm.report, name)
        assert name == "FORMATS" or value.__doc__, name


def test_the_functions_can_be_called_whoever_imported_their_modules_before(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path).round().succeed().close("succeeded", "x").write()
    use = f"from ftslurm.report import analyse, gather\nfrom pathlib import Path\n\
print(analyse(gather(Path({str(path)!r}), now_ns=1))['status'])"
    for before in ("", "import ftslurm.report.gathering, ftslurm.report.analysis\n"):
        done = subprocess.run([sys.executable, "-c", before + use], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("succeeded\n", "")


def test_importing_the_package_loads_none_of_it() -> None:
    program = "import sys, ftslurm.report; print([m for m in sys.modules if m.startswith('ftslurm.report.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

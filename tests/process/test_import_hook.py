"""A callback that waits for a module is called when it has been imported, and the script sees no difference."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import pythons
from worker_process import ROOT, environment

PYTHONS = pythons.find()

START = """
import sys
sys.path.insert(0, sys.argv[1])
from ftslurm.import_hook import after_import
heard = []
def wait_for(name):
    after_import(name, lambda: heard.append(name))
def ours():
    return [entry for entry in sys.meta_path if "ftslurm" in repr(entry)]
wait_for("target")
"""
FILES = {
    "target.py": "VALUE = 1\n",
    "other.py": "",
    "another.py": "",
    "package/__init__.py": "from package import inner, more\nimport other\n",
    "package/inner.py": "",
    "package/more.py": "",
    "broken.py": "import target\n1 / 0\n",
    "deep.py": "import nothing_of_that_name\n",
}


@pytest.fixture(params=pythons.SUPPORTED)
def python(request: pytest.FixtureRequest) -> str:
    if request.param not in PYTHONS:
        pytest.skip(f"Python {request.param} is not here")
    return PYTHONS[request.param]


def lines(python: str, place: Path, source: str, start: str = START) -> list[str]:
    """Return what a fresh interpreter prints that runs this beside the modules above."""
    for name, content in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content)
    command = [python, "-c", start + source, str(ROOT)]
    done = subprocess.run(
        command, cwd=place, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


def test_the_call_comes_at_the_import_after_the_modules_own_and_only_once(python: str, tmp_path: Path) -> None:
    source = """
import other; print(heard)
import target; print(heard)
import another; print(heard)
import decimal; print(heard)
"""
    assert lines(python, tmp_path, source) == ["[]", "[]", "['target']", "['target']"]


def test_a_module_that_is_there_already_is_answered_at_once(python: str, tmp_path: Path) -> None:
    assert lines(python, tmp_path, "import other; wait_for('other'); print(heard)") == ["['other']"]


def test_the_module_of_a_package_is_noticed_while_the_package_goes_on(python: str, tmp_path: Path) -> None:
    source = """
after_import("package.inner", lambda: heard.append("package.more" in sys.modules))
after_import("package", lambda: heard.append("package.more" in sys.modules))
import package; print(heard)
import target, another; print(heard)
"""
    # Before the next module of the package has run; the package itself only when it is complete.
    assert lines(python, tmp_path, source) == ["[False]", "[False, True, 'target']"]


def test_module_loader_and_specification_are_pythons_own(python: str, tmp_path: Path) -> None:
    source = """
import target, pickle, importlib, importlib.util
from importlib.machinery import ModuleSpec, SourceFileLoader
spec = target.__spec__
print(type(spec) is ModuleSpec, type(spec.loader) is SourceFileLoader, spec.loader is target.__loader__)
print(sorted(vars(spec.loader)))
print(importlib.util.find_spec("other").loader.name, importlib.reload(target) is target, target.__spec__.name)
print(pickle.loads(pickle.dumps(spec.loader.path)) == target.__file__, heard)
"""
    expected = ["True True True", "['name', 'path']", "other True target", "True ['target']"]
    assert lines(python, tmp_path, source) == expected


def test_the_list_of_finders_keeps_its_ends_and_is_what_it_was_when_nothing_is_waited_for(
    python: str, tmp_path: Path
) -> None:
    source = """
print(before[0] is sys.meta_path[0], before[-1] is sys.meta_path[-1], len(sys.meta_path) - len(before), len(ours()))
wait_for("other"); import target, another; print(len(ours()))
import other, decimal; print(sys.meta_path == before)
"""
    start = "import sys\nbefore = list(sys.meta_path)\n" + START
    assert lines(python, tmp_path, source, start) == ["True True 1 1", "1", "True"]


def test_the_last_call_hides_no_finder_from_the_import_under_way(python: str, tmp_path: Path) -> None:
    source = """
class Last:
    def find_spec(self, name, path, target=None):
        print("asked for", name)
sys.meta_path.append(Last())
import target
import another; print(ours())
try:
    import nothing_of_that_name
except ImportError as error:
    print(error)
"""
    assert lines(python, tmp_path, source) == [
        "[]",
        "asked for nothing_of_that_name",
        "No module named 'nothing_of_that_name'",
    ]


@pytest.mark.parametrize("name", ["broken", "deep", "nothing_of_that_name"])
def test_an_import_fails_as_without_it_and_the_traceback_has_the_same_frames(
    python: str, tmp_path: Path, name: str
) -> None:
    source = f"""
import traceback
try:
    import {name}
except Exception as error:
    print("".join(traceback.format_exception(type(error), error, error.__traceback__)))
"""
    waiting = START + 'wait_for("broken"); wait_for("deep")\n'
    with_it, without = lines(python, tmp_path, source, waiting), lines(python, tmp_path, source, "")
    assert _frames(with_it) == _frames(without)
    assert "meta_path" not in "".join(with_it) and "import_hook" not in "".join(with_it)


def _frames(text: list[str]) -> list[str]:
    """Without the line numbers of the program itself: one of the two is longer."""
    return [line for line in text if '"<string>"' not in line]


def test_a_module_whose_import_failed_counts_when_it_succeeds(python: str, tmp_path: Path) -> None:
    source = """
wait_for("fails_once")
with open("fails_once.py", "w") as file:
    file.write("import builtins\\nif not hasattr(builtins, 'tried'):\\n    builtins.tried = 1\\n    1 / 0\\n")
for _ in range(2):
    try:
        import fails_once
    except ZeroDivisionError:
        pass
    __import__("other" if not heard and "other" not in sys.modules else "another")
    print(heard)
"""
    assert lines(python, tmp_path, source) == ["[]", "['fails_once']"]


def test_modules_that_are_imported_by_threads_at_once_are_announced_once_each(python: str, tmp_path: Path) -> None:
    source = """
import threading, importlib
for number in range(40):
    with open(f"m{number}.py", "w") as file:
        file.write("import time\\ntime.sleep(0.001)\\n")
importlib.invalidate_caches()
names = [f"m{number}" for number in range(40)]
for name in names:
    wait_for(name)
gate = threading.Barrier(8)
def run(start):
    gate.wait()
    for i in range(40):
        importlib.import_module(names[(start * 5 + i) % 40])
threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
import target, other, another
print(sorted(heard) == sorted([*names, "target"]), ours())
"""
    assert lines(python, tmp_path, source) == ["True []"]


def test_a_forked_child_waits_for_nothing(python: str, tmp_path: Path) -> None:
    source = """
import os
if os.fork() == 0:
    import target, other, another
    print(heard, ours(), flush=True)
    os._exit(0)
os.wait()
import target, another
print(heard)
"""
    assert lines(python, tmp_path, source) == ["[] []", "['target']"]


def test_a_failing_callback_harms_neither_the_script_nor_other_callbacks(python: str, tmp_path: Path) -> None:
    source = """
from ftslurm import import_hook
after_import("other", lambda: 1 / 0)
after_import("other", lambda: heard.append("the second one"))
import other
import another
print(import_hook.problem)
import target, decimal
print(heard, ours())
"""
    assert lines(python, tmp_path, source) == [
        "after the import of other: ZeroDivisionError: division by zero",
        "['the second one', 'target'] []",
    ]


def test_what_a_signal_handler_raises_reaches_the_script(python: str, tmp_path: Path) -> None:
    source = """
import os, signal
def stop(*_):
    raise TimeoutError("by the user's handler")
signal.signal(signal.SIGALRM, stop)
def callback():
    os.kill(os.getpid(), signal.SIGALRM)
    heard.append("to its end")
after_import("other", callback)
import other
try:
    import another
except TimeoutError as error:
    print(error, heard)
"""
    assert lines(python, tmp_path, source) == ["by the user's handler ['to its end']"]


def test_a_module_that_loads_lazily_stays_unloaded(python: str, tmp_path: Path) -> None:
    source = """
import importlib.util
import threading  # which the lazy loader would import
spec = importlib.util.find_spec("target")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["target"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import other; print(type(module).__name__, heard)
print(module.VALUE); import another; print(heard)
"""
    assert lines(python, tmp_path, source) == ["_LazyModule []", "1", "['target']"]


def test_it_brings_no_module_that_plain_python_has_not(python: str, tmp_path: Path) -> None:
    start = "import sys; before = set(sys.modules); sys.path.insert(0, sys.argv[1]); import ftslurm.import_hook\n"
    source = "print(sorted(set(sys.modules) - before - {'__future__'}))"
    assert lines(python, tmp_path, source, start) == ["['ftslurm', 'ftslurm.import_hook']"]

"""Neither a script nor a reader of its output must be able to distinguish the worker from `python -u`."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from worker_process import BY_FILE, BY_NAME, WorkerProcess, plain

SCRIPTS = {
    "prints to both streams": "import sys; print('out'); print('err', file=sys.stderr)",
    "raises": "def f():\n    raise ValueError('boom')\nf()\n",
    "raises from a chain": """
try:
    {}['key']
except KeyError as error:
    try:
        raise RuntimeError('second') from error
    except RuntimeError:
        raise OSError(5, 'third')
""",
    "exits with a number": "import sys; sys.exit(3)",
    "exits with a message": "import sys; sys.exit('no data')",
    "exits with None": "raise SystemExit",
    "exits with 256": "raise SystemExit(256)",
    "exits with -1": "raise SystemExit(-1)",
    "exits with a huge number": "raise SystemExit(2**80)",
    "exits with True": "raise SystemExit(True)",
    "exits with a tuple": "raise SystemExit((1, 2))",
    "is interrupted": "raise KeyboardInterrupt",
    "is interrupted by the signal": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "is terminated": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
    "raises an own BaseException": "class Odd(BaseException): pass\nraise Odd('x')",
    "raises the unprintable": "class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd",
    "does not compile": "x = 1\ny = = 2\n",
    "is badly indented": "if 1:\n    x = 1\n  y = 2\n",
    "has an unclosed bracket": "x = (1,\n\n",
    "returns outside of a function": "return 3\n",
    "imports what does not compile": "import broken_helper",
    "imports what is not there": "import not_there_at_all",
    "recurses": "def f(n): f(n + 1)\nf(0)",
    "has a BOM": b"\xef\xbb\xbfprint('caf\xc3\xa9')\n",
    "is in latin-1": b"# -*- coding: latin-1 -*-\nprint('caf\xe9')\nraise ValueError('\xe9')\n",
    "has CRLF": b"print(1)\r\nraise ValueError(2)\r\n",
    "is empty": b"",
    "shows its globals": """
for name, value in sorted(globals().items()):
    print(name, type(value).__name__, value if name not in ('__builtins__', '__loader__') else '')
print(__builtins__ is __import__('builtins'))
print(type(__loader__).__module__, getattr(__loader__, 'name', None), getattr(__loader__, 'path', None))
import sys
print(sys.argv, sys.orig_argv, sys.path, sys.modules['__main__'].__dict__ is globals(), __name__)
print(sys.getrecursionlimit(), sys.flags, sys.warnoptions, sys.excepthook is sys.__excepthook__)
""",
    "sees only its own annotations": "x: int = 1\nprint(globals().get('__annotations__'))",
    "has no future flags but its own": "def f(x: int): pass\nprint(f.__annotations__)",
    "opens a file": "print(open(__file__).fileno())",
    "has an exception hook": """
import sys, traceback
def hook(kind, error, trace):
    print('hook', kind, error, sys.excepthook is hook, sys.last_value is error, sys.last_traceback is trace)
    print(''.join(traceback.format_exception(kind, error, trace)))
    print(traceback.extract_tb(error.__traceback__) == traceback.extract_tb(trace))
sys.excepthook = hook
def f(): raise ValueError('boom')
f()
""",
    "has an exception hook that exits": """
import sys
def hook(*x): sys.exit(7)
sys.excepthook = hook
1/0
""",
    "has no exception hook": "import sys\ndel sys.excepthook\nsys.exit(4)",
    "looks at the exception at exit": """
import atexit, sys, traceback
@atexit.register
def bye():
    traceback.print_tb(sys.last_traceback)
    print(sys.excepthook is sys.__excepthook__, sys.modules['__main__'].__name__)
1/0
""",
    "flushes and joins at exit": """
import atexit, sys, threading, time
atexit.register(lambda: print('atexit'))
def late():
    time.sleep(0.2)
    print('thread ends', end='')
threading.Thread(target=late).start()
class Last:
    def __del__(self): print('del')
last = Last()
raise ValueError('main ends')
""",
    "raises in a thread": """
import threading
def f(): raise ValueError('in thread')
t = threading.Thread(target=f, name='T'); t.start(); t.join()
print('goes on')
""",
    "replaces stderr": "import sys, io\nsys.stderr = io.StringIO()\n1/0",
    "has no stderr": "import sys\nsys.stderr = None\n1/0",
    "closes stderr": "import os\nos.close(2)\n1/0",
    "changes the directory": "import os\nos.chdir('/')\nprint(__file__)\n1/0",
    "closes all descriptors": "import os\nos.closerange(3, 4096)\nprint(os.open('/dev/null', 0))\n1/0",
    "has a low recursion limit": "import sys\nsys.setrecursionlimit(60)\n1/0",
    "warns": "import warnings\nwarnings.warn('old', DeprecationWarning)",
    "has a traceback limit": "import sys\nsys.tracebacklimit = 1\ndef f(): 1/0\ndef g(): f()\ng()",
    "pickles its own class": """
import pickle
class Own: pass
own = pickle.loads(pickle.dumps(Own()))
print(type(own) is Own, Own.__module__)
""",
    "reads its own source": """
import inspect, dataclasses
@dataclasses.dataclass
class Own:
    x: int = 3
print(inspect.getsource(Own), Own())
print(inspect.getsourcefile(Own), inspect.getmodule(Own).__name__)
""",
    "sees the script in its stack": "import inspect\nprint([f.function for f in inspect.stack()][:1])",
    "forks a child that raises": """
import os
pid = os.fork()
if pid == 0:
    raise ValueError('in the child')
print(os.waitpid(pid, 0)[1])
""",
    "forks a child that exits": """
import os, sys
pid = os.fork()
if pid == 0:
    sys.exit(5)
print(os.waitpid(pid, 0)[1] >> 8)
""",
    "uses spawn": """
import multiprocessing as mp
class Own:
    def __init__(self, x): self.x = x
def work(own, queue): queue.put((own.x * 2, __name__, type(own).__module__))
if __name__ == '__main__':
    context = mp.get_context('spawn')
    queue = context.Queue()
    process = context.Process(target=work, args=(Own(2), queue)); process.start()
    got = queue.get(timeout=30); process.join(); print(got, process.exitcode)  # the child flushes as it ends
""",
    "uses forkserver": """
import multiprocessing as mp
def work(x, queue): queue.put((x * 2, __name__))
if __name__ == '__main__':
    context = mp.get_context('forkserver')
    queue = context.Queue()
    process = context.Process(target=work, args=(4, queue)); process.start()
    got = queue.get(timeout=30); process.join(); print(got, process.exitcode)
""",
    "uses fork, and the child raises": """
import multiprocessing as mp
def work(): raise ValueError('in the child')
if __name__ == '__main__':
    process = mp.get_context('fork').Process(target=work); process.start(); process.join()
    print(process.exitcode)
""",
    "uses a process pool": """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
def work(x): return x + 1
if __name__ == '__main__':
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('spawn')) as pool:
        print(pool.submit(work, 3).result())
""",
    "ends by os._exit": "import os\nprint('x')\nos._exit(9)",
    "aborts": "import os\nos.abort()",
    "takes itself out of sys.modules": "import sys\ndel sys.modules['__main__']\n1/0",
    "ends with an exec": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(3); 1/0'])",
}
if sys.version_info >= (3, 11):
    SCRIPTS["raises a group"] = """
def f(): raise ExceptionGroup('two', [ValueError(1), ExceptionGroup('in', [KeyError(2)])])
try:
    f()
except ExceptionGroup as error:
    error.add_note('a note')
    raise
"""
if sys.version_info >= (3, 11):  # before, the frame of ftslurm's hook is seen below the one of the user's
    SCRIPTS["has an exception hook that raises"] = """
import sys
def hook(*x): raise RuntimeError('hook')
sys.excepthook = hook
1/0
"""


def assert_alike(tmp_path: Path, python: list[str], worker: list[str], **extra: str) -> None:
    """Run both and compare; the worker in both of the ways to start it."""
    expected = plain(*python, cwd=tmp_path, **extra)
    for start in (BY_FILE, BY_NAME):
        process = WorkerProcess(tmp_path / f"state{len(start)}")
        seen = process.run(*worker, cwd=tmp_path, start=start, **extra)
        assert outcome(seen) == outcome(expected), start


def outcome(process: subprocess.CompletedProcess[str]) -> tuple[str, str, int]:
    """Drop what differs from run to run, or with the few frames that the worker has below the script's."""

    def comparable(text: str) -> str:
        text = re.sub(r"Previous line repeated \d+ more", "Previous line repeated N more", text)
        return re.sub(r"0x[0-9a-f]{6,}", "0x", text)

    return comparable(process.stdout), comparable(process.stderr), process.returncode


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_behaves_as_under_python(tmp_path: Path, name: str) -> None:
    source = SCRIPTS[name]
    (tmp_path / "broken_helper.py").write_text("def f(:\n")
    (tmp_path / "script.py").write_bytes(source.encode() if isinstance(source, str) else source)
    assert_alike(tmp_path, ["script.py", "a", "--b", "--"], ["--script", "script.py", "--", "a", "--b", "--"])


@pytest.mark.parametrize("name", ["shows its globals", "raises", "does not compile", "exits with a message",
                                  "is interrupted", "uses spawn", "raises from a chain"])  # fmt: skip
def test_a_module_behaves_as_under_python(tmp_path: Path, name: str) -> None:
    source = SCRIPTS[name]
    package = tmp_path / "package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("print('package', __name__)\n")
    for module in (tmp_path / "single.py", package / "module.py", package / "__main__.py"):
        module.write_text(str(source))
    names = ["single", "package.inner.module", "package.inner"]
    if name == "uses spawn":
        names.pop()  # Plain Python does not import a package's __main__ again in the child.
    for number, module_name in enumerate(names):
        place = tmp_path / str(number)
        place.mkdir()
        expected = plain("-m", module_name, "a", cwd=tmp_path)
        seen = WorkerProcess(place).run("--module", module_name, "--", "a", cwd=tmp_path)
        assert outcome(seen) == outcome(expected)


@pytest.mark.parametrize("target", ["not_there", "package", "package.not_there", "json.tool.x", "os", ".", ""])
def test_a_module_that_cannot_be_run_is_refused_as_by_python(tmp_path: Path, target: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    assert_alike(tmp_path, ["-m", target], ["--module", target, "--"])


def test_a_missing_or_unreadable_script_is_refused_as_by_python(tmp_path: Path) -> None:
    for number, path in enumerate(("nowhere.py", "./a/../nowhere.py", "/nowhere.py")):
        place = tmp_path / str(number)
        place.mkdir()
        assert_alike(place, [path], ["--script", path, "--"])


def test_the_script_has_the_same_path_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    script = tmp_path / "real" / "deep" / "script.py"
    script.write_text(str(SCRIPTS["shows its globals"]) + "\n1/0\n")
    (tmp_path / "real" / "link.py").symlink_to("deep/script.py")
    (tmp_path / "work" / "second.py").symlink_to("../real/link.py")
    (tmp_path / "work" / "dir").symlink_to("../real/deep")
    paths = ["work/second.py", "work/dir/script.py", "./real/../real/link.py", str(tmp_path / "work/second.py")]
    for number, path in enumerate(paths):
        expected = plain(path, cwd=tmp_path)
        seen = WorkerProcess(tmp_path / str(number)).run("--script", path, "--", cwd=tmp_path)
        assert outcome(seen) == outcome(expected)


def test_a_directory_and_an_archive_with_main_run_as_under_python(tmp_path: Path) -> None:
    source = "import helper\n" + str(SCRIPTS["shows its globals"]) + "\nhelper.f()\n"
    helper = "def f(): 1/0\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(source)
    (tmp_path / "folder" / "helper.py").write_text(helper)
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", source)
        archive.writestr("helper.py", helper)
    for name in ("folder", "app.pyz", "empty", "folder/"):
        place = tmp_path / ("state-" + name.strip("/"))
        expected = plain(name, "x", cwd=tmp_path)
        seen = WorkerProcess(place / str(len(name))).run("--script", name, "--", "x", cwd=tmp_path)
        assert outcome(seen) == outcome(expected)


def test_a_compiled_script_runs_as_under_python(tmp_path: Path) -> None:
    import py_compile

    (tmp_path / "script.py").write_text(str(SCRIPTS["shows its globals"]) + "\n1/0\n")
    py_compile.compile(str(tmp_path / "script.py"), cfile=str(tmp_path / "script.pyc"), dfile="/src/script.py")
    assert_alike(tmp_path, ["script.pyc"], ["--script", "script.pyc", "--"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH is new in 3.11")
def test_the_safe_path_is_honoured(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print(sys.path)")
    assert_alike(tmp_path, ["script.py"], ["--script", "script.py", "--"], PYTHONSAFEPATH="1")
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "script.py").write_text("import sys; print(sys.path)")
    assert_alike(tmp_path / "again", ["-m", "script"], ["--module", "script", "--"], PYTHONSAFEPATH="1")


def test_modules_of_the_current_directory_do_not_get_in_the_way(tmp_path: Path) -> None:
    """The script is elsewhere, so that plain Python never looks into the current directory."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "script.py").write_text("import types, random; print(types.FunctionType); 1/0")
    for name in ("types", "random", "ctypes", "pkgutil", "traceback", "json", "runpy", "ftslurm", "linecache"):
        (tmp_path / f"{name}.py").write_text(f"print('wrong {name}'); raise SystemExit(9)")
    process = WorkerProcess(tmp_path / "state")
    seen = process.run("--script", "elsewhere/script.py", "--", cwd=tmp_path)
    expected = plain("elsewhere/script.py", cwd=tmp_path)
    assert outcome(seen) == outcome(expected)
    assert process.record() is not None

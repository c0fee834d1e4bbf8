"""Nothing is imported in an agent's loop once the first round begins: the filesystem of Python may hang by then."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import test_hanging_directory
import test_run
from test_defects import EXITS, FAILS, HANGS
from test_hanging_directory import Directory
from test_run import FOREVER, Start, Started, small_disk, up

__all__ = ["small_disk"]

start = test_run.start
shared = test_hanging_directory.shared

ROOT = Path(__file__).resolve().parents[2]
# Writes down which modules the main thread of an agent loads between its first round's start and its end.
WATCHER = """
import os, sys
if "ftslurm.cli" in sys.orig_argv:
    import threading
    import ftslurm.agent.node_agent as node_agent
    class Finder:
        watching = False
        def find_spec(self, name, path=None, target=None):
            if self.watching and threading.current_thread() is threading.main_thread():
                with open(os.environ["IMPORTED"], "a") as file:
                    file.write(name + "\\n")
    finder = Finder()
    sys.meta_path.insert(0, finder)
    begin, run = node_agent.NodeAgent._begin, node_agent.NodeAgent.run
    def begun(self):
        begin(self)
        finder.watching = True
    def ran(self):
        try:
            return run(self)
        finally:
            finder.watching = False
    node_agent.NodeAgent._begin, node_agent.NodeAgent.run = begun, ran
"""
MISUSES = """
import ftslurm, os
ftslurm.end_section("never opened")
os.unlink(os.environ["FTSLURM_PIPE"])
import no_such_module
"""
OFTEN = ("--heartbeat", "0.2", "--heartbeat-timeout", "0.5", "--hang-timeout", "30", "--nproc-per-node", "2")
SCENARIOS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "a rank raises": (FAILS, ("--nproc-per-node", "2", "--health", "report"), 0),
    "a rank exits": (EXITS, (), 0),
    "a rank hangs": (HANGS, OFTEN, 0),
    "a rank crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ("--max-restarts", "0"), 1),
    "it would fail again": (MISUSES, ("--nproc-per-node", "2"), 78),
    "the node is found unhealthy": (FAILS, ("--health-command", "exit 2", "--join-timeout", "1"), 1),
    "a spare takes part": (EXITS, ("--local-nodes", "2", "--nnodes", "1", "--warm-imports", "decimal"), 0),
}


def watched(start: Start, tmp_path: Path, script: str, *options: str, **environment: str) -> Started:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WATCHER)
    return start(
        script, *options, PYTHONPATH=str(site), IMPORTED=str(tmp_path / "imported"), INJECTED=str(tmp_path),
        FTSLURM_REPORT="0", **environment,
    )  # fmt: skip


def imported(run: Started) -> list[str]:
    path = run.directory / "imported"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("what", SCENARIOS)
def test_whatever_happens_the_loop_imports_nothing(start: Start, tmp_path: Path, what: str) -> None:
    script, options, code = SCENARIOS[what]
    run = watched(start, tmp_path, script, *options)
    assert run.wait() == code, run.err
    assert imported(run) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_import_nothing(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    run = watched(start, tmp_path, FOREVER)
    up(run, 1)
    run.process.send_signal(number)
    if number == signal.SIGUSR1:
        # Passed on to the rank, which dies of it.
        run.until(lambda: "round 2" in run.err)
        run.process.send_signal(signal.SIGTERM)
    assert run.wait() in (130, 143), run.err
    assert imported(run) == []


def test_a_shared_directory_that_is_full_imports_nothing(start: Start, tmp_path: Path, small_disk: Path) -> None:
    script = """
import os
hog = os.open(os.path.join(os.environ["FTSLURM_SHARED_DIR"], "hog"), os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(hog, b"x" * 4096)
except OSError:
    os._exit(1)
"""
    run = watched(start, tmp_path, script, "--max-restarts", "0", FTSLURM_SHARED_DIR=str(small_disk))
    run.until(lambda: "No space left on device" in run.err)
    (small_disk / "hog").unlink()
    assert run.wait() == 1, run.err
    assert imported(run) == []


def test_an_agent_whose_own_modules_lie_on_a_filesystem_that_hangs_obeys_its_signals(
    start: Start, shared: Directory, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "ftslurm", shared.path / "ftslurm", ignore=shutil.ignore_patterns("__pycache__"))
    script = """
import os, time
open(f"up{os.environ['RANK']}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
os._exit(3)
"""
    run = start(script, "--health", "off", "--grace", "1", PYTHONPATH=str(shared.path), FTSLURM_REPORT="0")
    run.until(lambda: (run.directory / "up0").exists())
    shared.hang()
    (run.directory / "go").touch()
    run.until(lambda: "round 2: 1 rank" in run.err)
    run.process.terminate()
    assert run.wait() == 143, run.err
    shared.answer()
    assert run.marked() == []


def test_an_agent_whose_python_lies_on_a_filesystem_that_hangs_obeys_its_signals_while_a_check_is_started(
    start: Start, shared: Directory, tmp_path: Path
) -> None:
    python = shared.path / "python"
    shutil.copy2(Path(sys.executable).resolve(), tmp_path / "backing/python")
    home = {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    if subprocess.run([python, "-c", "import ftslurm"], env={**os.environ, **home}, check=False).returncode != 0:
        pytest.skip("this Python does not run from another place")
    options = ("--grace", "1", "--health-every", "1", "--heartbeat", "0.2")
    run = start(FOREVER, *options, python=str(python), FTSLURM_REPORT="0", **home)
    up(run, 1)
    node = next((run.run_dir / "nodes").glob("*.json"))
    agent = json.loads(node.read_text())["pid"]
    known = children(agent)
    shared.hang()
    run.until(lambda: bool(children(agent) - known))
    # Its heart goes on beating: the other threads are not held up either.
    counter = json.loads(node.read_text())["counter"]
    run.until(lambda: json.loads(node.read_text())["counter"] > counter + 2)
    run.process.terminate()
    assert run.wait() == 143, run.err
    shared.answer()
    assert run.marked() == []


def children(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

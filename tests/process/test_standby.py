"""Standby workers of a spare: once they have their order, nobody can tell them from workers that were started then."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_run import Started, guardian_of
from test_worker_like_python import SCRIPTS, outcome
from worker_process import OURS, environment, plain

from ftslurm.agent.actions import Assignment
from ftslurm.agent.environment import Program, RunFacts
from ftslurm.agent.options import parse_run
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.standby import StandbyEvents, Standbys
from ftslurm.agent.worker_launch import launch_of
from ftslurm.agent.workers import Worker, Workers
from ftslurm.monitor.dump_signal import DUMP_SIGNAL
from ftslurm.records.state import Master

PART = Assignment(3, "7.0", 1, 2, 4, 2, 8, Master("n0", 20_000), 1, 3)


class Spare:
    """A node's standbys and workers, as the agent holds them; the test's process is the agent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.extra: dict[str, str] = {}
        self.kind, self.name, self.arguments = "script", "script.py", ("a", "--standby", "x", "--")
        self.modules = ("decimal",)
        self.workers = Workers(time.time_ns)

    @property
    def settings(self) -> AgentSettings:
        options = parse_run(["--spare-imports", ",".join(self.modules), self.name, *self.arguments], {})
        return AgentSettings(
            options,
            RunFacts("job-7", str(self.directory / "run"), "n1", "default"),
            Program(self.kind, self.name, self.arguments, sys.executable),
            str(self.directory / "logs"),
            str(self.directory),
            environment(**self.extra),
            -1,
        )

    @property
    def standbys(self) -> Standbys:
        assert self.workers.standbys is not None
        return self.workers.standbys

    def warm(self, *modules: str, ready: bool = True) -> StandbyEvents:
        """Start a standby for local rank 1; return all that was heard until it was ready."""
        self.modules = modules or self.modules
        self.workers.standbys = Standbys(self.settings, 2, self.workers.collect, time.monotonic)
        self.standbys.start(1)
        heard = StandbyEvents()
        self.listen(heard, lambda: not ready or self.standbys.all[0].ready)
        return heard

    def listen(self, heard: StandbyEvents, enough: Callable[[], bool]) -> None:
        while not enough():
            assert select.select([self.standbys.fd], [], [], 30)[0], heard.lines
            news = self.standbys.poll()
            heard.lines += news.lines
            heard.ended += news.ended

    def promote(self, **monitor: str) -> Worker:
        logs = self.directory / "logs/rounds/000003/ranks/00005"
        logs.mkdir(parents=True, exist_ok=True)
        return self.workers.start(launch_of(self.settings, PART, 1, os.getpid(), monitor))

    def end(self, worker: Worker) -> subprocess.CompletedProcess[str]:
        """Wait for the worker's end."""
        assert select.select([worker.pidfd], [], [], 60)[0]
        while not self.workers.reap(worker):
            pass
        code = worker.exit_code if worker.exit_code is not None else -getattr(signal, str(worker.signal))
        logs = self.directory / "logs/rounds/000003/ranks/00005"
        out, err = ((logs / name).read_text() for name in ("stdout.log", "stderr.log"))
        return subprocess.CompletedProcess([], code, out, err)

    def run(self, source: str, *modules: str) -> subprocess.CompletedProcess[str]:
        """Let a standby run this as its script; it must not be a worker started anew."""
        (self.directory / "script.py").write_text(source)
        self.warm(*modules)
        pid = self.standbys.all[0].pid
        worker = self.promote()
        assert worker.pid == pid
        return self.end(worker)


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spare]:
    monkeypatch.chdir(tmp_path)
    spare = Spare(tmp_path)
    yield spare
    spare.standbys.drop_all()
    spare.workers.send([1], signal.SIGKILL)
    for worker in spare.workers.all:
        if worker.ended_ns is None:
            spare.end(worker)
    spare.workers.collect()


ALIKE = (
    "prints to both streams", "raises", "raises from a chain", "exits with a message", "is interrupted",
    "is interrupted by the signal", "is terminated", "does not compile", "shows its globals", "opens a file",
    "sees only its own annotations", "has an exception hook", "looks at the exception at exit",
    "closes all descriptors", "sees the script in its stack", "pickles its own class", "uses spawn",
)  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_a_script_behaves_in_a_standby_as_under_python(spare: Spare, name: str) -> None:
    source = str(SCRIPTS[name])
    seen = spare.run(source)
    expected = plain("script.py", *spare.arguments, cwd=spare.directory)
    assert outcome(seen) == outcome(expected)


def test_a_module_behaves_in_a_standby_as_under_python(spare: Spare) -> None:
    spare.kind, spare.name = "module", "script"
    seen = spare.run(str(SCRIPTS["shows its globals"]) + "\n1/0\n")
    assert outcome(seen) == outcome(plain("-m", "script", *spare.arguments, cwd=spare.directory))


def test_the_modules_are_there_already_and_only_they(spare: Spare) -> None:
    seen = spare.run("import sys; print(*(name in sys.modules for name in ('decimal', 'fractions', 'json')))")
    assert seen.stdout == "True False False\n"


def test_the_environment_is_the_workers_for_python_and_for_c(spare: Spare) -> None:
    spare.extra = {"RANK": "77", "KEPT": "=a\n\u00e9=b", "MASTER_PORT": "1"}
    show = "import ctypes, os\nprint(sorted(os.environ.items()))\nctypes.CDLL(None).system(b'env -0 | sort -z')\n"
    ahead = spare.run(show)
    anew = spare.end(spare.promote())
    both = ahead.stdout, anew.stdout.removeprefix(ahead.stdout)
    assert both[0] == both[1]
    for name, value in {**OURS, "RANK": "5", "WORLD_SIZE": "8", "MASTER_PORT": "20000"}.items():
        assert f"('{name}', '{value}')" in ahead.stdout
        assert f"\0{name}={value}\0" in ahead.stdout


def test_what_an_import_changes_in_the_environment_stays_unless_the_order_sets_it(spare: Spare) -> None:
    (spare.directory / "meddler.py").write_text(
        "import os\nos.environ.update(MEDDLED='1', WORLD_SIZE='1', CHANGED='new')\ndel os.environ['GONE']\n"
    )
    spare.extra = {"GONE": "here", "CHANGED": "old"}
    seen = spare.run(
        "import os; print(*(os.environ.get(n) for n in ('MEDDLED', 'WORLD_SIZE', 'CHANGED', 'GONE')))", "meddler"
    )
    assert seen.stdout == "1 8 new None\n"


def test_a_module_beside_the_script_has_the_scripts_arguments_and_prints_to_the_ranks_log(
    spare: Spare,
) -> None:
    (spare.directory / "sub").mkdir()
    (spare.directory / "sub" / "beside.py").write_text(
        "import os, sys\nprint('import', sys.argv, sys.path[0], 'RANK' in os.environ, os.environ['LOCAL_RANK'])\n"
        "os.write(2, b'warning\\n')\nprint(repr(sys.stdin.read()))\n"
    )
    (spare.directory / "sub" / "script.py").write_text("import sys, beside; print('script'); print(sys.path[:2])")
    spare.name = "sub/script.py"
    seen = spare.run("", "beside")
    place = str(spare.directory / "sub")
    argv = ["sub/script.py", *spare.arguments]
    first, *rest = seen.stdout.splitlines()
    assert first == f"import {argv} {place} False 1"
    assert rest[:2] == ["''", "script"]
    assert rest[2].startswith(f"['{place}', ")
    assert rest[2].count(place) == 1
    assert seen.stderr == "warning\n"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = = 1", "SyntaxError"),
        ("raise ValueError('two\\nlines' + 5000 * 'x')", "ValueError: two lines"),
        (None, "ModuleNotFoundError: No module named 'odd'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_reported_and_the_standby_can_be_used_all_the_same(
    spare: Spare, source: str | None, told: str
) -> None:
    if source is not None:
        (spare.directory / "odd.py").write_text(source)
    (spare.directory / "script.py").write_text("import sys; print('decimal' in sys.modules, 'odd' in sys.modules)")
    heard = spare.warm("odd", "decimal")
    assert len(heard.lines) == 2
    assert f"go on without a module: odd: {told}" in heard.lines[0]
    assert len(heard.lines[0]) < 400
    assert "its standby workers are ready (1, after" in heard.lines[1]
    pid = spare.standbys.all[0].pid
    worker = spare.promote()
    assert worker.pid == pid
    assert spare.end(worker).stdout == "True False\n"


def test_a_failure_is_recorded_as_that_of_the_rank_it_became(spare: Spare) -> None:
    spare.run("raise ValueError('boom')")
    record = json.loads((spare.directory / "000003/00005/error.json").read_text())
    assert record["message"]["message"] == "ValueError: boom"
    ours = record["ftslurm"]
    assert (ours["rank"], ours["local_rank"], ours["round"], ours["node"]) == (5, 1, 3, "n1")
    assert ours["argv"] == ["script.py", *spare.arguments]
    assert len(ours["exception"]["frames"]) == 1


def test_it_shows_its_stacks_when_it_hangs(spare: Spare) -> None:
    (spare.directory / "script.py").write_text("import time\nopen('up', 'w').close()\ntime.sleep(60)\n")
    spare.warm()
    worker = spare.promote()
    until(lambda: (spare.directory / "up").exists())
    signal.pidfd_send_signal(worker.pidfd, DUMP_SIGNAL)
    until(lambda: 'script.py", line 3 in <module>' in (spare.directory / "000003/00005/hang.txt").read_text())


def test_user_signals_are_for_workers_and_do_not_end_it(spare: Spare) -> None:
    (spare.directory / "script.py").write_text(
        "import signal; print(*(signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGUSR1, signal.SIGUSR2)))"
    )
    spare.warm()
    pid = spare.standbys.all[0].pid
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, number)
    worker = spare.promote()
    assert worker.pid == pid
    assert spare.end(worker).stdout == "True True\n"


def test_one_that_is_not_ready_is_killed_and_the_worker_is_started_anew(spare: Spare) -> None:
    (spare.directory / "slow.py").write_text("import time; time.sleep(600)")
    (spare.directory / "script.py").write_text("print('anew')")
    spare.warm("slow", ready=False)
    standby = spare.standbys.all[0]
    watch = os.dup(standby.pidfd)
    worker = spare.promote()
    assert select.select([watch], [], [], 30)[0]
    os.close(watch)
    assert worker.pid != standby.pid
    assert spare.end(worker).stdout == "anew\n"


def test_one_that_has_died_is_reported_once_and_the_worker_is_started_anew(spare: Spare) -> None:
    (spare.directory / "script.py").write_text("print('anew')")
    heard = spare.warm()
    os.kill(spare.standbys.all[0].pid, signal.SIGSEGV)
    spare.listen(heard, lambda: bool(heard.ended))
    assert heard.ended == [1]
    assert heard.lines[-1] == "spare: a standby worker was killed by SIGSEGV"
    assert spare.end(spare.promote()).stdout == "anew\n"


def test_one_that_dies_unnoticed_is_not_given_the_order(spare: Spare) -> None:
    (spare.directory / "script.py").write_text("print('anew')")
    spare.warm()
    os.kill(spare.standbys.all[0].pid, signal.SIGKILL)
    assert select.select([spare.standbys.all[0].pidfd], [], [], 30)[0]
    assert spare.end(spare.promote()).stdout == "anew\n"


@pytest.mark.parametrize("changed", [{"PATH": "/usr/bin:/bin:/other"}, {f"BIG{n}": 100_000 * "x" for n in range(12)}])
def test_an_environment_that_does_not_fit_starts_the_worker_anew(spare: Spare, changed: dict[str, str]) -> None:
    (spare.directory / "script.py").write_text("import os; print(len(os.environ['PATH']), len(os.environ))")
    spare.warm()
    if "PATH" in changed:
        spare.extra = changed
        worker = spare.promote()
    else:
        worker = spare.promote(**changed)
    seen = spare.end(worker)
    variables = launch_of(spare.settings, PART, 1, os.getpid(), {} if "PATH" in changed else changed).environment
    lengths = [int(word) for word in seen.stdout.split()]
    assert lengths[0] == len(variables["PATH"])
    assert lengths[1] - len(variables) in (0, 1)  # LC_CTYPE, Python's own


def test_it_ends_quietly_when_it_is_not_needed(spare: Spare) -> None:
    spare.warm()
    standby = spare.standbys.all[0]
    standby.channel.shutdown(2)
    heard = StandbyEvents()
    spare.listen(heard, lambda: bool(heard.ended))
    assert heard.lines == ["spare: a standby worker ended with code 0"]


def test_one_whose_module_closes_all_descriptors_ends_and_wakes_the_agent_no_more(spare: Spare) -> None:
    (spare.directory / "closer.py").write_text("import os; os.closerange(3, 4096)")
    heard = spare.warm("closer", ready=False)
    spare.listen(heard, lambda: bool(heard.ended))
    assert select.select([spare.standbys.fd], [], [], 0)[0] == []


def test_an_agent_without_the_option_does_not_even_load_this() -> None:
    code = "import ftslurm.agent.node_agent, ftslurm.worker, sys; print([n for n in sys.modules if 'standby' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# In a run

PROMOTED = """
import os, sys, time
open(f"up{os.environ['FTSLURM_ROUND']}.{os.environ['RANK']}", "w").write(f"{os.getpid()} {'decimal' in sys.modules}")
while os.environ["FTSLURM_ROUND"] == "1" or not os.path.exists("enough"):
    time.sleep(0.05)
"""
ARGUMENTS = ("--nnodes", "2", "--local-nodes", "3", "--nproc-per-node", "2", "--spare-imports", "decimal")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Started]:
    (tmp_path / "train.py").write_text(PROMOTED)
    run = Started(tmp_path, *ARGUMENTS, "train.py", PWD_MARK=str(tmp_path))
    yield run
    for pid, _ in run.marked():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    run.process.wait()


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for real processes to get somewhere; the bound is for a hang, not a measurement."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def waiting(run: Started) -> set[int]:
    return {pid for pid, line in run.marked() if "--standby" in line}


def up(run: Started, round_: int) -> bool:
    return all((run.directory / f"up{round_}.{rank}").exists() for rank in range(4))


def agents(run: Started) -> dict[str, int]:
    words = [json.loads(path.read_text()) for path in run.run_dir.glob("nodes/*.json")]
    return {word["node"]: word["pid"] for word in words}


def test_the_standbys_of_a_spare_become_the_workers_when_it_replaces_a_lost_node(run: Started) -> None:
    run.until(lambda: "its standby workers are ready (2, after" in run.err)
    run.until(lambda: up(run, 1))
    standbys = waiting(run)
    assert len(standbys) == 2
    os.kill(guardian_of(agents(run)["local1"]), signal.SIGKILL)
    run.until(lambda: up(run, 2))
    (run.directory / "enough").touch()
    assert run.wait() == 0, run.err
    said = [(run.directory / f"up2.{rank}").read_text().split() for rank in range(4)]
    assert [imported for _, imported in said] == ["False", "False", "True", "True"]
    assert {int(pid) for pid, _ in said[2:]} == standbys
    assert waiting(run) == set()


def test_a_standby_that_is_killed_comes_back_and_disturbs_no_other(run: Started) -> None:
    run.until(lambda: "its standby workers are ready (2, after" in run.err)
    run.until(lambda: up(run, 1))
    before = waiting(run)
    os.kill(min(before), signal.SIGKILL)
    run.until(lambda: len(waiting(run) - {min(before)}) == 2)
    assert "spare: a standby worker was killed by SIGKILL" in run.err
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert run.marked() == []
    assert len(list(run.run_dir.glob("rounds/*"))) == 1


def test_standbys_go_with_their_agent(run: Started) -> None:
    run.until(lambda: "its standby workers are ready (2, after" in run.err)
    run.until(lambda: up(run, 1))
    os.kill(agents(run)["local2"], signal.SIGKILL)
    run.until(lambda: waiting(run) == set())
    assert not (run.directory / "up2.0").exists()

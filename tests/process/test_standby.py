"""Standby workers: once they have their order, they cannot be distinguished from workers started then."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from binascii import crc32
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


class Node:
    """A node's standbys and workers, as the agent holds them; the test's process is the agent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.extra: dict[str, str] = {}
        self.kind, self.name, self.arguments = "script", "script.py", ("a", "--standby", "x", "--")
        self.modules = ("decimal",)
        self.cpus: tuple[frozenset[int] | None, ...] = ()
        self.workers = Workers(time.time_ns)

    @property
    def settings(self) -> AgentSettings:
        options = parse_run(["--warm-imports", ",".join(self.modules), self.name, *self.arguments], {})
        return AgentSettings(
            options,
            RunFacts("job-7", str(self.directory / "run"), "n1", "default"),
            Program(self.kind, self.name, self.arguments, sys.executable),
            str(self.directory / "logs"),
            str(self.directory),
            environment(**self.extra),
            -1,
            cpus=self.cpus,
        )

    @property
    def standbys(self) -> Standbys:
        assert self.workers.standbys is not None
        return self.workers.standbys

    def warm(self, *modules: str, ready: bool = True) -> StandbyEvents:
        """Start a standby for local rank 1; return all that was heard until it was ready or had ended."""
        self.modules = modules or self.modules
        self.workers.standbys = Standbys(self.settings, 2, self.workers.collect, time.monotonic)
        self.standbys.start(1)
        heard = StandbyEvents()
        self.listen(heard, lambda: not ready or bool(heard.ended) or self.standbys.all[0].ready)
        return heard

    def listen(self, heard: StandbyEvents, enough: Callable[[], bool]) -> None:
        while not enough():
            assert select.select([self.standbys.fd], [], [], 30)[0], heard.lines
            news = self.standbys.poll()
            heard.lines += news.lines
            heard.ended += news.ended
            heard.unusable += news.unusable
            heard.refused = heard.refused or news.refused

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
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.chdir(tmp_path)
    node = Node(tmp_path)
    yield node
    node.standbys.drop_all()
    node.workers.send([1], signal.SIGKILL)
    for worker in node.workers.all:
        if worker.ended_ns is None:
            node.end(worker)
    node.workers.collect()


ALIKE = (
    "prints to both streams", "raises", "raises from a chain", "exits with a message", "is interrupted",
    "is interrupted by the signal", "is terminated", "does not compile", "shows its globals", "opens a file",
    "sees only its own annotations", "has an exception hook", "looks at the exception at exit",
    "closes all descriptors", "sees the script in its stack", "pickles its own class", "uses spawn",
)  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_a_script_behaves_in_a_standby_as_under_python(node: Node, name: str) -> None:
    source = str(SCRIPTS[name])
    seen = node.run(source)
    expected = plain("script.py", *node.arguments, cwd=node.directory)
    assert outcome(seen) == outcome(expected)


def test_a_module_behaves_in_a_standby_as_under_python(node: Node) -> None:
    node.kind, node.name = "module", "script"
    seen = node.run(str(SCRIPTS["shows its globals"]) + "\n1/0\n")
    assert outcome(seen) == outcome(plain("-m", "script", *node.arguments, cwd=node.directory))


def test_the_modules_are_there_already_and_only_they(node: Node) -> None:
    seen = node.run("import sys; print(*(name in sys.modules for name in ('decimal', 'fractions', 'json')))")
    assert seen.stdout == "True False False\n"


def test_the_environment_is_the_workers_for_python_and_for_c(node: Node) -> None:
    node.extra = {"RANK": "77", "KEPT": "=a\n\u00e9=b", "MASTER_PORT": "1"}
    show = "import ctypes, os\nprint(sorted(os.environ.items()))\nctypes.CDLL(None).system(b'env -0 | sort -z')\n"
    ahead = node.run(show)
    anew = node.end(node.promote())
    both = ahead.stdout, anew.stdout.removeprefix(ahead.stdout)
    assert both[0] == both[1]
    for name, value in {**OURS, "RANK": "5", "WORLD_SIZE": "8", "MASTER_PORT": "20000"}.items():
        assert f"('{name}', '{value}')" in ahead.stdout
        assert f"\0{name}={value}\0" in ahead.stdout


def test_what_an_import_changes_in_the_environment_stays_unless_the_order_sets_it(node: Node) -> None:
    (node.directory / "meddler.py").write_text(
        "import os\nos.environ.update(MEDDLED='1', WORLD_SIZE='1', CHANGED='new')\ndel os.environ['GONE']\n"
    )
    node.extra = {"GONE": "here", "CHANGED": "old"}
    seen = node.run(
        "import os; print(*(os.environ.get(n) for n in ('MEDDLED', 'WORLD_SIZE', 'CHANGED', 'GONE')))", "meddler"
    )
    assert seen.stdout == "1 8 new None\n"


def test_a_module_beside_the_script_has_the_scripts_arguments_and_prints_to_the_ranks_log(
    node: Node,
) -> None:
    (node.directory / "sub").mkdir()
    (node.directory / "sub" / "beside.py").write_text(
        "import os, sys\nprint('import', sys.argv, sys.path[0], os.environ['LOCAL_RANK'])\n"
        "os.write(2, b'warning\\n')\nprint(repr(sys.stdin.read()))\n"
    )
    (node.directory / "sub" / "script.py").write_text("import sys, beside; print('script'); print(sys.path[:2])")
    node.name = "sub/script.py"
    seen = node.run("", "beside")
    place = str(node.directory / "sub")
    argv = ["sub/script.py", *node.arguments]
    first, *rest = seen.stdout.splitlines()
    assert first == f"import {argv} {place} 1"
    assert rest[:2] == ["''", "script"]
    assert rest[2].startswith(f"['{place}', ")
    assert rest[2].count(place) == 1
    assert seen.stderr == "warning\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = = 1", "SyntaxError"),
        ("raise ValueError('two\\nlines' + 5000 * 'x')", "ValueError: two lines"),
        (None, "ModuleNotFoundError: No module named 'odd'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_reported_and_the_standby_can_be_used_all_the_same(
    node: Node, source: str | None, expected: str
) -> None:
    if source is not None:
        (node.directory / "odd.py").write_text(source)
    (node.directory / "script.py").write_text("import sys; print('decimal' in sys.modules, 'odd' in sys.modules)")
    heard = node.warm("odd", "decimal")
    assert len(heard.lines) == 2
    assert f"go on without a module: odd: {expected}" in heard.lines[0]
    assert len(heard.lines[0]) < 400
    assert "standby workers are ready (1, after" in heard.lines[1]
    pid = node.standbys.all[0].pid
    worker = node.promote()
    assert worker.pid == pid
    assert node.end(worker).stdout == "True False\n"


def test_a_failure_is_recorded_as_that_of_the_rank_it_became(node: Node) -> None:
    node.run("raise ValueError('boom')")
    record = json.loads((node.directory / "000003/00005/error.json").read_text())
    assert record["message"]["message"] == "ValueError: boom"
    ours = record["ftslurm"]
    assert (ours["rank"], ours["local_rank"], ours["round"], ours["node"]) == (5, 1, 3, "n1")
    assert ours["argv"] == ["script.py", *node.arguments]
    assert len(ours["exception"]["frames"]) == 1


def test_it_shows_its_stacks_when_it_hangs(node: Node) -> None:
    (node.directory / "script.py").write_text("import time\nopen('up', 'w').close()\ntime.sleep(60)\n")
    node.warm()
    worker = node.promote()
    until(lambda: (node.directory / "up").exists())
    signal.pidfd_send_signal(worker.pidfd, DUMP_SIGNAL)
    until(lambda: 'script.py", line 3 in <module>' in (node.directory / "000003/00005/hang.txt").read_text())


def test_user_signals_are_for_workers_and_do_not_end_it(node: Node) -> None:
    (node.directory / "script.py").write_text(
        "import signal; print(*(signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGUSR1, signal.SIGUSR2)))"
    )
    node.warm()
    pid = node.standbys.all[0].pid
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, number)
    worker = node.promote()
    assert worker.pid == pid
    assert node.end(worker).stdout == "True True\n"


def test_one_that_is_not_ready_is_killed_and_the_worker_is_started_anew(node: Node) -> None:
    (node.directory / "slow.py").write_text("import time; time.sleep(600)")
    (node.directory / "script.py").write_text("print('anew')")
    node.warm("slow", ready=False)
    standby = node.standbys.all[0]
    watch = os.dup(standby.pidfd)
    worker = node.promote()
    assert select.select([watch], [], [], 30)[0]
    os.close(watch)
    assert worker.pid != standby.pid
    assert node.end(worker).stdout == "anew\n"


def test_one_that_has_died_is_reported_once_and_the_worker_is_started_anew(node: Node) -> None:
    (node.directory / "script.py").write_text("print('anew')")
    heard = node.warm()
    os.kill(node.standbys.all[0].pid, signal.SIGSEGV)
    node.listen(heard, lambda: bool(heard.ended))
    assert heard.ended == [1]
    assert heard.lines[-1] == "a standby worker was killed by SIGSEGV"
    assert node.end(node.promote()).stdout == "anew\n"


def test_one_that_dies_unnoticed_is_not_given_the_order(node: Node) -> None:
    (node.directory / "script.py").write_text("print('anew')")
    node.warm()
    os.kill(node.standbys.all[0].pid, signal.SIGKILL)
    assert select.select([node.standbys.all[0].pidfd], [], [], 30)[0]
    assert node.end(node.promote()).stdout == "anew\n"


@pytest.mark.parametrize("changed", [{"PATH": "/usr/bin:/bin:/other"}, {f"BIG{n}": 100_000 * "x" for n in range(12)}])
def test_an_environment_that_does_not_fit_starts_the_worker_anew(node: Node, changed: dict[str, str]) -> None:
    (node.directory / "script.py").write_text("import os; print(len(os.environ['PATH']), len(os.environ))")
    node.warm()
    if "PATH" in changed:
        node.extra = changed
        worker = node.promote()
    else:
        worker = node.promote(**changed)
    seen = node.end(worker)
    variables = launch_of(node.settings, PART, 1, os.getpid(), {} if "PATH" in changed else changed).environment
    lengths = [int(number) for number in seen.stdout.split()]
    assert lengths[0] == len(variables["PATH"])
    assert lengths[1] - len(variables) in (0, 1)  # LC_CTYPE, Python's own


def test_it_ends_quietly_when_it_is_not_needed(node: Node) -> None:
    node.warm()
    standby = node.standbys.all[0]
    standby.channel.shutdown(2)
    heard = StandbyEvents()
    node.listen(heard, lambda: bool(heard.ended))
    assert heard.lines == ["a standby worker ended with code 0"]


def test_one_whose_module_closes_all_descriptors_ends_and_wakes_the_agent_no_more(node: Node) -> None:
    (node.directory / "closer.py").write_text("import os; os.closerange(3, 4096)")
    heard = node.warm("closer", ready=False)
    node.listen(heard, lambda: bool(heard.ended))
    assert select.select([node.standbys.fd], [], [], 0)[0] == []


def test_a_module_that_reads_the_rank_is_named_and_imported_by_workers_only(node: Node) -> None:
    (node.directory / "reader.py").write_text("import os; SEEN = os.environ.get('RANK', 'none')")
    (node.directory / "script.py").write_text(
        "import sys; print('decimal' in sys.modules, 'reader' in sys.modules); import reader; print(reader.SEEN)"
    )
    heard = node.warm("reader", "decimal")
    assert heard.unusable == heard.ended == [1]
    assert heard.lines == [
        "standby workers: reader reads RANK when it is imported, which is for workers only: it is not imported ahead"
    ]
    node.standbys.start(1)
    node.listen(heard, lambda: node.standbys.all[0].ready)
    pid = node.standbys.all[0].pid
    worker = node.promote()
    assert worker.pid == pid
    assert node.end(worker).stdout == "True False\n5\n"


def test_a_module_that_opens_a_gpu_is_named_and_imported_by_workers_only(node: Node) -> None:
    (node.directory / "opener.py").write_text(
        "from ftslurm import standby_imports\nstandby_imports._DEVICES = '/dev/zero'\nFILE = open('/dev/zero')\n"
    )
    heard = node.warm("opener")
    assert heard.unusable == [1]
    assert "opener opens /dev/zero when it is imported" in heard.lines[0]


def test_packages_installed_meanwhile_start_the_worker_anew_in_the_same_process(node: Node) -> None:
    packages = node.directory / "site-packages"
    packages.mkdir()
    (packages / "tool.py").write_text("VERSION = 1")
    node.extra = {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    (node.directory / "script.py").write_text(
        "import signal, sys\nprint('tool' in sys.modules, *sys.argv[1:], signal.getsignal(signal.SIGUSR1).name)\n"
        "import os, tool; print(tool.VERSION, os.environ['RANK'])\n"
    )
    for version, seen in ((1, "True"), (22, "False")):
        node.warm("tool")
        if version > 1:
            (packages / "tool.py").write_text(f"VERSION = {version}")
            (packages / "tool-2.dist-info").mkdir()
        pid = node.standbys.all[0].pid
        worker = node.promote()
        assert worker.pid == pid
        assert node.end(worker).stdout.splitlines()[-2:] == [f"{seen} a --standby x -- SIG_DFL", f"{version} 5"]


def test_it_is_the_kernels_first_victim_only_until_it_is_a_worker(node: Node) -> None:
    (node.directory / "script.py").write_text("print(open('/proc/self/oom_score_adj').read(), end='')")
    node.warm()
    own = Path("/proc/self/oom_score_adj").read_text()
    assert Path(f"/proc/{node.standbys.all[0].pid}/oom_score_adj").read_text() == "1000\n"
    assert node.end(node.promote()).stdout == own


def test_beside_ranks_its_imports_take_only_their_share_of_a_cpu(node: Node) -> None:
    (node.directory / "busy.py").write_text("import time\nwhile time.thread_time() < 0.2: pass")
    node.modules = ("busy", "decimal")
    node.workers.standbys = Standbys(node.settings, 2, node.workers.collect, time.monotonic)
    began = time.monotonic()
    node.standbys.start(1, share=0.1)
    node.listen(StandbyEvents(), lambda: node.standbys.all[0].ready)
    assert time.monotonic() - began > 1.0
    (node.directory / "script.py").write_text(
        "import sys; print([entry for entry in sys.meta_path if 'Brake' in repr(entry)])"
    )
    assert node.end(node.promote()).stdout == "[]\n"


def test_it_and_the_threads_of_its_imports_are_bound_to_the_cpus_of_its_local_rank(node: Node) -> None:
    (node.directory / "threads.py").write_text(
        "import os, threading\ncpus = []\n"
        "thread = threading.Thread(target=lambda: cpus.append(sorted(os.sched_getaffinity(0))))\n"
        "thread.start()\nthread.join()\n"
    )
    every = os.sched_getaffinity(0)
    node.cpus = (None, frozenset([max(every)]))
    ended = node.run("import os, threads; print(threads.cpus[0], sorted(os.sched_getaffinity(0)))", "threads")
    assert ended.stdout == f"[{max(every)}] [{max(every)}]\n"
    assert os.sched_getaffinity(0) == every


def test_cpus_that_the_job_has_lost_do_not_keep_a_worker_from_its_start(node: Node) -> None:
    node.cpus = (None, frozenset([1023]))
    ended = node.run("import os; print(os.sched_getaffinity(0))")
    assert (ended.returncode, ended.stdout) == (0, f"{os.sched_getaffinity(0)}\n")


def test_auto_imports_what_a_rank_has_listed_and_can_be_imported(node: Node) -> None:
    (node.directory / "torch.py").write_text("")
    node.extra = {"PYTHONPATH": str(node.directory)}
    Path(node.settings.imports_list).write_text("torch\nmade.by.another\ndecimal")
    (node.directory / "script.py").write_text("import sys; print('torch' in sys.modules, 'decimal' in sys.modules)")
    heard = node.warm("auto")
    assert heard.lines == []
    assert node.end(node.promote()).stdout == "True True\n"


def test_a_script_that_sets_variables_is_not_warmed_up_unless_its_imports_set_them(node: Node) -> None:
    (node.directory / "torch.py").write_text("import os; os.environ['BY_TORCH'] = '1'")
    node.extra = {"PYTHONPATH": str(node.directory)}
    (node.directory / "script.py").write_text("")
    by_torch, by_script = (f"BY_TORCH={crc32(value):08x}" for value in (b"1", b"2"))
    Path(node.settings.imports_list).write_text(f"torch\n\n{by_torch}")
    assert node.warm("auto").ended == []
    for variables, refused in ((f"{by_torch}\nHF_HOME=12345678", "HF_HOME"), (by_script, "BY_TORCH")):
        node.standbys.drop_all()
        Path(node.settings.imports_list).write_text(f"torch\n\n{variables}")
        heard = node.warm("auto")
        assert heard.refused
        assert len(heard.lines) == 1
        assert f"no standby workers: the script sets {refused}," in heard.lines[0]


def test_a_module_that_walks_over_the_environment_is_imported_ahead(node: Node) -> None:
    # As numpy does: the run's own variables, which are the same for all rounds, are no sign that it reads the rank.
    (node.directory / "torch.py").write_text("import os; NAMES = [k for k, v in os.environ.items() if v]")
    node.extra = {"PYTHONPATH": str(node.directory)}
    (node.directory / "script.py").write_text("import sys; print('torch' in sys.modules)")
    Path(node.settings.imports_list).write_text("torch\n\n")
    heard = node.warm("auto")
    assert heard.lines == []
    assert node.end(node.promote()).stdout == "True\n"


CHANGED = """
import os, sys
sys.path.insert(0, {root!r})
from ftslurm.monitor import flight_server
from ftslurm import round_variables
flight_server._set_variables(object(), "/tmp")
os.environ["MINE"] = "1"
print(sorted(round_variables.changed_variables()))
round_variables.ordered = dict(os.environ, MINE="0")
print(sorted(round_variables.changed_variables()))
"""


def test_what_ftslurm_or_the_order_of_a_standby_has_set_is_not_taken_for_the_scripts() -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", CHANGED.format(root=root)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert done.stdout == "['MINE']\n['MINE']\n", done.stderr


def test_an_agent_without_the_option_does_not_even_load_this() -> None:
    code = "import ftslurm.agent.node_agent, ftslurm.worker, sys; print([n for n in sys.modules if 'standby' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['ftslurm.agent.standby_slots']\n"


# In a run

PROMOTED = """
import os, sys, time
open(f"up{os.environ['FTSLURM_ROUND']}.{os.environ['RANK']}", "w").write(f"{os.getpid()} {'decimal' in sys.modules}")
while os.environ["FTSLURM_ROUND"] == "1" or not os.path.exists("enough"):
    time.sleep(0.05)
"""
ARGUMENTS = ("--nnodes", "2", "--local-nodes", "3", "--nproc-per-node", "2", "--warm-imports", "decimal")


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
    node_records = [json.loads(path.read_text()) for path in run.run_dir.glob("nodes/*.json")]
    return {record["node"]: record["pid"] for record in node_records}


def test_the_standbys_of_a_spare_become_the_workers_when_it_replaces_a_lost_node(run: Started) -> None:
    run.until(lambda: "standby workers are ready (2, after" in run.err)
    run.until(lambda: up(run, 1))
    standbys = waiting(run)
    assert len(standbys) == 2
    os.kill(guardian_of(agents(run)["local1"]), signal.SIGKILL)
    run.until(lambda: up(run, 2))
    (run.directory / "enough").touch()
    assert run.wait() == 0, run.err
    written = [(run.directory / f"up2.{rank}").read_text().split() for rank in range(4)]
    assert [imported for _, imported in written] == ["False", "False", "True", "True"]
    assert {int(pid) for pid, _ in written[2:]} == standbys
    assert waiting(run) == set()


def test_a_standby_that_is_killed_comes_back_and_disturbs_no_other(run: Started) -> None:
    run.until(lambda: "standby workers are ready (2, after" in run.err)
    run.until(lambda: up(run, 1))
    before = waiting(run)
    os.kill(min(before), signal.SIGKILL)
    run.until(lambda: len(waiting(run) - {min(before)}) == 2)
    run.until(lambda: "a standby worker was killed by SIGKILL" in run.err)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert run.marked() == []
    assert len(list(run.run_dir.glob("rounds/*"))) == 1


def test_standbys_go_with_their_agent(run: Started) -> None:
    run.until(lambda: "standby workers are ready (2, after" in run.err)
    run.until(lambda: up(run, 1))
    os.kill(agents(run)["local2"], signal.SIGKILL)
    run.until(lambda: waiting(run) == set())
    assert not (run.directory / "up2.0").exists()


# On nodes that take part

RESTARTED = """
import os, sys, time
import ftslurm, torch
first = os.environ["FTSLURM_ROUND"] == "1"
os.environ.update(SET)
rank = os.environ["RANK"]
open(f"up{os.environ['FTSLURM_ROUND']}.{rank}", "w").write(f"{os.getpid()} {BEFORE}")
ftslurm.progress(0)
time.sleep(SLOW)
ftslurm.progress(1)
while first and not os.path.exists("go"):
    time.sleep(0.05)
sys.exit(first and rank == "1")
""".replace("\nimport ftslurm", "\nSET, SLOW = {}, 0\nBEFORE = 'torch.learned' in sys.modules\nimport ftslurm")


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    runs: list[Started] = []
    torch = tmp_path / "site-packages" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("from torch import learned")
    (torch / "learned.py").write_text("import os; open(f'learned.{os.getpid()}', 'w').close()")
    (tmp_path / "train.py").write_text(RESTARTED)

    def start(*options: str) -> Started:
        place = {"PWD_MARK": str(tmp_path), "PYTHONPATH": str(torch.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        runs.append(Started(tmp_path, "--nproc-per-node", "2", *options, "train.py", **place))
        return runs[-1]

    yield start
    for run in runs:
        for pid, _ in run.marked():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        run.process.wait()


def test_the_ranks_of_the_next_round_have_what_the_last_ones_had_imported(
    restarted: Callable[..., Started],
) -> None:
    run = restarted()
    run.until(lambda: len(waiting(run)) == 2)
    standbys = waiting(run)
    run.until(lambda: all(is_ready(run, pid) for pid in standbys))
    (run.directory / "go").touch()
    assert run.wait() == 0, run.err
    written = [(run.directory / f"up2.{rank}").read_text().split() for rank in range(2)]
    assert {int(pid) for pid, _ in written} == standbys
    assert [before for _, before in written] == ["True", "True"]
    assert "standby" not in run.err
    assert run.marked() == []


AGAIN = """
round_ = os.environ["FTSLURM_ROUND"]
while round_ == "2" and not os.path.exists("go2"):
    time.sleep(0.05)
sys.exit(round_ != "3")
"""


def test_the_round_after_that_is_started_as_fast(restarted: Callable[..., Started], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESTARTED.replace('sys.exit(first and rank == "1")\n', AGAIN))
    run = restarted()

    def ranks(round_: int) -> set[int]:
        files = (run.directory / f"up{round_}.{rank}" for rank in range(2))
        return {int(file.read_text().split()[0]) for file in files if file.exists() and file.read_text()}

    def standbys(round_: int) -> set[int]:
        return waiting(run) - ranks(round_)

    for round_, go in ((1, "go"), (2, "go2")):
        run.until(lambda at=round_: len(ranks(at)) == 2)  # type: ignore[misc]
        run.until(lambda at=round_: len(standbys(at)) == 2)  # type: ignore[misc]
        ready = standbys(round_)
        run.until(lambda ready=ready: all(is_ready(run, pid) for pid in ready))  # type: ignore[misc]
        (run.directory / go).touch()
        run.until(lambda at=round_: len(ranks(at + 1)) == 2)  # type: ignore[misc]
        assert ranks(round_ + 1) == ready
    assert run.wait() == 0, run.err
    assert "no standby" not in run.err


def test_standbys_that_are_not_needed_any_more_are_no_processes_that_ranks_left(
    restarted: Callable[..., Started], tmp_path: Path
) -> None:
    # Large, so that it takes the kernel a while to end one.
    learned = tmp_path / "site-packages/torch/learned.py"
    learned.write_text("kept = b'x' * (400 << 20)\n" + learned.read_text())
    (tmp_path / "train.py").write_text(RESTARTED.replace('sys.exit(first and rank == "1")\n', ""))
    run = restarted()
    run.until(lambda: len(waiting(run)) == 2)
    run.until(lambda: all(is_ready(run, pid) for pid in waiting(run)))
    (run.directory / "go").touch()
    assert run.wait() == 0, run.err
    assert "left behind" not in run.err


def test_without_standbys_every_rank_is_started_anew(restarted: Callable[..., Started]) -> None:
    run = restarted("--warm-imports", "off")
    run.until(lambda: (run.directory / "up1.0").exists() and (run.directory / "up1.1").exists())
    (run.directory / "go").touch()
    assert run.wait() == 0, run.err
    assert (run.directory / "up2.0").read_text().endswith("False")


def test_a_slow_second_step_is_waited_for(restarted: Callable[..., Started], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESTARTED.replace("= {}, 0", "= {}, 4"))
    run = restarted()
    run.until(lambda: len(waiting(run)) == 2)
    (run.directory / "go").touch()
    assert run.wait() == 0, run.err


def test_a_script_that_sets_a_variable_before_its_imports_is_started_anew_and_the_user_is_informed(
    restarted: Callable[..., Started], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(RESTARTED.replace("= {}, 0", "= {'HF_HOME': '/data'}, 0"))
    run = restarted()
    run.until(lambda: "no standby workers: the script sets HF_HOME," in run.err)
    run.until(lambda: waiting(run) == set())
    (run.directory / "go").touch()
    assert run.wait() == 0, run.err
    assert (run.directory / "up2.0").read_text().endswith("False")
    assert run.err.count("no standby workers") == 1


TRAINS = """
import os, sys, time
before = "torch.distributed" in sys.modules
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = os.environ["FTSLURM_ROUND"] == "1"
def step():
    model(torch.ones(2)).sum().backward()
    optimizer.step()
step()
import last  # and torch has imported all that its first step needs
step()
place = os.path.dirname(os.environ["FTSLURM_COLLECTIVES"])
open(f"up{os.environ['FTSLURM_ROUND']}.{os.environ['RANK']}", "w").write(f"{os.getpid()} {before} {os.listdir(place)}")
while first and not os.path.exists("go"):
    time.sleep(0.05)
if first and dist.get_rank() == 1:
    sys.exit(1)
step()
dist.destroy_process_group()
os._exit(0)  # torch's own threads abort the end of Python now and then
"""


def test_ranks_with_process_groups_come_from_standbys_and_have_their_recorder(
    tmp_path: Path, restarted: Callable[..., Started]
) -> None:
    pytest.importorskip("torch")
    packages = tmp_path / "site-packages"
    shutil.rmtree(packages / "torch")
    (packages / "last.py").write_text("import os; open(f'learned.{os.getpid()}', 'w').close()")
    (tmp_path / "train.py").write_text(TRAINS)
    run = restarted()
    run.until(lambda: len(waiting(run)) == 2, seconds=90)
    standbys = waiting(run)
    # At idle priority and with a small share of the time, they import torch.
    run.until(lambda: all(is_ready(run, pid) for pid in standbys), seconds=300)
    (run.directory / "go").touch()
    assert run.wait(120) == 0, run.err
    parts = [(run.directory / f"up2.{rank}").read_text().split(maxsplit=2) for rank in range(2)]
    assert {int(pid) for pid, *_ in parts} == standbys
    assert [before for _, before, _ in parts] == ["True", "True"]
    assert all("'collectives.sock'" in files for *_, files in parts)
    assert "standby" not in run.err


def test_standbys_beside_ranks_go_with_their_agent(restarted: Callable[..., Started]) -> None:
    run = restarted()
    run.until(lambda: len(waiting(run)) == 2)
    before = waiting(run)
    os.kill(next(iter(agents(run).values())), signal.SIGKILL)
    run.until(lambda: not before & waiting(run))
    run.process.send_signal(signal.SIGTERM)
    run.wait()
    assert run.marked() == []


def is_ready(run: Started, pid: int) -> bool:
    """Return whether the process has done its imports and waits for its order."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S" and (run.directory / f"learned.{pid}").exists()

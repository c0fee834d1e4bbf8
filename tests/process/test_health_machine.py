"""The host's checks on this machine: real zombies, processes that hang in the kernel, leftovers; else it is well."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from test_hanging_directory import Directory, shared

from ftslurm.health import catalog
from ftslurm.health.check import BACKGROUND, QUICK, SETS, Check, CheckedPath, Context
from ftslurm.health.checks import host_limits, host_processes
from ftslurm.health.run import run
from ftslurm.health.verdict import Json, Verdict
from ftslurm.records.health import FAIL, OK, WARN

shared = shared
GROUPS = ("host_", "storage_", "own_")


def own_checks(set_: str) -> list[Check]:
    modules = [name for name in catalog.MODULES if name.startswith(GROUPS)]
    return catalog.chosen([import_module(f"ftslurm.health.checks.{name}").CHECK for name in modules], set_)


def look(module: Any, before: Json | None = None, **more: Any) -> Verdict:
    name = module.CHECK.name
    (verdict,) = run([module.CHECK], Context("n1", **more), {} if before is None else {name: before}).verdicts
    return verdict


@pytest.mark.parametrize("set_", SETS)
def test_a_healthy_machine_has_no_findings(set_: str, tmp_path: Path) -> None:
    checks = own_checks(set_)
    assert len(checks) >= 7
    paths = (CheckedPath(str(tmp_path), "run directory"), CheckedPath("/usr", "data"))
    # A name space of its own: what other programs do on this machine is not to be judged.
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", HEALTHY, set_, str(tmp_path)]
    if os.geteuid() == 0 and shutil.which("unshare"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        bad = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    else:
        looked = run(checks, Context("n1", paths=paths, busy=set_ == BACKGROUND), {})
        bad = [str(verdict) for verdict in looked.verdicts if verdict.status != OK]
    assert bad == []


HEALTHY = """
import sys
from test_health_machine import own_checks
from ftslurm.health.check import CheckedPath, Context
from ftslurm.health.run import run
set_, directory = sys.argv[1:]
paths = (CheckedPath(directory, "run directory"), CheckedPath("/usr", "data"))
for verdict in run(own_checks(set_), Context("n1", paths=paths, busy=set_ == "background"), {}).verdicts:
    print(verdict.status, verdict.check, verdict.summary, verdict.findings)
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(Path(__file__).parent), *sys.path]))


def test_a_run_in_the_background_costs_little() -> None:
    checks = own_checks(BACKGROUND)
    context = Context("n1", busy=True)
    run(checks, context, {})
    before = os.times()
    run(checks, context, {})
    after = os.times()
    took = sum(getattr(after, name) - getattr(before, name) for name in ("user", "system"))
    took += after.children_user - before.children_user + after.children_system - before.children_system
    # Once a minute that is far below a thousandth of a core; the machine may be busy otherwise.
    assert took < 0.2, took


def test_zombies_are_counted_with_their_parent() -> None:
    code = (
        "import os, sys\n"
        "for pid in [os.fork() or os._exit(0) for _ in range(250)]: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
        "for _ in range(250): os.wait()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        # It descends from this look's parent, and would be its own.
        verdict = elsewhere("host_processes")
        parent.communicate()
    text = next(finding["text"] for finding in verdict["findings"] if finding["subject"] == "zombies")
    assert f"250 of them by process {parent.pid} (python" in text and verdict["status"] == WARN


def elsewhere(module: str, **context: Any) -> Json:
    """Look from a process that is not a parent of what is looked at: a child of init's."""
    import json

    code = (
        "import os, sys, json; from dataclasses import asdict; from importlib import import_module\n"
        "from ftslurm.health.run import run; from ftslurm.health.check import Context\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); os.close(read)\n"
        "    if os.fork(): os._exit(0)\n"
        "    try:\n"
        f"        check = import_module('ftslurm.health.checks.{module}').CHECK\n"
        f"        looked = run([check], Context('n1', **{context!r}), {{}})\n"
        "        os.write(write, json.dumps(asdict(looked.verdicts[0])).encode())\n"
        "    finally:\n"
        "        os._exit(0)\n"
        "os.close(write); os.wait(); sys.stdout.write(os.fdopen(read).read())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_process_that_waits_in_vfork_does_not_move_and_hangs() -> None:
    with vforked() as parent:
        assert Path(f"/proc/{parent.pid}/stat").read_text().split()[2] == "D"
        before = look(host_processes)
        found = [finding for finding in before.findings if finding.subject.startswith(f"process {parent.pid} ")]
        assert [finding.status for finding in found] == [WARN], before
        assert found[0].text.startswith("hangs in the kernel") and "(state D), for 2 s at least" in found[0].text
        # Two looks while ranks run know for how long.
        assert before.facts is not None
        context = {"busy": True, "own_pid": 1 << 30}
        facts = {**before.facts, "at_s": before.facts["at_s"] - 100}
        looked = [one for one in elsewhere_facts(context) if one["pid"] == parent.pid]
        assert looked and looked[0]["ran"] == facts["hanging"][0]["ran"]


def elsewhere_facts(context: Json) -> list[Json]:
    return list(elsewhere("host_processes", **context)["facts"]["hanging"])


class vforked:
    """A process whose vforked child sleeps: the parent is in uninterruptible sleep until that ends."""

    def __enter__(self) -> subprocess.Popen[bytes]:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler here")
        source = b"#include <unistd.h>\nint main(void) { if (vfork() == 0) { sleep(600); _exit(0); } return 0; }\n"
        self.directory = Path(os.environ.get("TMPDIR", "/tmp")) / f"ftslurm-test-{os.getpid()}"
        self.directory.mkdir()
        subprocess.run([compiler, "-x", "c", "-o", str(self.directory / "hangs"), "-"], input=source, check=True)
        self.process = subprocess.Popen([str(self.directory / "hangs")], start_new_session=True)
        deadline = time.monotonic() + 5
        while Path(f"/proc/{self.process.pid}/stat").read_text().split()[2] != "D":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.process

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.directory)


def test_a_process_in_a_hanging_filesystem_is_found_with_the_place_in_the_kernel(shared: Directory) -> None:
    os.listdir(shared.path)
    shared.hang("hard")
    with subprocess.Popen(["ls", str(shared.path)], stdout=subprocess.DEVNULL) as reader:
        try:
            deadline = time.monotonic() + 10
            while "request_wait" not in Path(f"/proc/{reader.pid}/wchan").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            # Until then it sleeps like one that waits for a terminal; now it can neither go on nor end.
            reader.kill()
            verdict = look(host_processes)
            (finding,) = [one for one in verdict.findings if one.subject == f"process {reader.pid} (ls)"]
            assert finding.status == WARN and finding.text.startswith("hangs in the kernel"), finding
        finally:
            shared.answer()


def test_leftovers_are_reported_only_where_slurm_shows_that_they_are(tmp_path: Path) -> None:
    # A process that says that it is slurmd or slurmstepd, as far as /proc goes.
    names = {"slurmd": tmp_path / "slurmd", "slurmstepd": tmp_path / "slurmstepd"}
    for path in names.values():
        shutil.copy("/bin/sleep", path)
    environ = {**os.environ, "SLURM_JOB_ID": "990001", "SLURM_STEP_ID": "0"}
    with started(["sleep", "601"], env=environ) as left:
        assert left.pid not in leftovers()
        with started([str(names["slurmd"]), "602"]):
            assert left.pid in leftovers()
            assert left.pid not in leftovers(own_pid=left.pid)
            with started(["slurmstepd: [990001.0]", "603"], executable=str(names["slurmstepd"])):
                assert left.pid not in leftovers()
                assert left.pid not in leftovers(environ={"SLURM_JOB_ID": "990001"})
            with started(["slurmstepd: [990001.1]", "604"], executable=str(names["slurmstepd"])):
                assert "step 990001.0, which is over" in leftovers()[left.pid]


def leftovers(**context: Any) -> dict[int, str]:
    found = elsewhere("host_processes", **context)["findings"]
    return {
        int(finding["subject"].split()[1]): finding["text"]
        for finding in found
        if finding["subject"].startswith("process ") and "left over from" in finding["text"]
    }


class started:
    """A process for a while."""

    def __init__(self, command: list[str], **more: Any) -> None:
        self.process = subprocess.Popen(command, start_new_session=True, **more)

    def __enter__(self) -> subprocess.Popen[bytes]:
        time.sleep(0.05)
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def limited() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("limited")
def test_the_limits_are_those_that_ranks_will_inherit() -> None:
    verdict = look(host_limits)
    found = [finding.text for finding in verdict.findings if finding.subject == "open files"]
    assert found == ["a process may open 256 files, expected at least 1024"]


def test_a_check_may_be_killed_at_any_time_and_nothing_stays(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)
    try:
        for wait_s in (0.0, 0.002, 0.01, 0.03, 0.1):
            code = (
                "import sys; from test_health_machine import own_checks; from ftslurm.health.run import run\n"
                "from ftslurm.health.check import CheckedPath, Context\n"
                "print(flush=True)\n"
                "run(own_checks('thorough'), Context('n1', paths=(CheckedPath(sys.argv[1], 'run directory'),)), {})"
            )
            looking = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
            assert looking.stdout is not None
            looking.stdout.readline()
            time.sleep(wait_s)
            looking.kill()
            looking.wait()
        deadline = time.monotonic() + 10
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    assert time.monotonic() < deadline, "a check outlives its look"
                    time.sleep(0.02)
            except ChildProcessError:
                break
    finally:
        libc.prctl(36, 0, 0, 0, 0)
    run(own_checks("thorough"), Context("n1", paths=(CheckedPath(str(tmp_path), "run directory"),)), {})
    assert list(tmp_path.iterdir()) == []


def test_the_quick_set_takes_less_than_a_second_here() -> None:
    times = [run(own_checks(QUICK), Context("n1", hurry=True), {}).took_s for _ in range(3)]
    assert min(times) < 1.0, times
    assert FAIL not in {verdict.status for verdict in run(own_checks(QUICK), Context("n1"), {}).verdicts}

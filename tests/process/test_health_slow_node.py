"""A node where everything takes long is not unhealthy: no CPU, a load of 40, a slow filesystem under the checks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_hanging_directory import Directory, shared
from test_run import Start, Started, start

from ftslurm.health.check import QUICK, Check, Context, never
from ftslurm.health.run import run
from ftslurm.health.verdict import Json, Judgement
from ftslurm.records.health import FAIL, UNKNOWN
from tests.nvml import standin
from tests.nvml.standin import Standin

start, shared = start, shared
ROOT = Path(__file__).resolve().parents[2]
PERIOD_US, QUOTA_US = 100_000, 5_000
HOGS = 40
# A healthy device whose driver needs a third of a second of CPU: at a twentieth of a core, six seconds.
BUSY_DEVICE = """
import time
from ftslurm.health.check import Check
from ftslurm.health.verdict import Judgement

def fetch(context):
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    return {}

CHECK = Check("site-device", "", frozenset(("quick",)), 2.0, fetch, lambda *facts: Judgement("well"))
"""


@pytest.fixture
def site(tmp_path: Path) -> str:
    """A directory for PYTHONPATH that adds this check, as an installed package would."""
    metadata = tmp_path / "site" / "site_checks-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: site-checks\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[ftslurm.health]\ndevice = site_checks:CHECK\n")
    (tmp_path / "site" / "site_checks.py").write_text(BUSY_DEVICE)
    return str(tmp_path / "site")


@pytest.fixture
def little_cpu() -> Iterator[tuple[str, ...]]:
    """Give a command that runs another one with a twentieth of a core, by a cgroup of version 1 or 2."""
    name = f"ftslurm-test-{os.getpid()}"
    for parent, limits in (
        (
            Path("/sys/fs/cgroup/cpu"),
            {"cpu.cfs_period_us": f"{PERIOD_US}", "cpu.cfs_quota_us": f"{QUOTA_US}"},
        ),
        (Path("/sys/fs/cgroup"), {"cpu.max": f"{QUOTA_US} {PERIOD_US}"}),
    ):
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for file, value in limits.items():
                (group / file).write_text(value)
        except OSError:
            group.rmdir()
            continue
        yield ("/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
        for pid in (group / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(pid)
        group.rmdir()
        return
    pytest.skip("no cgroup can be made here that limits the CPU")


@pytest.fixture
def load() -> Iterator[None]:
    """Keep all CPUs busy with forty processes."""
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    # Each in a session of its own: Linux gives each session its share of a CPU (sched(7), autogroup).
    hogs = [subprocess.Popen(command, start_new_session=True) for _ in range(HOGS)]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


def assert_nothing_was_found(job: Started) -> None:
    """What else is wrong on this machine (of other tests, in its kernel's log) is no more than a warning."""
    assert not [
        text for text in ("health: fail", "no answer within", "check run failed", "unhealthy") if text in job.err
    ]
    (record,) = (job.run_dir / "nodes").glob("*.json")
    health: dict[str, Any] = json.loads(record.read_text())["health"]
    assert health is not None and health["set"] == "quick"
    assert [one["check"] for one in health["findings"] if one["check"] == "site-device"] == []
    assert not (job.directory / "ftslurm-runs" / f"excluded-{os.geteuid()}").exists()


@pytest.mark.usefixtures("load")
def test_with_a_load_of_forty_nothing_is_found_and_the_job_starts(start: Start, site: str) -> None:
    job = start("", "--health", "act", PYTHONPATH=site)
    assert job.wait(300) == 0, job.err
    assert_nothing_was_found(job)


def test_with_a_twentieth_of_a_core_nothing_is_found_and_the_job_starts(
    start: Start,
    site: str,
    little_cpu: tuple[str, ...],
) -> None:
    job = start("", "--health", "act", before=little_cpu, PYTHONPATH=site)
    assert job.wait(300) == 0, job.err
    assert_nothing_was_found(job)


def test_with_a_twentieth_of_a_core_a_driver_that_hangs_is_found(tmp_path: Path, little_cpu: tuple[str, ...]) -> None:
    if standin.compiler() is None:
        pytest.skip("no C compiler for the NVML stand-in")
    pytest.importorskip("pynvml")
    node = Standin(standin.build(tmp_path / "nvml"), tmp_path / "gpus")
    node.answer(["* hang nvmlInitWithFlags"])
    asked = {"checks": ["gpu-count", "gpu-ecc"], "limit_s": 0.5, "before": {}, "context": {}}
    done = subprocess.run(
        [*little_cpu, sys.executable, "-m", "tests.nvml.run_checks"],
        input=json.dumps(asked),
        cwd=ROOT,
        env=node.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    found = {one["check"]: (one["status"], one["summary"]) for one in json.loads(done.stdout)["verdicts"]}
    text = "the NVIDIA driver hangs: no answer within 0.5 s in nvmlInit"
    assert found == {"gpu-count": ("fail", text), "gpu-ecc": ("unknown", "not read: see gpu-count")}


def test_a_library_that_is_imported_slowly_is_no_fault_of_its_device() -> None:
    fetch = lambda context: time.sleep(600)  # noqa: E731
    slow = Check("gpu", "", frozenset((QUICK,)), 0.5, fetch, lambda *facts: Judgement(""), device="NVML")  # type: ignore[arg-type]
    (verdict,) = run([slow], Context("n1"), {}).verdicts
    assert verdict.status == UNKNOWN
    assert "no answer within 1 s, but it is in no call of NVML" in verdict.summary


def test_a_time_out_that_hits_a_check_of_nothing_but_the_kernels_memory_too_is_no_failure() -> None:
    slow_s = 0.5

    def sleeps(context: Context) -> Json:
        time.sleep(slow_s)
        return {}

    def device(limit_s: float) -> Check:
        return Check("device", "", frozenset((QUICK,)), limit_s, lambda context: time.sleep(600), judge)  # type: ignore[arg-type]

    def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
        return Judgement("well")

    memory = Check("memory", "", frozenset((QUICK,)), 0.1, sleeps, judge, may_hang=never)
    (hangs, _) = run([device(0.2), memory], Context("n1"), {}).verdicts
    assert hangs.status == UNKNOWN
    assert "memory, which reads nothing that can hang, took" in hangs.summary
    assert run([device(0.2)], Context("n1"), {}).verdicts[0].status == FAIL


def test_with_packages_on_a_filesystem_that_takes_50_ms_for_each_call_nothing_is_found(
    start: Start,
    shared: Directory,
    site: str,
) -> None:
    # Python looks there for each module that it imports.
    shutil.copytree(site, shared.path / "site")
    shared.fault("slow 0.05")
    job = start("", "--health", "act", PYTHONPATH=str(shared.path / "site"))
    assert job.wait(300) == 0, job.err
    assert_nothing_was_found(job)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "def fetch",
            "time.sleep(7)\ndef fetch",
            "health: still being checked: the checks are being loaded, from a slow filesystem perhaps",
        ),
        ("    end =", "    time.sleep(7)\n    end =", "health: still being checked: no answer yet from site-device"),
    ],
    ids=["loading", "checking"],
)
def test_after_5_s_the_pending_checks_are_reported(start: Start, site: str, old: str, new: str, expected: str) -> None:
    code = BUSY_DEVICE.replace(old, new, 1).replace("2.0, fetch", "20.0, fetch")
    Path(site, "site_checks.py").write_text(code)
    job = start("", "--health", "act", PYTHONPATH=site)
    job.until(lambda: expected in job.err)
    assert job.wait() == 0, job.err

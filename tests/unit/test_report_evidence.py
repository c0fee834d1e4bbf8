"""What agent and worker saw around a failure, from the error record to the report, whatever stands in it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.dataclasses import replace
from ftslurm.failures import plugins
from ftslurm.failures.causes import PRIMARY, ROWS, Cause
from ftslurm.records.error import HostResources, OomKills, Space
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.text import render

MIB = 1 << 20
KILL = OomKills(
    recent=1,
    in_round=2,
    window_s=11.5,
    source="memory.events of step_0",
    limit=400 * MIB,
    peak=400 * MIB,
    limit_hits=7,
    at_limit=True,
)
AROUND = HostResources(
    oom=KILL,
    node_oom_kills=1,
    memory_total=64 << 30,
    least_available=50 << 30,
    spaces=(Space("/dev/shm", 60 * MIB, 64 * MIB, 9, 10, least_free=0),),
    core_limit=0,
    core_pattern="core",
)


def seen(run: RunBuilder, rank: int, **facts: Any) -> RunBuilder:
    """Let the error record of that rank hold these facts too."""
    key = (len(run.history), rank)
    run.errors[key] = replace(run.errors[key], **facts)
    return run


def report(run: RunBuilder, **how: Any) -> dict[str, Any]:
    path = run.stop().close("failed", "no restarts").write()
    result = analyse(gather(path, now_ns=run.now_ns + 10**9, **how))
    json.dumps(result)
    return result


def test_a_kill_that_the_cgroup_counted_is_the_kernels_and_names_the_counter(tmp_path: Path) -> None:
    run = seen(RunBuilder(tmp_path).round().fail(1, signal="SIGKILL"), 1, host_resources=AROUND)
    result = report(run)
    cause = result["cause"]
    assert (cause["cause"], cause["restart"]) == ("memory-limit", "same-node")
    assert cause["evidence_lines"] == [
        "cgroup: 1 out-of-memory kill in the last 12 s before its end (memory.events of step_0)",
        "cgroup: a memory limit was reached in those seconds",
        "cgroup memory: limit 400 MiB, peak 400 MiB, limit hit 7 times in this round",
        "host memory: at least 50 GiB of 64 GiB available in those seconds (MemAvailable)",
        "/dev/shm: 0 bytes of 64 MiB free shortly before, 60 MiB after its end",
    ]
    text = render(result, zone=time.gmtime)
    assert "\n\nevidence\n  cgroup: 1 out-of-memory kill in the last 12 s" in text


def test_without_the_agents_part_the_same_end_stays_unexplained(tmp_path: Path) -> None:
    cause = report(RunBuilder(tmp_path).round().fail(1, signal="SIGKILL"))["cause"]
    assert cause["cause"] == "sigkill"
    assert "neither proved nor excluded" in cause["evidence_lines"][0]


def test_the_worker_saw_dev_shm_full_while_it_still_held_its_part(tmp_path: Path) -> None:
    bus = RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. ")
    run = seen(
        RunBuilder(tmp_path).round().fail(1, bus),
        1,
        host_resources=HostResources(spaces=(Space("/dev/shm", 0, 64 * MIB),)),
    )
    cause = report(run)["cause"]
    assert (cause["cause"], cause["evidence_lines"]) == ("shm-full", ["/dev/shm: 0 bytes of 64 MiB free"])


def test_a_full_disk_behind_the_trainers_exception_is_named_in_the_first_lines(tmp_path: Path) -> None:
    saving = RuntimeError("checkpoint 7 was not saved")
    saving.__cause__ = OSError(28, "No space left on device")
    cause = report(RunBuilder(tmp_path).round().fail(1, saving))["cause"]
    assert cause["cause"] == "disk-full"
    assert (
        cause["what"] == "RuntimeError: checkpoint 7 was not saved (from OSError: [Errno 28] No space left on device)"
    )


def test_notes_and_members_of_groups_are_read(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(1, ValueError("group"))
    exception = run.errors[1, 1].exception
    assert exception is not None
    member = replace(exception, type="OSError", message="[Errno 122] Disk quota exceeded")
    group = replace(exception, type="ExceptionGroup", message="shards (2 sub-exceptions)", exceptions=(member,))
    seen(run, 1, exception=replace(group, notes=("while saving step 7", "\x1b[31mred")))
    cause = report(run)["cause"]
    assert cause["cause"] == "quota"
    assert cause["evidence_lines"] == [
        "in its group OSError: [Errno 122] Disk quota exceeded at /home/ann/lm/train.py:42 in train_step",
        "note: while saving step 7",
        "note: \x1b[31mred",
    ]
    assert "\x1b" not in render(report(run), zone=time.gmtime)


def test_open_sections_and_cudas_memory_are_reported(tmp_path: Path) -> None:
    full = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    facts = {"sections": (("step", 3.25),), "cuda": {"allocated": 70 * MIB, "free on the device": 3}}
    cause = report(seen(RunBuilder(tmp_path).round().fail(1, full), 1, **facts))["cause"]
    assert cause["evidence_lines"] == [
        "open sections: 'step' for 3.25 s",
        "CUDA memory when it failed: allocated 70 MiB, free on the device 3 bytes",
    ]


def test_a_late_import_error_is_no_start(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(1, ModuleNotFoundError("No module named 'x'"), after_s=700)
    assert report(run)["cause"]["cause"] == "exception"


def test_each_failure_has_the_restart_that_makes_sense(tmp_path: Path) -> None:
    lost = report(RunBuilder(tmp_path / "a").round().lose("n2"))["cause"]
    assert lost["restart"] == "other-node"
    at_start = report(RunBuilder(tmp_path / "b").round().fail(1, SyntaxError("invalid syntax")))
    assert at_start["cause"]["restart"] == "pointless"
    assert "A restart alone is pointless." in " ".join(render(at_start, zone=time.gmtime).split())


def test_the_report_judges_by_added_rows_and_names_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Cause("storage", "the site's storage failed", PRIMARY, lambda e: "WEKA" in e.message)
    monkeypatch.setattr(plugins, "load", lambda: ((mine, *ROWS), [("ftslurm.causes: bad", "site:bad: no such name")]))
    result = report(RunBuilder(tmp_path).round().fail(1, OSError("WEKA is gone")))
    assert result["cause"]["cause"] == "storage"
    assert result["problems"] == [{"file": "ftslurm.causes: bad", "reason": "site:bad: no such name"}]


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x" * 10_000,
    [],
    {},
    [[]],
    [None],
    "\ud800",
]


def test_whatever_stands_there_is_read_or_left_out(tmp_path: Path) -> None:
    pick = random.Random(3)

    def spoil(value: Any) -> Any:
        if pick.random() < 0.25:
            return pick.choice(JUNK)
        if isinstance(value, dict):
            return {name: spoil(each) for name, each in value.items()}
        return [spoil(each) for each in value] if isinstance(value, list) else value

    for number in range(60):
        run = RunBuilder(tmp_path / str(number)).round().fail(1, signal="SIGKILL")
        run = seen(run, 1, host_resources=AROUND, sections=(("a", 1.0),), cuda={"x": 1}).stop().close("failed", "x")
        path = run.write()
        file = path / "rounds/000001/ranks/00001/error.json"
        value = json.loads(file.read_text())
        names = ("host_resources", "sections", "cuda")
        value["ftslurm"] |= {name: spoil(value["ftslurm"][name]) for name in names}
        file.write_text(json.dumps(value))
        result = analyse(gather(path, now_ns=run.now_ns))
        assert result["cause"]["rank"] == 1
        assert {problem["file"] for problem in result["problems"]} <= {"rounds/000001/ranks/00001/error.json"}
        assert render(result)

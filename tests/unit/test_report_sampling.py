"""A rank that only follows is reported from its node's file: the report is as if its error record were read."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import FRAMES, RunBuilder

from ftslurm.dataclasses import replace
from ftslurm.failures import plugins
from ftslurm.failures.causes import ROWS
from ftslurm.failures.record_summary import record_summary
from ftslurm.records.error import ErrorRecord, ExceptionRecord, Frame, HostResources, OomKills, Space
from ftslurm.records.round import RecordSummary
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.pipeline import make_report
from ftslurm.report.text import render
from ftslurm.sharedfs.bounded_read import read_file

NOW_NS = 1_772_400_000 * 10**9
SEEDS = int(os.environ.get("FTSLURM_UNREAD_SEEDS", "40"))
TORCH = ("/v/site-packages/torch/distributed/distributed_c10d.py", 2501, "all_reduce", "work.wait()")

Make = Callable[[random.Random, int], BaseException]


class DistBackendError(RuntimeError):
    """Stands in for torch's."""


class DistStoreError(RuntimeError):
    """Stands in for torch's."""


def _address(chance: random.Random) -> str:
    return f"10.{chance.randrange(256)}.{chance.randrange(256)}.7]:{chance.randrange(1000, 65000)}"


def _behind(chance: random.Random, rank: int) -> BaseException:
    outer = ValueError(f"step failed on {chance.choice(['a', 'b'])}")
    outer.__cause__ = RuntimeError(f"[/gloo/pair.cc:553] Connection closed by peer [{_address(chance)}")
    return outer


def _hidden(chance: random.Random, code: object = 1) -> BaseException:
    outer = SystemExit(code)
    outer.__cause__ = RuntimeError(f"[/gloo/pair.cc:553] Connection closed by peer [{_address(chance)}")
    return outer


CASCADES: list[Make] = [
    lambda chance, rank: RuntimeError(f"[/gloo/pair.cc:553] Connection closed by peer [{_address(chance)}"),
    lambda chance, rank: RuntimeError(f"[/gloo/pair.cc:543] Connection reset by peer [{_address(chance)}"),
    lambda chance, rank: RuntimeError(f"[/gloo/u.cc:81] Timed out after {chance.randrange(99)}ms waiting for recv"),
    lambda chance, rank: DistBackendError(f"NCCL error in x.cpp, remote process exited, rank {rank}"),
    lambda chance, rank: DistBackendError(
        f"[Rank {rank}] Watchdog caught collective operation timeout: ran for {chance.randrange(9999)} milliseconds"
    ),
    lambda chance, rank: DistStoreError(f"Timed out after {chance.randrange(99)} ms"),
    lambda chance, rank: _hidden(chance, "giving up"),
    lambda chance, rank: _hidden(chance),
]
OTHERS: list[Make] = [
    lambda chance, rank: ValueError("boom"),
    lambda chance, rank: ValueError(f"bad sample {chance.randrange(9)}"),
    lambda chance, rank: ModuleNotFoundError("No module named 'flash'"),
    lambda chance, rank: RuntimeError(f"TCPStore: EADDRINUSE, port: {chance.randrange(9)} on 10.0.0.{rank}"),
    lambda chance, rank: OSError(28, "No space left on device"),
    lambda chance, rank: RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
    _behind,
]
ENDS: list[dict[str, Any]] = [{"signal": "SIGKILL"}, {"signal": "SIGSEGV"}, {"exit_code": 3}, {"exit_code": 137}]


def random_run(parent: Path, seed: int) -> RunBuilder:
    """Build a run of one or two rounds in which anything may happen; the same for the same seed."""
    chance = random.Random(seed)
    run = RunBuilder(parent, nodes=4, nproc=4)
    for name in run.node_names:
        if chance.random() < 0.4:
            run.clock(name, chance.choice([0.0, 0.003, -0.2, 90.0, -4000.0]), error_s=chance.choice([None, 0.001, 0.1]))
    for number in range(1, chance.randrange(2, 4)):
        run.round()
        if chance.random() < 0.7:
            run.steps(1, 50).wait(30)
        few = chance.sample(CASCADES, chance.randrange(1, 3)) + chance.sample(OTHERS, chance.randrange(2))
        for rank in chance.sample(range(16), chance.randrange(1, 17)):
            _fail(run, chance, number, rank, few)
        if chance.random() < 0.15:
            run.lose(chance.choice(run.node_names))
        elif chance.random() < 0.15:
            alive = [w["rank"] for node in run.newest_nodes() for w in node["workers"] if w["ended_ns"] is None]
            if alive:
                run.hang(alive[0], places={each: [("/w/train.py", 7, "load")] for each in alive})
            run.stop()
        else:
            run.stop(after_s=chance.choice([0.0, 0.2]))
        for node in run.newest_nodes():
            for worker in node["workers"]:
                if worker["failed"] and chance.random() < 0.1:
                    # Its exception was its own; its process needed so long that it was stopped.
                    worker |= {"stopped_by_ftslurm": True, "failed": False, "signal": "SIGTERM", "exit_code": None}
                    worker["ended_ns"] += 10**9
            if chance.random() < 0.3:
                node["stop_ns"] = run.now_ns - chance.randrange(10**9)
    return run.close("failed", "it failed")


def _fail(run: RunBuilder, chance: random.Random, number: int, rank: int, few: list[Make]) -> None:
    after_s = chance.choice([0.0, 0.001, 0.3])
    if chance.random() < 0.1:
        run.fail(rank, **chance.choice(ENDS), after_s=after_s, record=chance.random() < 0.8, log="its last words\n")
        return
    raised = chance.choice(few)(chance, rank)
    module = "torch.distributed" if type(raised).__name__.startswith("Dist") else None
    frames = (*FRAMES, TORCH) if chance.random() < 0.5 else FRAMES
    step = chance.choice([None, 9])
    run.fail(rank, raised, step=step, after_s=after_s, frames=frames, module=module, record=chance.random() < 0.95)
    record = run.errors.get((number, rank))
    if record is not None and chance.random() < 0.3:
        oom = OomKills(recent=chance.randrange(2), in_round=2)
        spaces = (Space("/dev/shm", free=chance.randrange(2) * 10**9 + rank, total=10**10),)
        record = replace(record, host_resources=HostResources(oom, spaces=spaces))
    if record is not None and chance.random() < 0.05:
        record = replace(record, exception=None)
    if record is not None:
        run.errors[number, rank] = record


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_report_is_the_same_whether_all_error_records_are_read_or_only_those_that_matter(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{seed} of files")
    path = random_run(tmp_path, seed).write()
    if chance.random() < 0.3:
        # An agent that died, or a file that did not get there.
        gone = chance.choice(["n1", "n2", "n3", "n4"])
        (path / "rounds" / "000001" / "nodes" / f"{gone}.json").unlink()
    for wanted in ({}, {"rank": chance.randrange(16)}, {"every": True}):
        some = make_report(path, now_ns=NOW_NS, **wanted)
        with monkeypatch.context() as patched:
            # Rows that a site added may depend on anything in a record.
            patched.setattr(plugins, "load", lambda: ((*ROWS,), []))
            assert make_report(path, now_ns=NOW_NS, **wanted) == some, f"seed {seed}, {wanted}"


def read_records(path: Path, monkeypatch: pytest.MonkeyPatch, **wanted: Any) -> list[str]:
    """Return the error records that a report reads."""
    read: list[str] = []

    def noted(name: Any, *more: Any) -> bytes | None:
        if str(name).endswith("error.json"):
            read.append(str(name))
        return read_file(name, *more)

    with monkeypatch.context() as patched:
        patched.setattr("ftslurm.report.record_reader.read_file", noted)
        make_report(path, now_ns=NOW_NS, **wanted)
    return read


def cascade(parent: Path, nodes: int = 16, way: int = 0, **how: Any) -> RunBuilder:
    """Build a run of one rank that failed, and of all others that broke their connections to it."""
    chance = random.Random(1)
    run = RunBuilder(parent, nodes=nodes, nproc=8, **how).round().steps(1, 9).wait(9).fail(77, ValueError("boom"))
    for rank in range(nodes * 8):
        if rank != 77:
            run.fail(rank, CASCADES[way](chance, rank), frames=(*FRAMES, TORCH), after_s=0.001)
    return run


@pytest.mark.parametrize("way", [0, -1], ids=["uncaught", "hidden behind an exit"])
def test_of_ranks_that_only_follow_a_few_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: int
) -> None:
    path = cascade(tmp_path, way=way).stop().close("failed", "x").write()
    read = read_records(path, monkeypatch)
    assert len(read) == len(set(read))
    assert sorted(read) == [f"{rank:05d}/error.json" for rank in (0, 1, 2, 77)]
    report = make_report(path, now_ns=NOW_NS)
    assert report["cause"]["rank"] == 77
    (group,) = report["rounds"][0]["groups"]
    assert (group["count"], group["node_count"], group["nodes"][:2]) == (127, 16, ["n1", "n2"])
    assert group["ranks"] == "0-76, 78-127"
    assert "Connection closed by peer" in group["what"]


def test_all_that_raise_the_same_exception_are_reported_by_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path, nodes=8, nproc=8).round()
    for rank in range(64):
        run.fail(rank, ModuleNotFoundError("No module named 'flash'"), after_s=0.001)
    path = run.stop().close("failed", "x").write()
    assert read_records(path, monkeypatch) == ["00000/error.json"]
    report = make_report(path, now_ns=NOW_NS)
    assert (report["cause"]["rank"], report["cause"]["cause"]) == (0, "import-error")
    assert (report["cause"]["alike"]["subject"], report["rounds"][0]["same_time"]) == ("all 64 ranks", [])


def test_the_record_of_a_rank_that_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cascade(tmp_path).stop().write()
    assert "00050/error.json" in read_records(path, monkeypatch, rank=50)
    report = make_report(path, now_ns=NOW_NS, rank=50)
    assert "Connection closed by peer" in report["rank"]["failure"]["traceback"]
    assert len(set(read_records(path, monkeypatch, every=True))) == 128


def test_of_a_node_whose_agent_died_the_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cascade(tmp_path).stop()
    run.round_nodes[1, "n3"]["ended_ns"] = None
    read = read_records(run.write(), monkeypatch)
    assert set(read) >= {f"{rank:05d}/error.json" for rank in range(16, 24)}
    assert len(read) == 4 + 8


def test_records_of_an_older_ftslurm_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read_records(cascade(tmp_path, summaries=False).stop().write(), monkeypatch)) == 128


def test_causes_that_a_site_added_are_asked_about_each_record(tmp_path: Path) -> None:
    path = cascade(tmp_path).stop().write()
    assert len(gather(path, now_ns=NOW_NS, causes=(*ROWS[:1], *ROWS)).rounds[0].errors) == 128


def test_a_record_that_did_not_get_there_is_reported_by_its_short_form(tmp_path: Path) -> None:
    path = cascade(tmp_path).stop().close("failed", "x").write()
    (path / "rounds/000001/ranks/00077/error.json").unlink()
    report = make_report(path, now_ns=NOW_NS)
    cause = report["cause"]
    assert (cause["rank"], cause["what"], cause["where"]["shown"]) == (77, "ValueError: boom", "train.py")
    assert (cause["where"]["line"], cause["evidence"]) == (42, ["round-node", "summary"])
    assert "no error record of 1 failed rank (77)" in report["missing"][0]
    assert render(report).startswith("job-123 FAILED: rank 77 on n10: ValueError: boom\n  at train.py:42")


@pytest.mark.parametrize(
    "damage", [None, 7, "x", {"kind": 0}, {"kind": "exit", "message": "m", "step": 1, "time_ns": 1}]
)
def test_a_short_form_that_is_broken_costs_nothing(damage: Any, tmp_path: Path) -> None:
    path = cascade(tmp_path).stop().close("failed", "x").write()
    whole = make_report(path, now_ns=NOW_NS)
    for file in (path / "rounds/000001/nodes").iterdir():
        node = json.loads(file.read_text())
        for worker in node["workers"]:
            worker["error"] = damage
        file.write_text(json.dumps(node))
    report = make_report(path, now_ns=NOW_NS)
    if damage is not None:
        assert all("error" in problem["reason"] for problem in report["problems"]) and report["problems"]
    assert report | {"problems": []} == whole


def test_the_text_of_a_short_form_is_one_line() -> None:
    frames = (Frame("/w/train.py", 4, "step", "f()"), Frame(TORCH[0], 9, "all_reduce"))
    exception = ExceptionRecord("ValueError", "builtins", "\nboom\nmore", frames=frames)
    record = ErrorRecord("exception", 5, "ValueError: boom", step=3, exit_code=1, exception=exception)
    summary = record_summary(record)
    assert summary.signature.startswith("=")
    where = "/w/train.py:4 in step"
    assert summary == RecordSummary("exception", "ValueError", "builtins", "boom", where, 3, 5, summary.signature)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Connection closed by peer [10.0.0.1]:29", "Connection closed by peer [10.7.0.9]:2900", True),
        ("Connection closed by peer [10.0.0.1]:29", "Connection reset by peer [10.0.0.1]:29", False),
        ("Timed out after 5 ms", "Timed out after 700 ms", True),
    ],
)
def test_what_broken_connections_differ_in_is_no_part_of_their_signature(one: str, other: str, same: bool) -> None:
    def like(text: str, name: str) -> str:
        exception = ExceptionRecord(name, "builtins", f"[/gloo/x] {text}", frames=(Frame(TORCH[0], 9, "f"),))
        return record_summary(ErrorRecord("exception", 5, text, exception=exception)).signature

    assert (like(one, "RuntimeError") == like(other, "RuntimeError")) is same
    assert like(one, "ValueError") != like(other, "ValueError"), "what a script raises may mean anything by its numbers"


def test_a_snapshot_with_short_forms_is_judged_the_same_twice(tmp_path: Path) -> None:
    snapshot = gather(cascade(tmp_path).stop().write(), now_ns=NOW_NS)
    assert analyse(snapshot) == analyse(snapshot)


@pytest.mark.parametrize("damage", [None, 7, [], [7], [{}], [{"kind": "exception"}], [{"kind": 1, "signature": "="}]])
def test_a_table_of_short_forms_that_is_broken_costs_nothing(damage: Any, tmp_path: Path) -> None:
    path = cascade(tmp_path).stop().close("failed", "x").write()
    whole = make_report(path, now_ns=NOW_NS)
    for file in (path / "rounds/000001/nodes").iterdir():
        file.write_text(json.dumps(json.loads(file.read_text()) | {"errors": damage}))
    assert make_report(path, now_ns=NOW_NS) == whole


@pytest.mark.parametrize("key", ["__dataclass_fields__", "__class__", "rank ", "unknown"])
def test_unknown_keys_of_a_workers_entry_are_ignored(key: str, tmp_path: Path) -> None:
    run = cascade(tmp_path).clock("n1", 90).clock("n2", 90).clock("n3", -90)
    for node in run.round_nodes.values():
        for worker in node["workers"]:
            worker[key] = 7
            worker["progress"][key] = 7
    path = run.stop().close("failed", "x").write()
    plain = cascade(tmp_path / "plain").clock("n1", 90).clock("n2", 90).clock("n3", -90)
    expected = json.dumps(make_report(plain.stop().close("failed", "x").write(), now_ns=NOW_NS))
    assert json.dumps(make_report(path, now_ns=NOW_NS)) == expected.replace(str(tmp_path / "plain"), str(tmp_path))

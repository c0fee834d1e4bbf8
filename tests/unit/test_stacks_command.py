"""`ftslurm stacks`: what it asks, what it shows, and what it says where there is nothing to show."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder
from sample_runs.contents import START_NS

from ftslurm.monitor import flight
from ftslurm.monitor.stacks_file import Stacks, encode
from ftslurm.records.codec import read_record, write_record
from ftslurm.records.flight import FlightRecord
from ftslurm.records.stacks import RankAnswer, StacksAnswer, StacksFile
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.status.stacks import main
from ftslurm.status.stacks_text import newest

DOCUMENTS = Path(__file__).parent / "flight_documents"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)


def running(folder: Path) -> RunDirectory:
    run = RunBuilder(folder / "ftslurm-runs", run_id="llm", job_id="40", nproc=1).wait(
        (time.time_ns() - START_NS) / 1e9
    )
    return RunDirectory(str(run.round().write()))


def record(name: str, rank: int = 0) -> FlightRecord:
    """Return the record of a real document, taken 2 s after its last call."""
    trace = flight.read((DOCUMENTS / f"{name}.json").read_bytes(), name)
    return FlightRecord("llm", 1, "n1", rank, trace.entries[-1].time_created_ns + 2 * 10**9, "socket", trace=trace)


def answer(run: RunDirectory, node: str, ranks: tuple[int, ...]) -> None:
    """Be the agent of a node: answer the request that lies there."""
    request = read_record(StacksFile, Path(run.stacks_file).read_bytes(), "it")
    text = 'Thread 0x1 (most recent call first):\n  File "/home/ann/train.py", line 7 in step\n'
    found = tuple(
        RankAnswer(
            rank,
            encode(Stacks(rank, text), rank=rank, node=node, time_ns=1).decode(),
            record("mismatch-0" if rank == 0 else "mismatch-1", rank),
        )
        for rank in ranks
    )
    content = StacksAnswer(node, request.round, request.time_ns, 1, found)
    Path(run.asked_file(node)).write_bytes(write_record(content))


def test_the_nodes_answers_are_shown_and_the_request_is_withdrawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = running(tmp_path)
    nodes = [path.stem for path in Path(run.nodes).glob("*.json")]
    # Of an earlier request.
    Path(run.asked).mkdir()
    old = StacksAnswer(nodes[0], 1, 5, 5)
    Path(run.asked_file(nodes[0])).write_bytes(write_record(old))
    waits = iter(nodes)
    assert main(["40"], sleep=lambda _: answer(run, node := next(waits), (nodes.index(node),))) == 0
    shown = capsys.readouterr().out
    assert f"llm: round 1, {len(nodes)} ranks on {len(nodes)} nodes" in shown
    assert "/home/ann/train.py:7 in step" in shown
    assert "rank 0: in all_reduce #4 [4096 float32] (default_pg), called 2 s before" in shown
    assert "in all_gather #4 [4096 float32] (default_pg), called 2 s before" in shown
    assert "\nrank 0 calls all_reduce #4 [4096 float32] where rank 1 calls all_gather #4 [4096 float32]" in shown
    assert not Path(run.stacks_file).exists()


def test_a_node_that_does_not_answer_is_named_and_the_others_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = running(tmp_path)
    first, *others = sorted(path.stem for path in Path(run.nodes).glob("*.json"))
    clock = iter(range(100))
    code = main(["--wait", "5"], sleep=lambda _: answer(run, first, (0,)), monotonic=lambda: next(clock))
    shown = capsys.readouterr()
    assert code == 1 and "1 rank on 1 node" in shown.out
    assert shown.err.startswith(f"ftslurm stacks: {', '.join(others)}: no answer within 5 s; see ftslurm status")
    assert not Path(run.stacks_file).exists()


def test_a_run_that_does_not_run_and_one_that_is_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = RunBuilder(tmp_path / "ftslurm-runs", run_id="old").round().close("succeeded", "all ranks did").write()
    assert main([str(ended)]) == 3
    assert "old does not run: it has ended" in capsys.readouterr().err
    assert not (ended / "nodes" / "stacks.request").exists()
    assert main(["nowhere"], ask=lambda job: None) == 2
    assert capsys.readouterr().err.startswith("ftslurm stacks: ")


def test_what_a_rank_does_is_its_oldest_call_that_is_not_over_else_its_last_one() -> None:
    assert newest(None) == ("", None)
    assert newest(record("absent-1"))[0] == "last collective: all_reduce #3 [8 float32] (default_pg), over"
    assert newest(record("subgroup-0")) == ("in all_reduce #1 [8 float32] (1)", 2.0)
    bare = FlightRecord("llm", 1, "n1", 0, 5, "none", "no answer within 1 s")
    assert newest(bare) == ("no record of its collectives: no answer within 1 s", None)
    empty = FlightRecord("llm", 1, "n1", 0, 5, "socket", trace=flight.reduce({}))
    assert newest(empty) == ("no collective so far", None)

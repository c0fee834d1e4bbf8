"""`ftslurm status` on run directories: which one is meant, what is damaged, and that nothing stops it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftslurm import cli
from ftslurm.monitor.timeouts import Learned, Longest, Spans
from ftslurm.records.attempt import StepEnd
from ftslurm.records.codec import write_record
from ftslurm.records.node import NodeRecord, RankVitals, Vitals
from ftslurm.records.state import Closed, Hang, Lease, LostNode, Participant, RoundHistory, State
from ftslurm.sharedfs.cell import write_generation
from ftslurm.status.command import main
from ftslurm.status.snapshot import read
from ftslurm.status.summary import summarise
from ftslurm.status.text import render


def record(node: str, i: int) -> NodeRecord:
    ranks = tuple(RankVitals(2 * i + k, 12, ((10, 9), (20, 40))) for k in range(2))
    vitals = Vitals(1, Longest(Spans(1.5, 2.5, {"step": 0.5}, None), Spans(), 1), ranks, 0)
    usual = NodeRecord(
        node, "aa", 9, "123.0", i, 2, node, 100, "10.0.0.1", 29400, "running", 1, None, None, None, 3, time.time_ns()
    )
    return replace(usual, vitals=vitals, hang=Hang(9, node, 0, 0, 1, "no heartbeat", 7))


def state(**changes: Any) -> State:
    parts = (Participant("n1", "aa", 2, 0, 0), Participant("n2", "aa", 2, 2, 1))
    history = (RoundHistory(1, "123.0", ("n1", "n2"), 4, time.time_ns(), None, "running", None, None),)
    usual = State(
        "/shared/job-123", "123.0", ("123.0",), ("n1", "n2"), 2, 2, 3, 0, Lease("n1", "aa", 1), "running", 1, parts, 4,
        None, (LostNode("n3", "aa", 1, 5, 30.5),), history, None,
        learned=Learned(Spans(600.0, 250.0, {"step": 60.0}), 2),
    )  # fmt: skip
    return replace(usual, **changes)


def put_state(run: Path, token: int, status: State) -> Path:
    path = run / "state" / f"{token:012d}.json"
    path.write_bytes(write_generation(status.encode(), token, "00"))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory of a run on two nodes, in the shared directory `ftslurm-runs`."""
    path = tmp_path / "ftslurm-runs" / "job-123"
    for folder in ("state", "nodes", "rounds", "attempts/123.0"):
        (path / folder).mkdir(parents=True)
    for i, node in enumerate(("n1", "n2")):
        (path / "nodes" / f"{node}.json").write_bytes(record(node, i).encode())
    timeouts = {"heartbeat_s": 30.0, "hang_s": "off", "sections": {}, "warmup_steps": 0, "warmup_s": 0.0}
    attempt = {"schema": "ftslurm/attempt", "version": 1, "attempt": "123.0"}
    options = {"heartbeat_s": 3.0, "node_timeout_s": 30.0, "timeouts": timeouts}
    (path / "attempts/123.0/attempt.json").write_text(json.dumps({**attempt, "options": options}))
    put_state(path, 6, state(phase="forming"))
    put_state(path, 7, state())
    return path


def test_the_newest_run_is_found_by_itself_by_its_job_and_by_its_directory(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent.parent)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)
    for arguments in ([], ["--latest"], ["123"], ["job-123"], [str(run)]):
        assert cli.main(["status", *arguments]) == 0
        out = capsys.readouterr().out
        assert out.startswith("run job-123: round 1 runs on 2 nodes, 4 ranks, step 12, 0 of 3 restarts used\n")
        assert "  time-outs: heartbeat 30 s, hang off (set by option); first heartbeat" in out


def test_json_is_the_same_dictionary(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)

    assert (status["schema"], status["version"], status["status"], status["token"]) == (
        "ftslurm/status",
        1,
        "running",
        7,
    )
    assert [row["ranks"] for row in status["nodes"]] == ["0-1", "2-3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere/at/all"], "is not there"),
        (["."], "holds none of run.json"),
        (["--latest", "job-1"], "expected --latest or a run"),
        (["--shared-dir", "/nowhere"], "found no run in"),
        (["--watch", "0"], "expected a time from 1 s to 1d"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments, ask=lambda job: None) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_an_unreadable_directory_is_reported_with_its_owner(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The user that runs the tests may read it: simulate the kernel's answers to another user.
    monkeypatch.setattr("ftslurm.sharedfs.locate._is_run", lambda path: False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main([str(run)]) == 2
    assert f"belongs to user id {run.stat().st_uid}" in capsys.readouterr().err


def test_a_damaged_newest_state_is_reported_and_the_previous_one_used(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = run / "state" / "000000000007.json"
    newest.write_bytes(newest.read_bytes()[:300])
    assert main([str(run)]) == 0
    out = capsys.readouterr().out

    assert out.startswith("run job-123: round 2 forms")
    assert "this is state 6; the newest, 7, is unusable" in out
    assert "unusable: state/000000000007.json: torn or not JSON" in out


def test_without_a_readable_state_the_nodes_are_printed_and_the_exit_code_is_2(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (run / "state").iterdir():
        path.write_bytes(b"")
    assert main([str(run)]) == 2
    output = capsys.readouterr()

    assert output.out.startswith("run job-123: no readable state; records of 2 nodes\n")
    assert "n2" in output.out
    assert output.err.startswith(f"ftslurm status: no readable state in {run}: state/000000000007.json: ")


def test_a_run_that_has_only_just_begun_has_no_state_and_that_is_no_error(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (run / "state").iterdir():
        path.unlink()
    assert main([str(run)]) == 0


def test_a_node_file_of_another_name_a_link_and_invalid_data_are_reported_and_not_used(run: Path) -> None:
    (run / "nodes" / "n3.json").write_bytes(record("n1", 0).encode())
    (run / "nodes" / "n4.json").write_bytes(b"\x00\xff")
    (run / "nodes" / "n2.json").unlink()
    (run / "nodes" / "n2.json").symlink_to("/etc/passwd")
    os.mkfifo(run / "nodes" / "n5.json")
    (run / "nodes" / ".n1.json.aa.tmp").write_bytes(b"torn")
    status = summarise(read(run, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns))

    assert [each["file"] for each in status["problems"]] == ["nodes/n3.json", "nodes/n4.json"]
    assert [(row["node"], row["status"]) for row in status["nodes"]] == [("n1", "running"), ("n2", "no record")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_are_reported_and_not_used(run: Path) -> None:
    os.chown(run / "nodes" / "n2.json", 12345, -1)
    os.chown(run / "state" / "000000000007.json", 12345, -1)
    os.chown(run, 1000, -1)
    status = summarise(read(run, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns))

    assert [each["file"] for each in status["problems"]] == ["nodes/n2.json", "state/000000000007.json"]
    assert (status["status"], status["token"]) == ("forming", 6)


def test_reading_changes_nothing(run: Path) -> None:
    def all_of_it() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in run.rglob("*"))

    before = all_of_it()
    assert main([str(run)]) == 0
    assert all_of_it() == before


def test_watch_repeats_until_the_run_has_ended(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            put_state(run, 8, state(phase="closed", closed=Closed("succeeded", "all 4 ranks", 0, time.time_ns())))

    assert main([str(run), "--watch", "2", "--json"], sleep=sleep) == 0
    status = [json.loads(line)["status"] for line in capsys.readouterr().out.splitlines()]
    assert (status, slept) == (["running", "running", "closed"], [2.0, 2.0])


def test_watch_ends_where_the_agents_ended_without_closing_the_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) == 1
        (run / "attempts/123.0/step.json").write_bytes(write_record(StepEnd("123.0", time.time_ns(), None, None)))

    assert main([str(run), "--watch", "2"], sleep=sleep) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "has ended: its agents ended without recording the run's end; it was in round 1, step 12" in printed
    assert "SILENT" not in printed


def test_control_c_ends_the_watching_quietly(run: Path) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    assert main([str(run), "--watch", "2"], sleep=sleep) == 130


def test_a_run_directory_that_vanishes_while_it_is_watched_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def sleep(seconds: float) -> None:
        run.rename(run.parent / "gone")

    assert main([str(run), "--watch", "2"], sleep=sleep) == 2
    assert capsys.readouterr().err == f"ftslurm status: cannot read {run}: No such file or directory\n"


def test_damaged_files_do_not_raise(run: Path) -> None:
    rng = random.Random(7)
    files = list(run.rglob("*.json"))
    good = {path: path.read_bytes() for path in files}
    pieces = [b"null", b"-1", b"1e999", b"NaN", b"9" * 400, b'"\\u001b[2J"', b"[]", b"{}", b"\xff", b"", b"true"]
    for _ in range(400):
        path = rng.choice(files)
        data = good[path]
        at = rng.randrange(len(data))
        colon = data.find(b":", at) + 1
        end = colon + len(data[colon:].split(b",")[0])
        path.write_bytes(data[:colon] + rng.choice(pieces) + data[end:] if rng.random() < 0.8 else data[:at])
        status = summarise(read(run, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns))
        json.dumps(status, allow_nan=False)
        assert all(line.isprintable() for line in render(status, everything=True).split("\n"))
        path.write_bytes(data)


def test_it_imports_neither_torch_nor_the_reports_analysis(run: Path) -> None:
    script = "import sys; from ftslurm.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script, "status", "--offline", str(run)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(done.stderr.split())
    assert "ftslurm.status.summary" in loaded
    assert not loaded & {"torch", "numpy", "statistics", "asyncio", "subprocess", "ftslurm.report.analysis"}

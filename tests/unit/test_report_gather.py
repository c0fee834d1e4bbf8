"""Whatever lies in a run directory, the report is made and says what it could not use."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report import gathering
from ftslurm.report.analysis import analyse
from ftslurm.report.command import main
from ftslurm.report.gathering import gather
from ftslurm.report.pipeline import make_report, rendered
from ftslurm.report.text import render
from ftslurm.sharedfs.bounded_read import list_directory, read_file

ERROR = "rounds/000001/ranks/00003/error.json"
ROUND_NODE = "rounds/000001/nodes/n2.json"
STATE = "state/000000000007.json"


def failed_run(parent: Path, name: str = "job-123") -> RunBuilder:
    run = RunBuilder(parent, run_id=name).round().steps(1, 120).wait(60)
    run.fail(3, ValueError("boom"), step=120, log="step 119\nstep 120\n").stop()
    run.round().steps(100, 130).wait(9).fail(0, signal="SIGSEGV", record=False, log="crash\n")
    return run.log(0, "Fatal Python error: Segmentation fault\n", "stacks").stop().close("failed", "x")


def report_of(path: Path, *, round_number: int | None = None) -> dict[str, Any]:
    result = make_report(path, round_number=round_number, now_ns=1_772_400_000 * 10**9)
    assert render(result)
    json.loads(rendered(result, "json"))
    return result


def problem(path: Path, file: str) -> str:
    found = [p["reason"] for p in report_of(path)["problems"] if p["file"] == file]
    assert len(found) == 1, report_of(path)["problems"]
    return str(found[0])


@pytest.mark.parametrize("file", [ERROR, ROUND_NODE, STATE, "run.json", "nodes/n1.json", "attempts/123.0/attempt.json"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\0" * 4096, "empty"),
        (b'{"schema": "ftsl', "torn or not JSON"),
        (b"\x89PNG\r\n\xff\xfe\x00", "not"),
        (b"[" * 200_000, "nested too deeply|too large|torn"),
        (b"[1, 2]", "expected a JSON object.*found '?list"),
        (b'"text"', "expected a JSON object.*found '?str"),
    ],
)
def test_a_broken_file_is_named_with_its_reason(tmp_path: Path, file: str, content: bytes, reason: str) -> None:
    path = failed_run(tmp_path).write()
    (path / file).write_bytes(content)
    assert re.search(reason, problem(path, file))


def test_a_broken_error_record_leaves_what_agent_and_state_know(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("boom"), step=120).stop().close("failed", "x")
    path = run.write()
    (path / ERROR).write_text('{"message": {"mess')
    cause = report_of(path)["cause"]
    assert (cause["rank"], cause["what"], cause["step"]) == (3, "ValueError: boom", 120)


def test_a_broken_newest_state_falls_back_to_the_one_before(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    (path / "state" / "000000000008.json").write_text(
        '{"schema": "ftslurm/cell", "version": 1, "token": 8, "value":\n{"sch'
    )
    assert report_of(path)["status"] == "failed"
    assert "torn" in problem(path, "state/000000000008.json")


def test_a_state_under_another_generations_name_is_not_believed(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    (path / STATE).rename(path / "state" / "000000000099.json")
    assert "its header names token" in problem(path, "state/000000000099.json")


@pytest.mark.parametrize("file", [ROUND_NODE, STATE, "nodes/n1.json", "run.json"])
def test_a_newer_format_is_named_as_such(tmp_path: Path, file: str) -> None:
    path = failed_run(tmp_path).write()
    value = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(value | {"version": 2}))
    assert "made by a newer ftslurm" in problem(path, file)


def test_a_newer_error_record_is_named_as_such(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    value = json.loads((path / ERROR).read_text())
    value["ftslurm"]["version"] = 2
    (path / ERROR).write_text(json.dumps(value))
    assert "made by a newer ftslurm" in problem(path, ERROR)
    (failure,) = gather(path, now_ns=1).rounds[0].errors.values()
    assert (failure.message, bool(failure.traceback)) == ("ValueError: boom", True), "torch's part is known"


def test_torchs_own_error_record_is_understood(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path).round().fail(3, ValueError("boom")).stop().close("failed", "x").write()
    value = json.loads((path / ERROR).read_text())
    del value["ftslurm"]
    (path / ERROR).write_text(json.dumps(value))
    cause = report_of(path)["cause"]
    assert (cause["what"], cause["where"]["line"]) == ("ValueError: boom", 42)


@pytest.mark.parametrize("file", [ERROR, ROUND_NODE, STATE, "run.json", "rounds/000002/ranks/00000/stderr.log"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, file: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0")
    path = failed_run(tmp_path).write()
    (path / file).unlink()
    (path / file).symlink_to(secret)
    assert "root:x" not in rendered(report_of(path), "json")


def test_a_linked_directory_is_not_entered(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    foreign = failed_run(tmp_path, "other").write()
    shutil.rmtree(path / "nodes")
    (path / "nodes").symlink_to(foreign / "nodes")
    assert "symbolic link" in problem(path, "nodes")


def test_a_named_pipe_does_not_hang_the_report(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    (path / ERROR).unlink()
    os.mkfifo(path / ERROR)
    assert "not a plain file" in problem(path, ERROR)


def test_a_file_of_another_user_is_refused_with_its_owner_named(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    with pytest.raises(ValueError, match=rf"belongs to another user \(user id {os.getuid()}\)"):
        read_file(path / "run.json", 1000, frozenset((os.getuid() + 1,)))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_files_of_others_than_the_runs_owner_are_refused_and_noted(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    for each in [path, *path.rglob("*")]:
        os.chown(each, 4001, 4001)
    os.chown(path / ERROR, 4002, 4002)
    assert "user id 4002" in problem(path, ERROR)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    with (path / ERROR).open("wb") as file:
        file.truncate(1 << 30)
    assert "too large" in problem(path, ERROR)


def test_of_a_huge_log_only_the_end_is_read(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    with (path / "rounds/000002/ranks/00000/stderr.log").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast words\n")
    log = report_of(path)["cause"]["log"]
    assert (log["lines"][-1], log["size"]) == ("last words", (1 << 30) + 12)
    assert len(rendered(report_of(path), "json")) < 100_000


def test_long_records_of_many_ranks_are_cut_to_their_facts_when_there_is_no_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "RECORDS_IN_ALL", 150_000)
    run = RunBuilder(tmp_path, summaries=False).round()
    for rank in range(4):
        run.fail(rank, ValueError("x" * 40_000), after_s=1)
    path = run.stop().write()
    files = gather(path, now_ns=1).rounds[0]
    assert [bool(files.errors[rank].traceback) for rank in range(4)] == [True, False, False, False]
    assert [files.errors[rank].exception.type for rank in range(4)] == ["ValueError"] * 4  # type: ignore[union-attr]
    assert "long error records" in problem(path, "rounds")


def test_logs_are_found_in_the_log_directory_of_the_attempt(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    run.attempts[0]["logs"] = str(tmp_path / "elsewhere")
    run.round().fail(0, signal="SIGABRT", log="here\n").stop().close("failed", "x")
    assert report_of(run.write())["cause"]["log"]["lines"] == ["here"]


def test_wrong_types_in_fields_are_no_trouble(tmp_path: Path) -> None:
    run = failed_run(tmp_path)
    run.damaged = True
    run.round_nodes[1, "n2"]["workers"][1]["progress"] = {"first_step": True, "last_step": 2**80}
    run.history[0]["failure"] = 3
    run.lost = [{"node": "n1", "round": 1, "time_ns": float("nan"), "silent_s": float("inf")}]
    path = run.write()
    value = json.loads((path / ERROR).read_text())
    value["ftslurm"] |= {"time_ns": "soon", "step": [], "node": 7, "argv": "x", "exception": [1]}
    (path / ERROR).write_text(json.dumps(value))
    assert report_of(path)["rounds"][0]["first_failure"]["rank"] == 3


@pytest.mark.parametrize("damage", [{"step": []}, {"node": 7}, {"argv": "x"}, {"exception": [1]}, {"cuda": {"a": "b"}}])
def test_a_wrong_value_in_an_error_record_does_not_cost_its_neighbours(tmp_path: Path, damage: dict[str, Any]) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("boom"), step=120).stop().close("failed", "x")
    path = run.write()
    value = json.loads((path / ERROR).read_text())
    value["ftslurm"] |= damage
    (path / ERROR).write_text(json.dumps(value))
    result = report_of(path)
    (damaged,) = result["problems"]
    assert (damaged["file"], result["cause"]["what"]) == (ERROR, "ValueError: boom")
    assert next(iter(damage)) in damaged["reason"]
    assert (result["cause"]["step"], result["cause"]["where"]["line"]) == (120, 42)


def test_only_the_newest_rounds_files_are_read_and_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "DETAILED_ROUNDS", 1)
    path = failed_run(tmp_path).write()
    assert report_of(path)["skipped_rounds"] == 1
    result = report_of(path, round_number=1)
    assert (result["skipped_rounds"], result["focus"]) == (0, 1)
    assert result["rounds"][0]["first_failure"]["traceback"]


def test_a_directory_with_too_many_entries_is_listed_only_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftslurm.sharedfs.bounded_read.MAX_ENTRIES", 3)
    for i in range(9):
        (tmp_path / f"{i}").touch()
    assert len(list_directory(tmp_path)[0]) == 3


@pytest.mark.parametrize("seed", range(40))
def test_any_files_deleted_or_cut_still_give_a_report(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = failed_run(tmp_path).write()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        fate = chance.random()
        if fate < 0.3:
            file.unlink()
        elif fate < 0.6:
            file.write_bytes(file.read_bytes()[: chance.randrange(file.stat().st_size + 1)])
        elif fate < 0.7:
            data = bytearray(file.read_bytes())
            for _ in range(5):
                data[chance.randrange(len(data) or 1) : 0] = bytes([chance.randrange(256)])
            file.write_bytes(bytes(data))
    for folder in sorted((p for p in path.rglob("*") if p.is_dir()), reverse=True):
        if chance.random() < 0.1:
            shutil.rmtree(folder)
    try:
        report_of(path)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.parametrize("seed", range(40))
def test_any_value_in_any_place_still_gives_a_report(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = failed_run(tmp_path).write()
    for file in sorted(path.rglob("*.json")):
        file.write_text(json.dumps(_mutated(json.loads(file.read_text()), chance)))
    try:
        report_of(path)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


def _mutated(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.02:
        return chance.choice(
            [None, True, -1, 2**70, 1e308, "", "x\x1b[2J\ud800", [], {}, [{}], [[]], -(2**62), "running"]
        )
    if isinstance(value, dict):
        return {k: v if k in ("schema", "version", "token") else _mutated(v, chance) for k, v in value.items()}
    return [_mutated(v, chance) for v in value] if isinstance(value, list) else value


def test_a_directory_that_is_not_there_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "is not there" in capsys.readouterr().err


def test_the_commands_exit_status_is_the_jobs_own_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = failed_run(tmp_path).close("failed", "x", 17).write()
    assert main([str(path)]) == 0
    assert main([str(path), "--exit-code"]) == 17
    shutil.rmtree(path / "state")
    capsys.readouterr()
    assert main([str(path), "--exit-code", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["exit_code"] is None


def test_a_round_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = failed_run(tmp_path).write()
    assert main([str(path), "--round", "9"]) == 2
    assert "rounds 1-2 are" in capsys.readouterr().err
    assert main([str(path), "--round", "zero"]) == 2
    assert main([str(path), "--rou", "1"]) == 2


def test_saving_publishes_both_forms_and_a_full_disk_only_costs_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = failed_run(tmp_path).write()
    assert main([str(path), "--save"]) == 0
    printed = capsys.readouterr().out
    assert (path / "report.txt").read_text() == printed
    assert json.loads((path / "report.json").read_text())["schema"] == "ftslurm/report"
    (path / "report.txt").unlink()
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert main([str(path), "--save"]) == 0
    assert "not saved" in capsys.readouterr().err
    assert not [p.name for p in path.iterdir() if p.name.endswith(".tmp")]


def test_a_run_is_read_as_one_moment(tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    snapshot = gather(path, now_ns=5)
    assert (snapshot.now_ns, snapshot.directory) == (5, str(path))
    assert analyse(snapshot)["made_ns"] == 5

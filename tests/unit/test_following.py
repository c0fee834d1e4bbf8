"""Following a run over a requeue: it ends with the run, not with one attempt."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.cli import main
from ftslurm.sharedfs.next_attempt import BEGINNING_NS, next_attempt
from ftslurm.status.command import main as status

S = 10**9
ENDED = 1_000_000 * S


def begin(run: Path, name: str, created_ns: int) -> None:
    folder = run / "attempts" / name
    folder.mkdir(parents=True)
    value = {"schema": "ftslurm/attempt", "version": 1, "attempt": name, "created_ns": created_ns}
    (folder / "attempt.json").write_text(json.dumps(value))


def end(run: Path, name: str) -> None:
    value = {"schema": "ftslurm/step", "version": 1, "attempt": name, "ended_ns": ENDED, "exit_code": 1, "signal": None}
    (run / "attempts" / name / "step.json").write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("name", "created_s", "ended", "expected"),
    [
        ("1.1", 60, False, "1.1"),
        ("1.1", 60, True, None),
        ("1.0", 60, False, None),
        ("9.0", -600, False, None),
        ("1.1", -1, False, "1.1"),
    ],
)
def test_an_attempt_begins_that_started_after_the_end(
    tmp_path: Path, name: str, created_s: int, ended: bool, expected: str | None
) -> None:
    begin(tmp_path, name, ENDED + created_s * S)
    if ended:
        end(tmp_path, name)
    assert next_attempt(tmp_path, ("1.0",), ENDED, ENDED + 90 * S) == expected


def test_an_attempt_that_never_took_the_state_over_is_not_waited_for(tmp_path: Path) -> None:
    begin(tmp_path, "1.1", ENDED + S)
    assert next_attempt(tmp_path, ("1.0",), ENDED, ENDED + 2 * S) == "1.1"
    assert next_attempt(tmp_path, ("1.0",), ENDED, ENDED + S + BEGINNING_NS) is None


def test_files_that_cannot_be_read_are_no_attempt(tmp_path: Path) -> None:
    assert next_attempt(tmp_path, (), 0, 1) is None
    (tmp_path / "attempts/2.0").mkdir(parents=True)
    (tmp_path / "attempts/2.0/attempt.json").write_text("{")
    assert next_attempt(tmp_path, (), 0, 1) is None


def requeued(folder: Path, how: str) -> Path:
    """Build a run whose attempt has ended, closed or by its step record alone, and whose next one begins."""
    run = RunBuilder(folder).round().fail(1, ValueError("x"), log="boom\n").stop()
    directory = (run.close("failed", "no restarts left") if how == "closed" else run).write()
    for name in json.loads(next(iter(sorted((directory / "state").glob("0*.json"))[::-1])).read_text())["value"][
        "attempts"
    ]:
        end(directory, name)
    begin(directory, "123.1", time.time_ns())
    return directory


@pytest.mark.parametrize("how", ["closed", "step"])
def test_status_goes_on_until_the_next_attempt_has_ended(tmp_path: Path, how: str) -> None:
    run = requeued(tmp_path, how)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            end(run, "123.1")

    assert status([str(run), "--watch", "1"], sleep=wait) == 0
    assert len(waits) == 3


@pytest.mark.parametrize("how", ["closed", "step"])
@pytest.mark.parametrize("command", [["report", "--follow", "--offline"], ["logs", "-f", "--rank", "1"]])
def test_report_and_logs_go_on_until_the_next_attempt_has_ended(
    tmp_path: Path, how: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = requeued(tmp_path, how)
    waits = 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 30:
            end(run, "123.1")

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr("ftslurm.logs.command.ROUND_S", 0.0)
    monkeypatch.setattr("ftslurm.logs.command.LAST_S", 0.0)
    if command[0] == "logs":
        from ftslurm.logs.command import main as logs

        assert logs([*command[1:], str(run)], sleep=wait) == 0
    else:
        assert main([*command, str(run)]) == 0
    assert waits >= 30

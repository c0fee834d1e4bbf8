"""`ftslurm history`: all runs of a directory; saved reports are used only for the end that the run has."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.pipeline import make_report, save
from ftslurm.runs.history_command import main

HOSTILE = "\x1b]0;x\x07<script>alert(1)</script>"


def story(directory: Path, name: str) -> RunBuilder:
    return RunBuilder(directory, run_id=name, job_id=name.removeprefix("job-")).round().steps(1, 90, over_s=89)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of runs, each with its report: two Python exceptions, one of them recovered, and a lost node."""
    directory = tmp_path / "ftslurm-runs"
    directory.mkdir()
    recovered = story(directory, "job-1").fail(3, ValueError(f"boom {HOSTILE}"), step=90).stop()
    recovered.round().steps(91, 180, over_s=89).succeed().close("succeeded", "all").write()
    story(directory, "job-2").fail(2, ValueError(f"bang {HOSTILE}"), step=90).stop().close(
        "failed", "no restart left"
    ).write()
    story(directory, "job-3").lose("n1").close("failed", "too few nodes").write()
    for path in directory.iterdir():
        save(make_report(path), path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)
    return directory


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def judged(history: Any) -> list[str]:
    return sorted(run["run"] for run in history["runs"] if run["judged"])


def test_failures_are_counted_by_cause_and_by_node_with_their_cost(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = found(capsys)
    assert history["counts"] == {"failed": 2, "succeeded": 1}
    totals = history["totals"]
    assert (totals["runs"], totals["failures"], totals["failed_runs"]) == (3, 3, 3)
    assert totals["mtbf_s"] == pytest.approx(totals["running_s"] / 3)
    assert totals["ratio"] == pytest.approx(totals["productive_s"] / totals["elapsed_s"])
    causes = {each["cause"]: each for each in history["causes"]}
    assert {name: (each["failures"], each["runs"], each["nodes"]) for name, each in causes.items()} == {
        "exception": (2, 2, 1),
        "node-lost": (1, 1, 1),
    }
    assert causes["node-lost"]["lost_s"] >= 30
    assert [(each["node"], each["failures"]) for each in history["nodes"]] == [("n2", 2), ("n1", 1)]


def test_a_saved_report_gives_the_same_as_a_new_one(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = found(capsys)
    assert judged(saved) == []
    for path in runs.glob("*/report.json"):
        path.unlink()
    anew = found(capsys)
    assert judged(anew) == ["job-1", "job-2", "job-3"]
    for history in (saved, anew):
        history.pop("made_ns")
        for run in history["runs"]:
            run.pop("judged")
    assert saved == anew


def _went_on(run: Path) -> None:
    """Requeue the run, which succeeds then."""
    shutil.rmtree(run / "state")
    keep = (run / "report.json").read_bytes()
    again = RunBuilder(run.parent, run_id=run.name, job_id="2").round().fail(2, ValueError("bang"), step=90).stop()
    again.attempt().round().succeed().close("succeeded", "all").write()
    (run / "report.json").write_bytes(keep)


def _of_another_run(run: Path) -> None:
    shutil.copy(run.parent / "job-3" / "report.json", run / "report.json")


def _link(run: Path) -> None:
    (run / "report.json").rename(run.parent / "elsewhere.json")
    (run / "report.json").symlink_to(run.parent / "elsewhere.json")


def _torn(run: Path) -> None:
    data = (run / "report.json").read_bytes()
    (run / "report.json").write_bytes(data[: len(data) // 2])


def _wrong_types(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    report["accounting"]["lost_s"] = "a lot"
    (run / "report.json").write_text(json.dumps(report))


def _other_version(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps(report | {"version": 2}))


def _still_open(run: Path) -> None:
    """The report was saved by hand while the run went on."""
    shutil.rmtree(run)
    path = RunBuilder(run.parent, run_id=run.name, job_id="2").round().steps(1, 9).write()
    save(make_report(path), path)


@pytest.mark.parametrize(
    "spoil",
    [_went_on, _of_another_run, _link, _torn, _wrong_types, _other_version, _still_open],
    ids=lambda f: f.__name__,
)
def test_a_report_of_another_end_or_origin_is_not_used(
    spoil: Callable[[Path], None], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(runs / "job-2")
    history = found(capsys)
    assert judged(history) == ["job-2"]
    assert len(history["runs"]) == 3
    assert not history["problems"]


def test_a_report_that_another_user_wrote_is_not_used(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    os.chown(runs / "job-2" / "report.json", 12345, 12345)
    assert judged(found(capsys)) == ["job-2"]


def test_damaged_runs_are_named_and_the_others_counted(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "job-2" / "state" / "000000000007.json").write_bytes(b"\0")
    (runs / "job-4" / "state").mkdir(parents=True)
    history = found(capsys)
    assert [
        (each["run"], each["problem"].partition(" (")[0])
        for each in sorted(history["problems"], key=lambda e: e["run"])
    ] == [
        ("job-2", "state/000000000007.json: empty"),
        ("job-4", "no agent has written a state: it never started, or begins just now"),
    ]
    assert history["totals"]["runs"] == 2
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "4 runs in " in out
    assert "2 that cannot be judged" in out
    assert "cannot be judged: job-4: no agent has written a state" in out


def test_only_runs_that_changed_since_are_counted(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_ago = time.time_ns() - 40 * 86400 * 10**9
    os.utime(runs / "job-1" / "state", ns=(long_ago, long_ago))
    assert found(capsys, "--since", "30d")["totals"]["runs"] == 2
    assert found(capsys, "--since", "60d")["totals"]["runs"] == 3
    assert main(["--since", "soon"]) == 2
    assert "expected a time such as 90m, 24h, 7d" in capsys.readouterr().err


def test_the_text_has_the_totals_and_with_failed_both_tables(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--failed"]) == 0
    out = capsys.readouterr().out
    first, *rest = out.splitlines()
    assert first == f"3 runs in {runs}: 2 failed, 1 succeeded"
    assert any(line.startswith("  3 failures in 3 runs, one per ") for line in rest)
    assert any(line.startswith("  effective training time: ") for line in rest)
    assert "failures by cause" in rest
    assert "failures by node" in rest
    assert "\x1b" not in out


def test_the_page_is_one_file_in_which_content_is_text(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-o", "history.html"]) == 0
    assert capsys.readouterr().out == ""
    page = (tmp_path / "history.html").read_text()
    assert "Failures by cause" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert 'href="./job-3/report.html"' in page
    assert main(["-o", "nowhere/history.html"]) == 2
    assert "cannot write nowhere/history.html" in capsys.readouterr().err


def test_an_empty_directory_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--failed"]) == 0
    assert capsys.readouterr().out == f"0 runs in {tmp_path}\n"

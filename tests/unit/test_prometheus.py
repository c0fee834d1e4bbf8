"""`ftslurm status --prometheus`: the text format, its names as documented, and a file that is never half written."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.status.command import main, make_status
from ftslurm.status.prometheus import exposition, metrics, write_file
from ftslurm.status.snapshot import Snapshot
from ftslurm.status.summary import summarise

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r'ftslurm_[a-z_]+\{run="[^"\n]*"(,[a-z]+="(\\.|[^"\\\n])*")?\} -?[0-9.e+-]+')


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that failed once and goes on."""
    builder = RunBuilder(tmp_path).round().steps(1, 9).fail(3, ValueError("boom"), step=9).stop().round().steps(9, 20)
    return builder.write()


def values(text: str) -> dict[str, float]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_each_line_is_of_the_format_and_each_metric_has_its_help_and_type_once(run: Path) -> None:
    text = exposition(make_status(run))
    lines = text.splitlines()
    assert text.endswith("\n") and all(LINE.fullmatch(line) for line in lines if line[0] != "#")
    for kind in ("HELP", "TYPE"):
        names = [line.split()[2] for line in lines if line.startswith(f"# {kind} ")]
        assert len(set(names)) == len(names)
        assert set(names) == {line.partition("{")[0] for line in lines if line[0] != "#"}


def test_the_values_are_those_of_the_status(run: Path) -> None:
    status = make_status(run)
    found = values(exposition(status))
    own = f'run="{status["run"]}"'
    assert found[f"ftslurm_round{{{own}}}"] == status["round"] == 2
    assert found[f"ftslurm_restarts_used{{{own}}}"] == status["restarts"]["used"]
    assert found[f'ftslurm_rounds_ended{{{own},outcome="failed"}}'] == 1
    assert found[f'ftslurm_run_status{{{own},status="{status["status"]}"}}'] == 1
    assert sum(value for name, value in found.items() if name.startswith("ftslurm_run_status")) == 1


def test_what_is_unknown_is_left_out() -> None:
    text = exposition(summarise(Snapshot("/runs/x", 1)))
    assert "ftslurm_round{" not in text and 'status="unknown"} 1.0' in text


def test_a_hostile_name_stays_inside_its_label() -> None:
    status: dict[str, Any] = {**summarise(Snapshot("/x", 1)), "run": 'a"} 1\nevil{x="\\'}
    lines = exposition(status).splitlines()
    assert not any(line.startswith("evil") for line in lines)
    assert 'run="a\\"} 1\\nevil{x=\\"\\\\"' in exposition(status)


def test_the_metrics_are_the_documented_ones() -> None:
    documented = set(re.findall(r"^\| `ftslurm_([a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text(), re.M))
    assert documented == {metric.name for metric in metrics(summarise(Snapshot("/x", 1)))}


def test_the_file_replaces_the_old_one_whole_and_others_may_read_it(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "metrics" / "run.prom"
    target.parent.mkdir()
    target.write_text("old")
    before = target.stat().st_ino
    assert main([str(run), "--prometheus", str(target)]) == 0
    assert target.stat().st_ino != before and stat.S_IMODE(target.stat().st_mode) == 0o644
    assert "ftslurm_round{" in target.read_text()
    assert [path.name for path in target.parent.iterdir()] == ["run.prom"]


def test_nothing_is_printed_and_a_missing_directory_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--prometheus", str(tmp_path / "x.prom")]) == 0
    assert capsys.readouterr().out == ""
    assert main([str(run), "--prometheus", str(tmp_path / "none" / "x.prom")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "No such file or directory" in err


def test_no_temporary_file_is_left_when_the_file_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.prom").mkdir()
    with pytest.raises(OSError):
        write_file(str(tmp_path / "x.prom"), "new")
    assert [path.name for path in tmp_path.iterdir()] == ["x.prom"]

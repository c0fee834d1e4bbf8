"""The output of ranks, found in run directories that were built for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.logs.command import main
from ftslurm.logs.files import RunOutput


def test_the_node_of_a_rank_in_an_earlier_round_is_known(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("boom"), step=1).round().write()
    found = [RunOutput(str(run)).of_rank(rank, 1) for rank in range(4)]
    assert [one.node for one in found if one is not None] == ["n1", "n1", "n2", "n2"]


def test_a_rank_that_printed_nothing_is_not_sought_in_an_earlier_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = RunBuilder(tmp_path).round().log(3, "of round 1\n").fail(3, ValueError("boom"), step=1).stop()
    builder.attempts[-1]["options"]["redirects"] = 3
    run = builder.round().succeed().close("succeeded", "all").write()
    (run / "rounds" / "000002" / "ranks" / "00003").rmdir()
    assert main([str(run), "--rank", "3"]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "rank 3 printed nothing in round 2" in output.err
    assert main([str(run), "--rank", "3", "--round", "1"]) == 0
    assert "of round 1" in capsys.readouterr().out
    assert main([str(run), "--rank", "9"]) == 2
    assert "rank 9 has no output" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "shown"), [(1, "1"), ({"0": 3, "1": 1}, "0:3,1:1")])
def test_output_without_a_file_names_the_runs_own_redirects(
    value: object, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = RunBuilder(tmp_path).round()
    builder.attempts[-1]["options"]["redirects"] = value
    assert main([str(builder.write()), "--stderr"]) == 2
    assert f"with --redirects {shown} it went to the job's own output" in capsys.readouterr().err

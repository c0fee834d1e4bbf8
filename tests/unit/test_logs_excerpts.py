"""What the report makes of excerpts of real jobs' logs, as people paste them into public threads.

They begin or end anywhere, even within a traceback; ``expected`` has what an expert concludes from each text alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ftslurm.report.command import main
from ftslurm.report.pipeline import report_of_logs

EXCERPTS = Path(__file__).parents[1] / "corpus/excerpts"
NONE = "-"
EXPECTED = [
    line.split() for line in (EXCERPTS / "expected").read_text().splitlines() if line and not line.startswith("#")
]


@pytest.mark.parametrize("row", EXPECTED, ids=[row[0] for row in EXPECTED])
def test_an_excerpt_is_explained_by_what_it_contains(row: list[str], tmp_path: Path) -> None:
    name, rank, node, cause, place = row
    # Alone, so that no other one counts as a file of the same job.
    log = tmp_path / "slurm-4711.out"
    shutil.copy(EXCERPTS / f"{name}.txt", log)
    found = report_of_logs(log)["cause"] or {}
    where = found.get("where")
    base = where["file"].replace("\\", "/").rpartition("/")[2] if where else ""
    known = (found.get("rank"), found.get("node"), found.get("cause"), f"{base}:{where['line']}" if where else None)
    # The name of a process of Ray has blanks.
    assert tuple(NONE if each is None else str(each).replace(" ", "_") for each in known) == (rank, node, cause, place)


def test_the_table_names_each_excerpt() -> None:
    assert [row[0] for row in EXPECTED] == sorted(path.stem for path in EXCERPTS.glob("*.txt"))


def test_a_log_that_ends_within_a_traceback_gives_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "slurm-4711.out"
    shutil.copy(EXCERPTS / "gr00t-cut.txt", log)
    assert main(["--exit-code", "--logs", str(log)]) == 1
    assert "Exception: the log ends before its type and text" in " ".join(capsys.readouterr().out.split())

"""A checkpoint that cannot be loaded, with real agents: named, avoided, and got past."""

from __future__ import annotations

import json
from pathlib import Path

from tests.process.test_run import Started

TRAIN = """\
import os, pickle
import ftslurm
bad = os.environ.get("FTSLURM_AVOID_CHECKPOINT", "").splitlines()
path = next(path for path in ("last.pkl", "older.pkl") if path not in bad)
ftslurm.loading(path)
with open(path, "rb") as file:
    first = pickle.load(file)
for step in range(first, first + 3):
    ftslurm.progress(step)
print("loaded", path)
"""


def test_a_corrupt_checkpoint_is_avoided_after_two_starts_and_the_report_names_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "last.pkl").write_bytes(b"\x80\x04\x95")
    (tmp_path / "older.pkl").write_bytes(b"\x80\x04K\x05.")
    run = Started(tmp_path, "--local-nodes", "2", "train.py")
    assert run.wait() == 0, run.err
    assert "loaded older.pkl" in run.out + run.err
    assert "checkpoint last.pkl is bad: 2 starts from it failed without a step gained" in run.err
    report = json.loads((run.run_dir / "report.json").read_text())
    assert len(report["rounds"]) == 3 and report["last_step"] == 7
    # Steps were gained from the other one: the first remains bad.
    assert report["bad_checkpoints"] == ["last.pkl"]


def test_a_script_that_loads_it_again_and_again_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("if path not in bad", ""))
    (tmp_path / "last.pkl").write_bytes(b"\x80\x04\x95")
    run = Started(tmp_path, "--local-nodes", "2", "train.py")
    assert run.wait() == 1
    assert "it would fail again" in run.err, run.err
    assert "checkpoint last.pkl is bad" in run.out, run.out

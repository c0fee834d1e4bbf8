"""Each template, filled in by `ftslurm template` and submitted to a real Slurm; stand-ins for container runtimes."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import ROOT, Job, Lab

NAMES = sorted(path.stem for path in (ROOT / "sbatch_templates").glob("*.sbatch"))
SHOW = """\
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], os.environ.get("IN_IMAGE"), flush=True)
"""
# What the real one does with its arguments, without a container.
APPTAINER = """\
#!/bin/bash
while [[ $1 != *.sif ]]; do shift; done
export IN_IMAGE=$1
shift
exec "$@"
"""
PYXIS = """\
#!/bin/bash
arguments=()
for argument in "$@"; do
  case $argument in
    --container-image=*) export IN_IMAGE=${argument##*/} ;;
    --container-mounts=* | --container-workdir=*) ;;
    *) arguments+=("$argument") ;;
  esac
done
exec REAL "${arguments[@]}"
"""


@pytest.fixture
def place(lab: Lab, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script, and the stand-ins on PATH."""
    (work / "train.py").write_text(SHOW)
    (work / "bin").mkdir()
    real = shutil.which("srun", path=lab.environment["PATH"])
    for name, text in (("apptainer", APPTAINER), ("srun", PYXIS.replace("REAL", str(real)))):
        (work / "bin" / name).write_text(text)
        (work / "bin" / name).chmod(0o755)
    monkeypatch.setitem(lab.environment, "PATH", f"{work / 'bin'}:{lab.environment['PATH']}")
    monkeypatch.setitem(lab.environment, "PYTHON_EXEC", sys.executable)
    return work


def submit(lab: Lab, place: Path, name: str, nodes: int, *options: str) -> Job:
    fill = ("ftslurm", "template", name, "--nodes", str(nodes), "--gpus-per-node", "0", "--time", "10", *options)
    made = lab.command(*fill, "--", "train.py", "--note", "a b; $HOME", cwd=place)
    assert made.returncode == 0, made.stderr
    (place / f"{name}.sbatch").write_text(made.stdout)
    done = lab.command("sbatch", "--parsable", f"{name}.sbatch", cwd=place)
    assert done.returncode == 0, done.stderr
    return Job(lab, done.stdout.strip(), place)


SIZES = {"single_node": (1, 1), "spares": (3, 2), "elastic": (3, 3)}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("array", "chain")])
def test_a_template_runs(lab: Lab, place: Path, name: str) -> None:
    nodes, used = SIZES.get(name, (2, 2))
    job = submit(lab, place, name, nodes)
    assert job.wait() == "COMPLETED", job.explain()
    workers = 2 if name == "cpu_smoke" else os.cpu_count() or 1
    image = {"apptainer": "train.sif", "pyxis": "train.sqsh"}.get(name)
    assert f"[rank 0] rank 0 of {used * workers} ['--note', 'a b; $HOME'] {image}" in job.output, job.explain()
    assert " succeeded: 1 round" in job.output


def test_each_task_of_the_array_is_a_run(lab: Lab, place: Path) -> None:
    job = submit(lab, place, "array", 1, "--array", "0-2%2")
    lab.until(lambda: not lab.command("squeue", "-h").stdout.strip(), 90, job.explain)
    outputs = {path.name: path.read_text() for path in place.glob("slurm-*.out")}
    assert sorted(outputs) == [f"slurm-{job.id}_{task}.out" for task in range(3)]
    assert all("succeeded: 1 round" in text for text in outputs.values())


def test_the_links_of_a_chain_run_one_after_the_other_in_one_run_and_end_when_its_work_is_done(
    lab: Lab, place: Path
) -> None:
    (place / "checkpoints").mkdir()
    done = "import os\nif os.environ['FTSLURM_ROUND'] == '2': open('checkpoints/done', 'w').close()\n"
    (place / "train.py").write_text(SHOW + done)
    jobs = [submit(lab, place, "chain", 1, "--job-name", "my-chain") for _ in range(3)]
    lab.until(lambda: not lab.command("squeue", "-h").stdout.strip(), 120, jobs[-1].explain)
    outputs = [job.output for job in jobs]
    assert ["succeeded" in text for text in outputs] == [True, True, False], outputs
    assert outputs[2] == ""
    assert len(list((place / "ftslurm-runs" / "my-chain" / "attempts").iterdir())) == 2

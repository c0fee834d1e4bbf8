"""`srun ftslurm doctor` on a real Slurm: all nodes, one table."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.conftest import Lab


def test_srun_on_three_nodes_prints_one_table_with_three_nodes(lab: Lab, work: Path) -> None:
    done = lab.command("srun", "-N3", "--ntasks-per-node=1", "ftslurm", "doctor", str(work), "--seconds", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ftslurm doctor:") == 1, done.stdout
    assert f"{work}: fine" in done.stdout and "(3 nodes, " in done.stdout, done.stdout
    rows = [fields[0] for line in done.stdout.splitlines() if (fields := line.split()) and fields[0] in lab.nodes]
    assert sorted(rows) == sorted(lab.nodes), done.stdout
    assert list(work.iterdir()) == []


def test_srun_with_several_tasks_on_a_node_checks_once_each_node(lab: Lab, work: Path) -> None:
    done = lab.command(
        "srun", "-N2", "-n4", "--overcommit", "ftslurm", "doctor", str(work), "--seconds", "1", "--wait", "20"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(2 nodes, " in done.stdout, done.stdout


def test_a_directory_that_is_missing_fails_the_step_and_is_found(lab: Lab, work: Path) -> None:
    done = lab.command("srun", "-N3", "--ntasks-per-node=1", "ftslurm", "doctor", str(work / "nothere"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "is not there" in done.stdout, done.stdout

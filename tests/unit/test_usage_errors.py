"""A mistake on the command line of any command is one line with what to do, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.agent.prepare import prepare
from ftslurm.cli import main

CASES = [
    ("report --bogus", "ftslurm report: unknown option --bogus; see ftslurm report --help"),
    ("report --round x", "ftslurm report: --round: expected a round's number (1, 2, ...), found 'x'; see"),
    ("report --format pdf", "ftslurm report: --format: expected one of text, json, markdown, html, found 'pdf'; see"),
    ("report --shared-dir", "ftslurm report: --shared-dir: expected one argument; see ftslurm report --help"),
    ("report --jsn", "ftslurm report: unknown option --jsn; did you mean --json?; see ftslurm report --help"),
    (
        "nodes exclud n1",
        "ftslurm nodes: list|exclude|allow|pass-on: expected one of list, exclude, allow, pass-on, found"
        " 'exclud'; did you mean exclude?; see",
    ),
    ("reprot 12", "ftslurm: unknown command 'reprot'; did you mean report? run, report, status,"),
    ("train.py --lr 1", "ftslurm: 'train.py' is no command; to start a program: ftslurm run train.py --lr 1"),
    ("--nproc-per-node 2 x", "ftslurm: '--nproc-per-node' is no command; to start a program: ftslurm run --nproc-"),
    ("--versoin", "ftslurm: unknown command '--versoin'"),
    ("bogus", "ftslurm: unknown command 'bogus': run, report, status,"),
    ("status a b", "ftslurm status: unexpected argument b; see ftslurm status --help"),
    ("status --watch x", "ftslurm status: --watch: expected a time from 1 s to 1d"),
    ("logs --rank -1", "ftslurm logs: --rank: expected a number from 0 on, found '-1'; see"),
    ("logs --stdout --stderr", "ftslurm logs: --stderr: not allowed with argument --stdout; see ftslurm logs --help"),
    ("nodes", "ftslurm nodes: expected list|exclude|allow|pass-on; see ftslurm nodes --help"),
    ("nodes ls", "ftslurm nodes: list|exclude|allow|pass-on: expected one of list, exclude, allow, pass-on, found"),
    ("nodes exclude", "ftslurm nodes exclude: expected NODE; see ftslurm nodes exclude --help"),
    ("doctor --wait 0", "ftslurm doctor: --wait: expected a time from 0.5 to 3600 s"),
    ("health --all --quick", "ftslurm health: --quick: not allowed with argument --all; see ftslurm health --help"),
]


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_a_mistake_is_one_line(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith(expected)
    assert (out, err.count("\n")) == ("", 1)


def test_control_sequences_in_a_mistake_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--watch", "\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_misspelt_switch_is_named_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--versoin"]) == 2
    assert "did you mean --version?" in capsys.readouterr().err


def test_help_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: ftslurm report")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current directory has a script train.py."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def below_srun(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    monkeypatch.setattr("ftslurm.agent.prepare.own_step", lambda: "0")
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", task)):
        monkeypatch.setenv(name, value)


OLD_LINE = ["--rdzv-backend", "c10d", "--nproc-per-node", "8", "--rdzv-endpoint", "n1:1", "train.py", "--lr", "1"]


@pytest.mark.usefixtures("script")
def test_srun_torchrun_made_srun_ftsrun_is_one_message_of_one_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    below_srun(monkeypatch, "0")
    assert prepare(OLD_LINE) == 2
    assert capsys.readouterr().err.splitlines() == [
        "ftslurm: 2 options of torchrun to be dropped:",
        "  --rdzv-backend: the shared directory is the rendezvous",
        "  --rdzv-endpoint: the shared directory is the rendezvous, no host or port is needed",
        "  srun: ftsrun calls it itself",
        "use: ftsrun --nproc-per-node 8 train.py --lr 1",
    ]
    below_srun(monkeypatch, "1")
    assert prepare(OLD_LINE) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("script")
def test_outside_a_job_the_command_line_is_checked_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert prepare(OLD_LINE) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "use: ftsrun --nproc-per-node 8 train.py --lr 1"
    assert prepare(["train.py"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(
        "ftslurm: not inside a Slurm job (SLURM_JOB_ID is not set); use ftsrun in an sbatch script"
    )
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (("--standalone", "trian.py"), "trian.py: no such script; train.py is there; expected a Python script"),
        (("--run-path", "--no-python", "train.py"), "train.py: no such program (or not executable)"),
        (("--standalone", "-m", "--no-python", "x"), "--module and --no-python: only one of them makes sense"),
    ],
)
def test_what_the_corrected_line_would_be_refused_for_is_in_the_same_message(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], mistake: str
) -> None:
    assert prepare(arguments) == 2
    first, _, explanation, use = capsys.readouterr().err.splitlines()
    assert first == "ftslurm: 1 option of torchrun to be dropped and 1 mistake in the options:"
    assert explanation.startswith(f"  {mistake}")
    assert use.startswith("use, with right values: ")


def test_srun_ftsrun_says_that_ftsrun_calls_srun_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    below_srun(monkeypatch, "0")
    assert prepare(["train.py"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("ftslurm: ftsrun is a task of srun here (step 7.0)")
    assert "ftsrun calls srun itself" in printed
    assert printed.count("\n") == 1

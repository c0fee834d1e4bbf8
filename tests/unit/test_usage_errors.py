"""A mistake on the command line of any command is one line with what to do, and exit code 2."""

from __future__ import annotations

import pytest

from ftslurm.cli import main

CASES = [
    ("report --bogus", "ftslurm report: unknown option --bogus; see ftslurm report --help"),
    ("report --round x", "ftslurm report: --round: expected a round's number (1, 2, ...), found 'x'; see"),
    ("report --format pdf", "ftslurm report: --format: expected one of text, json, markdown, html, found 'pdf'; see"),
    ("report --shared-dir", "ftslurm report: --shared-dir: expected one argument; see ftslurm report --help"),
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


def test_help_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: ftslurm report")

"""Logs with what collectors, viewers and people put before each line are reported as those without."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_logs_texts import TB, TEXTS

from ftslurm.report.logs.lines import cleaned
from ftslurm.report.pipeline import report_of_logs
from ftslurm.report.text import render

Form = Callable[[str, int], str]


def at(i: int) -> str:
    return f"{10 + i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}"


FORMS: dict[str, Form] = {
    "kubectl --timestamps": lambda line, i: f"2026-11-23T{at(i)}.037000123Z {line}",
    "GitHub Actions": lambda line, i: f"2026-11-23T{at(i)}.0370001Z {line}",
    "containerd": lambda line, i: f"2026-11-23T{at(i)}.037000123Z stderr F {line}",
    "times in brackets": lambda line, i: f"[2026-11-23 {at(i)}] {line}",
    "times": lambda line, i: f"2026-11-23 {at(i)},123 {line}",
    "journald": lambda line, i: f"Nov 23 {at(i)} node7 python[123]: {line}",
    "syslog": lambda line, i: f"<14>Nov 23 {at(i)} node7 train: {line}",
    "loguru": lambda line, i: f"2026-11-23 {at(i)}.123 | INFO     | runner:pump:{i} - {line}",
    "kubectl --prefix": lambda line, _: f"[pod/train-0-abcde/pytorch] {line}",
    "stern": lambda line, _: f"trainer-0 main {line}",
    "docker compose": lambda line, _: f"trainer  | {line}",
    "cat -n": lambda line, i: f"{i:6d}\t{line}",
    "a quote": lambda line, _: f"> {line}".rstrip(),
    "an indentation": lambda line, _: f"    {line}",
    "a table": lambda line, i: f"Nov 23, 2026 @ {at(i)}.123\ttrainer-0\t{line}",
    "docker's JSON": lambda line, i: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": at(i)}),
    "HTML": lambda line, _: html.escape(line),
}
# These show what is before them.
NAMES = [name for name, (text, _) in TEXTS.items() if "Traceback (most recent call last)" in text]


def verdict(path: Path) -> tuple[Any, ...]:
    report = report_of_logs(path)
    cause = report["cause"] or {}
    return report["status"], cause.get("cause"), cause.get("rank"), cause.get("what"), cause.get("where")


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_before_each_line_changes_nothing(tmp_path: Path, name: str, form: str) -> None:
    text, _ = TEXTS[name]
    plain, other = tmp_path / "a/slurm-1.out", tmp_path / "b/slurm-1.out"
    for path in (plain, other):
        path.parent.mkdir()
    plain.write_text(text)
    # srun and Slurm write to the same file.
    other.write_text("".join(f"{FORMS[form](line, i)}\n" for i, line in enumerate(text.rstrip("\n").split("\n"))))
    assert verdict(other) == verdict(plain)


def test_lines_that_a_terminal_has_cut_are_read_as_one(tmp_path: Path) -> None:
    text = TEXTS["labels of srun, torchrun and torch"][0]
    plain, other = tmp_path / "a/slurm-1.out", tmp_path / "b/slurm-1.out"
    for path in (plain, other):
        path.parent.mkdir()
    plain.write_text(text)
    wrapped = [line[i : i + 60] for line in text.split("\n") for i in range(0, max(len(line), 1), 60)]
    assert len(wrapped) > len(text.split("\n"))
    other.write_text("\n".join(wrapped))
    assert verdict(other) == verdict(plain)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("HTML", "docker's JSON")])
def test_a_programs_own_times_and_names_stay(form: str) -> None:
    text = "\n".join(FORMS[form](f"step {i} loss 0.5", i) for i in range(30) if i % 9) + "\nno prefix\n" * 4
    assert cleaned(text) == text.removesuffix("\n").split("\n")


def test_what_rays_client_repeats_at_its_end_is_no_second_process(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    status = "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n"
    log.write_text(f"step 1 loss 2.4\n{TB}\nJob 'raysubmit_a' failed\n\n{status}{TB}")
    shown = " ".join(render(report_of_logs(log)).split())
    assert "ValueError: bad batch 42" in shown
    assert "2 processes printed this traceback" not in shown

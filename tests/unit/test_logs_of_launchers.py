"""The report on logs of many launchers with known truth: right, vague or wrong.

FTSLURM_LOGS_SEED=N tries another choice of failures, wrappings and noise; 0 one by chance. The seed is printed.
Those by default had found wrong answers.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ftslurm.report.pipeline import report_of_logs
from ftslurm.report.text import render
from tests.unit.log_failures import CAUSES
from tests.unit.log_histories import Log, logs

NUMBER = 120
RIGHT = 0.85
SEEDS = [int(each) for each in os.environ.get("FTSLURM_LOGS_SEED", "3 6 63 110 156").split()]


def judged(log: Log, report: dict[str, Any], text: str) -> str:
    """Return "right", "vague" or "wrong"."""
    cause, flat = report["cause"], " ".join(text.split())
    if log.failure is None:
        if report["status"] != log.status:
            return "vague" if report["status"] == "unfinished" else "wrong"
        first = " ".join(text.partition("traceback of")[0].partition("the end of its stderr")[0].split())
        return "right" if all(part in first for part in log.says) else "vague"
    if cause is None:
        return "vague" if report["status"] == "unfinished" else "wrong"
    if log.alike:
        # Torn tracebacks of many ranks may leave some of them unknown.
        ranks = (cause["alike"] or {}).get("ranks")
        return "right" if ranks == "0-3" and any(part.lower() in flat.lower() for part in log.failure.says) else "vague"
    if (
        cause["rank"] is not None
        and log.victim is not None
        and log.name != "one process"
        and cause["rank"] != log.victim
    ):
        return "wrong"
    labelled = "[rank" in log.failure.text or "end cut off" in log.history
    if cause["rank"] is not None and log.rank is None and log.name in ("deepspeed", "mixed lines") and not labelled:
        return "wrong"
    head = " ".join(flat.split("evidence")[0].split())
    if not any(part.lower() in head.lower() for part in log.failure.says):
        return (
            "vague"
            if (cause["kind"] in ("exit", "signal") and log.failure.code < 0) or cause["kind"] == "exit"
            else "wrong"
        )
    if cause["cause"] != CAUSES.get(log.failure.name, cause["cause"]):
        return "wrong"
    if log.failure.place is not None and log.name != "mixed lines":
        file, line = log.failure.place
        if cause["where"] is None:
            return "vague"
        if (cause["where"]["file"].rsplit("/", 1)[-1], cause["where"]["line"]) != (file, line):
            return "wrong"
    return "vague" if log.rank is not None and cause["rank"] is None else "right"


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS)
def test_logs_of_all_launchers_are_reported_right_and_never_wrong(seed: int, tmp_path: Path) -> None:
    seed = seed or random.SystemRandom().randrange(1, 10**6)
    counts: Counter[str] = Counter()
    lines = []
    for i, log in enumerate(logs(seed, NUMBER)):
        path = log.write(tmp_path / str(i))
        report = report_of_logs(path / "logs" if (path / "logs").is_dir() else path)
        text = render(report)
        verdict = judged(log, report, text)
        counts[verdict] += 1
        kind = log.failure.name if log.failure is not None else "-"
        if verdict != "right":
            lines.append(f"{verdict} {i} {log.name} {kind} {log.coding} {log.history}: {text.splitlines()[:2]}")
    total = counts.total()
    shown = "\n".join([f"seed {seed}: {dict(counts)} of {total}", *lines])
    print(shown)
    assert counts["wrong"] == 0, shown
    assert counts["right"] >= RIGHT * total, shown

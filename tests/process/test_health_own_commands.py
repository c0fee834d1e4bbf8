"""Commands that hang, flood, fork, hide and lie: each is judged in time, and nothing of them is left."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from ftslurm.health.check import Context
from ftslurm.health.checks import own_commands
from ftslurm.health.result import RunResult
from ftslurm.health.run import run
from ftslurm.health.verdict import Verdict
from ftslurm.records.health import FAIL, OK, UNKNOWN, WARN

MARK = "FTSLURM_TEST_MARK"


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


def look(mark: str, *commands: str, **more: Any) -> Verdict:
    (verdict,) = looked(mark, *commands, **more).verdicts
    return verdict


def looked(mark: str, *commands: str, **more: Any) -> RunResult:
    context = Context("n1", environ={**os.environ, MARK: mark}, commands=commands, **more)
    return run([own_commands.CHECK], context, {})


def running(mark: str) -> list[str]:
    """Return the names of all processes that carry the mark in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "comm").read_text().strip())
        except OSError:
            continue
    return found


def nothing_left(mark: str) -> None:
    deadline = time.monotonic() + 2
    while running(mark):
        assert time.monotonic() < deadline, running(mark)
        time.sleep(0.02)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_commands, "LIMIT_S", 1.0)


def statuses_and_texts(verdict: Verdict) -> list[tuple[str, str]]:
    return [(finding.status, finding.text) for finding in verdict.findings]


def test_exit_codes_and_first_lines_count(mark: str) -> None:
    commands = ("echo fine; echo more", "echo; echo low on fans; exit 1", "echo broken >&2; exit 2", "exit 3", "true")
    verdict = look(mark, *commands)
    assert statuses_and_texts(verdict) == [
        (WARN, "low on fans"),
        (FAIL, "broken"),
        (UNKNOWN, "exit code 3, expected 0, 1 or 2"),
    ]
    assert verdict.status == FAIL and verdict.summary == "5 commands, 3 not ok"


def test_they_run_at_once_and_know_the_node_and_whether_ranks_run(mark: str) -> None:
    began = time.monotonic()
    show = 'sleep 0.4; echo "$FTSLURM_NODE $FTSLURM_HEALTH_BUSY"; exit 1'
    assert statuses_and_texts(look(mark, *[show] * 4)) == [(WARN, "n1 0")] * 4
    assert time.monotonic() - began < 1.5
    assert statuses_and_texts(look(mark, show, busy=True)) == [(WARN, "n1 1")]


def test_a_command_that_is_not_there_is_unknown(mark: str) -> None:
    ((status, text),) = statuses_and_texts(look(mark, "/no/such/program --check"))
    assert status == UNKNOWN and text.startswith("exit code 127, expected 0, 1 or 2: ") and "not found" in text


@pytest.mark.usefixtures("soon")
def test_one_that_hangs_is_killed_and_the_others_are_judged(mark: str) -> None:
    began = time.monotonic()
    verdict = look(mark, "echo waiting; sleep 600", "echo bad; exit 2")
    assert statuses_and_texts(verdict) == [
        (UNKNOWN, "has not ended within 1 s, and was killed; its output: waiting"),
        (FAIL, "bad"),
    ]
    assert time.monotonic() - began < 2.5
    nothing_left(mark)


@pytest.mark.usefixtures("soon")
def test_one_that_ignores_sigterm_is_killed(mark: str) -> None:
    verdict = look(mark, "trap '' TERM INT HUP; while :; do sleep 0.1; done")
    assert statuses_and_texts(verdict)[0][0] == UNKNOWN
    nothing_left(mark)


@pytest.mark.usefixtures("soon")
def test_grandchildren_in_sessions_of_their_own_are_killed_too(mark: str) -> None:
    verdict = look(mark, "setsid sleep 600 & (setsid setsid sleep 601 &) ; sleep 602")
    assert statuses_and_texts(verdict)[0][0] == UNKNOWN
    nothing_left(mark)


def test_a_daemon_that_a_good_command_leaves_is_killed_and_does_not_keep_us(mark: str) -> None:
    began = time.monotonic()
    verdict = look(mark, "echo started; sleep 600 & setsid sleep 601 &")
    assert verdict.status == OK and verdict.summary == "1 command, started"
    assert time.monotonic() - began < 2.0
    nothing_left(mark)


@pytest.mark.usefixtures("soon")
def test_one_that_forks_all_the_time_is_killed(mark: str) -> None:
    look(mark, "while :; do (sleep 0.05 &) ; sleep 0.02; done")
    nothing_left(mark)


@pytest.mark.usefixtures("soon")
def test_one_that_prints_without_end_is_killed_and_costs_little(mark: str) -> None:
    before = os.times()
    ((status, text),) = statuses_and_texts(look(mark, "yes 'all is well'"))
    assert status == UNKNOWN and text.endswith("its output: all is well")
    after = os.times()
    own = after.children_user + after.children_system - before.children_user - before.children_system
    assert own < 2.0
    nothing_left(mark)


def test_garbage_is_escaped_and_cut(mark: str) -> None:
    ((_, text),) = statuses_and_texts(look(mark, "printf '\\033[2J\\377\\000bad%05000d' 1; exit 1"))
    assert text.startswith("�\\x00bad000") and len(text) == 200 and text.isprintable()


def test_more_output_than_a_pipe_holds_does_not_stop_a_command(mark: str) -> None:
    verdict = look(mark, "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; exit 1")
    assert statuses_and_texts(verdict) == [(WARN, "first")]


def test_one_that_kills_itself_is_unknown(mark: str) -> None:
    assert statuses_and_texts(look(mark, "echo before; kill -SEGV $$")) == [(UNKNOWN, "was killed by SIGSEGV: before")]


def test_one_that_closes_its_output_is_judged_by_its_code(mark: str) -> None:
    assert statuses_and_texts(look(mark, "exec >&- 2>&-; sleep 0.2; exit 2")) == [(FAIL, "exit code 2, no output")]


def test_one_that_reads_gets_nothing(mark: str) -> None:
    assert statuses_and_texts(look(mark, "cat; echo done; exit 1")) == [(WARN, "done")]

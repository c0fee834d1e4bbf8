"""`--stop-when` with commands and files that cannot work: one line for each kind of problem, nothing raw."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from ftslurm.agent.job_watch import NOTICE_EVERY_S, NOTICE_S, JobWatch, JobWatchSettings
from ftslurm.records.stop import StopRequest
from tests.process.test_run import Start, start

__all__ = ["start"]


class Watched:
    """A job watch whose clock stands still but for the test."""

    def __init__(self, command: str | None = None, file: str | None = None) -> None:
        self.now = 0.0
        self.logged: list[str] = []
        settings = JobWatchSettings(None, (), "", dict(os.environ), file=file, command=command)
        self.watch = JobWatch(settings, self._send, set(), lambda: self.now, lambda: 1, self.logged.append)

    @staticmethod
    def _send(task: Callable[[], object], answer: Callable[[object], None]) -> None:
        answer(task())

    def attempt(self, takes_s: float = 0.0) -> list[object]:
        """Do one attempt, whose process takes that long by the clock."""
        self.now += NOTICE_EVERY_S
        found: list[object] = list(self.watch.poll())
        self.now += takes_s
        while not found and self.watch.deadline is not None and self.watch._command is not None:
            if not takes_s:
                select.select([self.watch.fd], [], [])
            found += self.watch.poll()
        return found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("no-such-program --check", "`no-such-program --check` cannot be run here (code 127: "),
        ("/etc/passwd --check", "cannot be run here (code 126: "),
        ("if", "ended with code 2: "),
        ("printf 'no \\033[2Jway\\n' >&2; exit 22", "ended with code 22: no way; only code 0 is a notice"),
        ("head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2; exit 3", "ended with code 3: last;"),
    ],
)
def test_a_command_that_cannot_work_is_named_once(
    command: str, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    watched = Watched(command)
    assert [watched.attempt() for _ in range(3)] == [[], [], []]
    (line,) = watched.logged
    assert line.startswith("--stop-when: `") and expected in line
    assert capfd.readouterr() == ("", "")


def test_a_command_that_hangs_is_named_and_killed() -> None:
    watched = Watched("echo waiting for the service >&2; sleep 1000")
    assert [watched.attempt(NOTICE_S + 1) for _ in range(2)] == [[], []]
    (line,) = watched.logged
    assert "`echo waiting for the service >&2; sleep 1000` did not end within 10 s and was killed" in line


def test_another_kind_of_problem_is_named_too(tmp_path: Path) -> None:
    program = tmp_path / "check"
    watched = Watched(f"{program} now")
    watched.attempt()
    program.write_text("#!/bin/sh\necho no network >&2\nexit 7\n")
    program.chmod(0o755)
    watched.attempt()
    watched.attempt()
    assert ["code 127" in watched.logged[0], "code 7: no network" in watched.logged[1]] == [True, True]
    assert len(watched.logged) == 2


def test_a_command_that_only_says_no_is_not_named() -> None:
    watched = Watched("echo nothing; exit 1")
    watched.attempt()
    assert watched.logged == []


def test_a_message_on_stderr_is_no_part_of_a_notice() -> None:
    (event,) = Watched("echo 'deprecated option' >&2; echo 30; echo maintenance").attempt()
    assert (event.grace_s, event.reason.endswith(": maintenance")) == (30.0, True)  # type: ignore[attr-defined]


def test_a_file_that_cannot_be_examined_is_named_once(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    watched = Watched(file=str(loop / "notice"))
    watched.attempt()
    watched.attempt()
    (line,) = watched.logged
    assert "loop/notice cannot be examined: Too many levels of symbolic links" in line


def test_a_run_with_a_command_that_is_missing_goes_on_and_names_it_on_each_node(start: Start) -> None:
    run = start("import time; time.sleep(1)", "--local-nodes", "2", "--stop-when", "no-such-program")
    assert run.wait() == 0
    named = [line for line in run.err.splitlines() if "no-such-program" in line]
    assert sorted(line.split(": --stop-when")[0] for line in named) == ["ftslurm: local0", "ftslurm: local1"]
    assert "not found" in named[0]


def test_a_file_that_an_earlier_start_has_left_is_named_as_left_over(tmp_path: Path) -> None:
    file = tmp_path / "notice"
    fresh = Watched(file=str(file))
    assert fresh.attempt() == []
    file.touch()
    (notice,) = fresh.attempt()
    (again,) = Watched(file=str(file)).attempt()
    assert isinstance(notice, StopRequest) and isinstance(again, StopRequest)
    assert notice.reason == f"{file} exists"
    assert again.reason == f"{file} exists, since before this start: if nothing else removes it, remove it"

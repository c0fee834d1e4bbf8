"""What Slurm's HealthCheckProgram, Prolog and Epilog get from `ftslurm health --slurm`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ftslurm.health import catalog, run, slurm_program
from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Check, Context
from ftslurm.health.command import main
from ftslurm.health.result import RunResult
from ftslurm.health.verdict import Finding, Json, Judgement, Verdict
from ftslurm.records.health import FAIL, OK, UNKNOWN, WARN
from ftslurm.slurm import bounded as drain_module


class World:
    """What the checks find, and what was asked of them and of Slurm."""

    def __init__(self) -> None:
        self.statuses = {"gpu-a": OK, "gpu-b": OK, "host-c": OK}
        self.context: Context | None = None
        self.ran: list[str] = []
        self.before: Json = {}
        self.drained: list[tuple[str, str]] = []
        self.problem: str | None = None

    def run(self, checks: Sequence[Check], context: Context, before: Json) -> RunResult:
        self.context, self.ran, self.before = context, [check.name for check in checks], dict(before)
        verdicts = []
        for check in checks:
            status = self.statuses[check.name]
            found = (Finding(status, "GPU 3", "2 ECC errors", "Mend it."),) if status != OK else ()
            verdicts.append(Verdict(check.name, status, "x", found, 0.0, {"seen": check.name}))
        return RunResult(tuple(verdicts), (), 0.1)

    def drain(self, node: str, reason: str) -> str | None:
        self.drained.append((node, reason))
        return self.problem


def check(name: str, *sets: str) -> Check:
    return Check(name, "", frozenset(sets), 1.0, lambda context: {}, lambda facts, before, context: Judgement(""))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    world = World()
    checks = [check("gpu-a", QUICK, THOROUGH), check("gpu-b", BACKGROUND, THOROUGH), check("host-c", THOROUGH)]
    monkeypatch.setattr(catalog, "all_checks", lambda: checks)
    monkeypatch.setattr(run, "run", world.run)
    monkeypatch.setattr(drain_module, "drain", world.drain)
    monkeypatch.setattr(slurm_program, "FACTS", str(tmp_path / "facts.json"))
    monkeypatch.setattr(slurm_program, "_facts_file", lambda uid: slurm_program.FACTS)
    for name in ("FTSLURM_HEALTH_SKIP", "FTSLURM_HEALTH_PATHS", "FTSLURM_HEALTH_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    # As slurmd calls a HealthCheckProgram.
    monkeypatch.setenv("SLURMD_NODENAME", "n17")
    monkeypatch.delenv("PATH")
    return world


@pytest.mark.parametrize(
    ("mode", "extra", "status", "code", "drained"),
    [
        ("health-check", (), OK, 0, False),
        ("health-check", (), WARN, 0, False),
        ("health-check", (), UNKNOWN, 0, False),
        ("health-check", (), FAIL, 1, False),
        ("health-check", ("--drain",), WARN, 0, False),
        ("health-check", ("--drain",), UNKNOWN, 0, False),
        ("health-check", ("--drain",), FAIL, 1, True),
        ("prolog", (), FAIL, 0, False),
        ("prolog", ("--act",), OK, 0, False),
        ("prolog", ("--act",), WARN, 0, False),
        ("prolog", ("--act",), UNKNOWN, 0, False),
        ("prolog", ("--act",), FAIL, 1, True),
        ("prolog", ("--drain",), FAIL, 0, True),
        ("epilog", (), FAIL, 0, False),
        ("epilog", ("--act",), FAIL, 1, True),
        ("epilog", ("--drain", "--act"), WARN, 0, False),
    ],
)
def test_only_a_failed_check_with_act_has_consequences(
    mode: str, extra: tuple[str, ...], status: str, code: int, drained: bool, world: World
) -> None:
    world.statuses = dict.fromkeys(world.statuses, status)
    assert main(["--slurm", mode, *extra]) == code
    name = "gpu-b" if mode == "health-check" else "gpu-a"
    assert world.drained == ([("n17", f"ftslurm: {name}: GPU 3: 2 ECC errors")] if drained else [])


def test_a_fit_node_prints_nothing_and_another_one_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--slurm", "health-check"])
    assert capsys.readouterr() == ("", "")
    world.statuses["gpu-b"] = WARN
    main(["--slurm", "health-check"])
    out, err = capsys.readouterr()
    assert (out, err) == ("ftslurm health: n17: 1 warn: gpu-b: GPU 3: 2 ECC errors\n", "")
    assert not out.startswith("print "), "that would be a command to a TaskProlog"


def test_the_sets_fit_the_moment_and_can_be_chosen(world: World) -> None:
    for options, expected in (
        (["health-check"], ["gpu-b"]),
        (["prolog"], ["gpu-a"]),
        (["epilog", "--all"], ["gpu-a", "gpu-b", "host-c"]),
        (["health-check", "host"], ["host-c"]),
        (["health-check", "--all", "--skip", "gpu"], ["host-c"]),
    ):
        assert main(["--slurm", *options]) == 0
        assert world.ran == expected


def test_ranks_may_be_running_unless_the_site_excludes_that(world: World) -> None:
    main(["--slurm", "prolog"])
    assert world.context is not None and world.context.busy and world.context.node == "n17"
    main(["--slurm", "prolog", "--idle"])
    assert world.context is not None and not world.context.busy


def test_facts_of_one_run_are_known_to_the_next(world: World) -> None:
    main(["--slurm", "health-check"])
    assert world.before == {}
    main(["--slurm", "prolog"])
    assert world.before == {"gpu-b": {"seen": "gpu-b"}}
    main(["--slurm", "prolog"])
    assert set(world.before) == {"gpu-a", "gpu-b"}


def test_a_failed_drain_is_only_reported(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.statuses["gpu-b"] = FAIL
    world.problem = "slurmctld does not answer"
    assert main(["--slurm", "health-check", "--drain"]) == 1
    assert "n17 could not be drained: slurmctld does not answer" in capsys.readouterr().err


def test_commands_are_found_without_a_path(world: World) -> None:
    import os

    main(["--slurm", "health-check"])
    assert "/usr/bin" in os.environ["PATH"].split(":")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--slurm", "nothing"], "expected one of health-check, prolog, epilog, help, found 'nothing'"),
        (["--drain"], "--drain and --act need --slurm"),
        (["--act"], "--drain and --act need --slurm"),
        (["--slurm", "health-check", "--act"], "--act is for prolog and epilog"),
        (["--slurm", "prolog", "--json"], "omit --list and --json"),
        (["--slurm", "prolog", "nosuch"], "nosuch: there is no such check"),
        (["--slurm", "prolog", "--skip", "nosuch"], "nosuch: there is no such check"),
    ],
)
def test_wrong_usage_gives_code_2_and_checks_nothing(
    arguments: list[str], expected: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err and world.ran == []


def test_a_name_that_slurm_would_not_give_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1 State=RESUME")
    assert main(["--slurm", "prolog"]) == 2


def test_help_shows_how_to_set_slurm_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--slurm", "help"]) == 0
    text = capsys.readouterr().out
    for expected in ("HealthCheckProgram=", "Prolog=", "--drain", "SLURM_CONF", "nohold_on_prolog_fail"):
        assert expected in text
